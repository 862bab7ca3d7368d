"""Formulas over unknown numbers, and how they become rows of a program; used by rules and by conditions on models."""
