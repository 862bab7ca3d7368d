"""Several runs together: the choice of `C`, parts of the doubt, tolerance, blame, comparison, and the paper's tables."""
