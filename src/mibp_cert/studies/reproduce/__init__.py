"""Every table of the paper by one command."""

from mibp_cert.studies.reproduce.paper import TABLES, Cell, Table, with_loss
from mibp_cert.studies.reproduce.runner import Options, engines_of, run_table, run_unit
from mibp_cert.studies.reproduce.timings import TIMINGS

__all__ = ["TABLES", "TIMINGS", "Cell", "Options", "Table", "engines_of", "run_table", "run_unit", "with_loss"]
