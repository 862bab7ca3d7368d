"""Worker processes that may die, on this machine or on others, and sweeps over them."""

from mibp_cert.parallel.pool import WorkerPool, split
from mibp_cert.parallel.sweep import arrivals, spread
