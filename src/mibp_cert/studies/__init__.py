"""Several runs together: tolerance, blame, comparison, and the paper's tables."""
