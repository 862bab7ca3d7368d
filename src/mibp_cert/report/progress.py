"""The bars of `report.terminal` under their former address, which the estimator still uses."""

from mibp_cert.report.terminal import progress_bars, show_training

__all__ = ["progress_bars", "show_training"]
