"""Run directories: what a run keeps on disk, and how it is checked again; certificates that are written."""

from mibp_cert.store.archive import load_run, resume_run, run_in, stored_request
