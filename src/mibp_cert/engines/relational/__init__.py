"""Parameters as functions of the data's own noise, to first order, with a remainder."""
