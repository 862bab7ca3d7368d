"""Every table of the paper by one command."""

from mibp_cert.studies.reproduce.paper import TABLES, Cell, Table, with_loss
from mibp_cert.studies.reproduce.runner import Options, run_table
from mibp_cert.studies.reproduce.timings import TIMINGS, run_timing

__all__ = ["TABLES", "TIMINGS", "Cell", "Options", "Table", "run_table", "run_timing", "with_loss"]
