"""Every table of the paper by one command."""

from mibp_cert.studies.reproduce.minimum import FIT_MODELS, Fit, fit_notes, fits_of
from mibp_cert.studies.reproduce.paper import TABLES, TIMINGS, Cell, Table, with_loss
from mibp_cert.studies.reproduce.runner import Options, run_table, run_timing
