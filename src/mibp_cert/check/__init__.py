"""Certificates, proven again by code that shares nothing with the engines that made them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mibp_cert.check.fitted import Verdict
    from mibp_cert.data import Split


def check_certificate(path: str | Path, data: Split) -> Verdict:
    """Prove the certificate in a file about these data; what does not follow is in the verdict's `failures`."""
    from mibp_cert.check.file import read_certificate
    from mibp_cert.check.fitted import check

    return check(read_certificate(path), data)
