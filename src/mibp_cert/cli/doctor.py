"""`mibp-cert doctor`: what is here, and does it work."""

from __future__ import annotations

import os
import platform
import time
from importlib.metadata import PackageNotFoundError, version

import typer

from mibp_cert.errors import MibpCertError
from mibp_cert.report.console import Terminal

PACKAGES = ("numpy", "scipy", "scikit-learn", "pandas", "matplotlib", "joblib", "python-flint", "pyscipopt", "highspy")
EXTRAS = ("gurobipy", "torch", "distributed", "ray", "ucimlrepo")


def doctor(
    check: bool = typer.Option(True, help="Also train a small model with every engine and solver (about ten seconds)."),
) -> None:
    """Show versions, solvers and cores, and check in ten seconds that everything works; status 1 if it does not."""
    from mibp_cert.certify.forecast import free_memory
    from mibp_cert.solvers import SOLVERS

    console = Terminal(highlight=False)
    console.print(f"mibp-cert {version('mibp-cert')}, Python {platform.python_version()}, {platform.system()}")
    cores, free = os.cpu_count(), free_memory()
    console.print(f"{cores} cores, {free / 2**30:.1f} GiB of memory free")
    for name in (*PACKAGES, *EXTRAS):
        try:
            console.print(f"  {name} {version(name)}")
        except PackageNotFoundError:
            console.print(f"  {name} not installed" + (" (optional)" if name in EXTRAS else ""))
    usable = []
    for name, kind in SOLVERS.items():
        try:
            kind().check_available()
            usable.append(name)
            console.print(f"solver {name}: usable" + (" (its licence may limit the size)" if name == "gurobi" else ""))
        except MibpCertError as error:
            console.print(f"solver {name}: {error}", soft_wrap=True, markup=False)
    if check and not _self_check(console, usable):
        raise typer.Exit(1)


def _self_check(console: Terminal, solvers: list[str]) -> bool:
    """Train a tiny model with every engine; bounds must nest, and the attack must stay inside."""
    import numpy as np

    from mibp_cert.certify import AttackSettings
    from mibp_cert.data import two_moons
    from mibp_cert.doors import certify_training
    from mibp_cert.engines import ENGINES, SolverSettings
    from mibp_cert.nets import Network, Training
    from mibp_cert.threats import LInf

    start, data = time.perf_counter(), two_moons(0)
    network, training = Network.mlp([2, 2, 2]), Training(epochs=2, batch_size=10)
    small = type(data)(data.name, data.train.take(np.arange(10)), data.validation, data.tested.take(np.arange(20)))
    attack, good, loosest = AttackSettings(members=4, points=4, parameters=4, rounds=1), True, None
    cases = [(name, solver) for name in ENGINES for solver in (solvers if ENGINES[name].solves else [""])]
    with console.status("self-check"):
        for engine, solver in cases:
            words = f"{engine} with {solver}" if solver else engine
            try:
                settings = SolverSettings(solver or "scip", seconds_per_step=3.0, jobs=1)
                run = certify_training(
                    network, small, LInf(0.01), training, engine, solver=settings, attack_settings=attack
                )
                loosest = loosest or run.bounds  # intervals come first
                inside = run.bounds.within(loosest)
                good &= inside
                console.print(f"self-check {words}: {'ok' if inside else 'WRONG: looser than intervals'}")
            except MibpCertError as error:
                good = False
                console.print(f"self-check {words}: {error}", soft_wrap=True, markup=False)
    console.print(f"self-check took {time.perf_counter() - start:.1f} s")
    return good
