"""Runs on disk: certify step by step into a folder, go on with an interrupted run, read a finished one."""

from __future__ import annotations

from pathlib import Path

from mibp_cert.certify.loop import Callbacks, certify
from mibp_cert.certify.request import Request
from mibp_cert.certify.run import CertifiedRun
from mibp_cert.errors import UserError
from mibp_cert.store.archive import Archive, opened, read_request
from mibp_cert.threats import Threat


def run_in(path: str | Path, request: Request, hear: Callbacks | None = None, *, resume: bool = False) -> CertifiedRun:
    """Certify, with the set after every step kept in this folder; with `resume`, an interrupted run in it goes on."""
    archive = Archive(path, request.to_json(), request.arrays(), resume=resume)
    try:
        return certify(request, hear, archive)
    finally:
        archive.close()


def stored_request(path: str | Path, threat: Threat | None = None) -> Request:
    """The request behind a run directory; `threat` where it cannot be written to a file (rules)."""
    return Request.of_json(*read_request(Path(path)), threat)


def load_run(path: str | Path, threat: Threat | None = None) -> CertifiedRun:
    """A finished run, read from its directory; `threat` where the file cannot hold it (rules)."""
    if not (Path(path) / "result.json").exists():
        opened(Path(path) / "run.json")  # no run at all is another mistake
        raise UserError(f"The run in {path} is not finished; go on with it first: mibp-cert resume {path}")
    return resume_run(path, threat)


def resume_run(path: str | Path, threat: Threat | None = None, callbacks: Callbacks | None = None) -> CertifiedRun:
    """Go on with the run in this directory where it stopped; a finished one is only read."""
    return run_in(path, stored_request(path, threat), callbacks, resume=True)
