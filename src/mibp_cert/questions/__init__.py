"""Statements about every model that training could have produced, beyond the class."""
