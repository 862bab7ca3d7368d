"""Tables, pictures and pages of runs and of ensembles."""
