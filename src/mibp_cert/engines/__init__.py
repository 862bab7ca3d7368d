"""Engines: interpretations of a training step, from one parameter set to the next."""
