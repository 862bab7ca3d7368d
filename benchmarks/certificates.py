"""Certificates of ten data sets: made, proven again, and forged in every way; what each takes.

    python benchmarks/certificates.py [--folder runs/certificates] [--forged 30]
    OPENBLAS_CORETYPE=Nehalem OMP_NUM_THREADS=2 python benchmarks/certificates.py --again

`--again` only proves the files of the last run again, such as with another kernel of BLAS and more threads.
"""

from __future__ import annotations

import argparse
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_wine

import mibp_cert as mc
from mibp_cert.check.file import read_certificate, write_certificate
from mibp_cert.data import load
from mibp_cert.errors import UserError

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from fits import table
from forgeries import FORGERIES, forge


def wine() -> mc.Split:
    """Two of the three cultivars."""
    x, y = load_wine(return_X_y=True)
    x, y = x[y < 2], y[y < 2]
    x, order = (x - x.mean(axis=0)) / x.std(axis=0), np.random.default_rng(0).permutation(len(x))
    parts = order[:90], order[90:]
    return mc.Split("wine", *(mc.Dataset.of(x[parts[0]], y[parts[0]]),), test=mc.Dataset.of(x[parts[1]], y[parts[1]]))


def survey(loss: str, *, missing: bool = False) -> mc.Split:
    data = table(loss, rows=80, missing=missing)
    return mc.Split("survey", data, test=table(loss, rows=30, seed=3, like=data))


CASES: dict[str, tuple[Any, mc.Threat, mc.Fitted]] = {
    "TwoMoons, noise": (lambda: load("two-moons", 0), mc.LInf(0.05), mc.Fitted(C=1.0)),
    "TwoMoons, 3 labels": (lambda: load("two-moons", 0), mc.LabelFlips(3), mc.Fitted(C=1.0)),
    "TwoMoons, 5 rows removed": (lambda: load("two-moons", 0), mc.Removed(5), mc.Fitted(C=1.0)),
    "Iris, two classes": (lambda: load("iris2", 0), mc.LInf(0.1), mc.Fitted(C=0.02)),
    "Breast Cancer, three columns": (
        lambda: load("breast-cancer", 0),
        mc.LInf(0.01, columns=[0, 1, 2]),
        mc.Fitted(C=0.1),
    ),
    "Breast Cancer, all columns": (lambda: load("breast-cancer", 0), mc.LInf(0.003), mc.Fitted(C=0.02)),
    "wine, bad rows": (wine, mc.Budget(mc.L2(0.3), rows=2), mc.Fitted(C=0.05)),
    "survey, missing answers": (lambda: survey("cross-entropy", missing=True), mc.Missing(), mc.Fitted(C=0.05)),
    "survey, a neighbour": (
        lambda: survey("squared-hinge"),
        mc.Shift("mood", by=1),
        mc.Fitted("squared-hinge", C=0.003),
    ),
    "diabetes, bmi": (lambda: load("diabetes", 0), mc.LInf({"bmi": 0.005}), mc.Fitted("squared-error", C=1.0)),
    "survey, targets": (lambda: survey("huber"), mc.TargetNoise(0.3), mc.Fitted("huber", C=0.1)),
}


CLASSES_ONLY = ("claims without a sign", "wrong labels, too", "another class")
"""No forgeries where numbers are predicted: an end of a range with its sign turned may be true; its row is then not counted."""


def refused(path: Path, split: mc.Split) -> bool:
    try:
        return bool(mc.check_certificate(path, split).failures)
    except UserError:
        return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("runs/certificates"))
    parser.add_argument("--forged", type=int, default=30, help="forgeries of each certificate")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--only", default="", help="data sets whose name holds this")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    total = [0, 0, 0]
    print(f"{'':30s} rows claims of tests  certify    make   check  MB   forged refused")
    for name, (read, threat, model) in CASES.items():
        if given.only not in name:
            continue
        split, path, marks = (
            read(),
            given.folder / f"{name.replace(', ', '-').replace(' ', '-')}.cert",
            [time.perf_counter()],
        )
        if not given.again:
            run = mc.certify_fit(split, threat, model, attacked=False)
            marks.append(time.perf_counter())
            mc.certificate_of(run).write(path)
        marks.append(time.perf_counter())
        found = mc.check_certificate(path, split)
        marks.append(time.perf_counter())
        seconds = " ".join(f"{b - a:7.1f}" for a, b in pairwise(marks))
        told = "proven" if not found.failures else f"NOT PROVEN: {found.failures[:2]}"
        total[2] += bool(found.failures)
        certificate, wrong = read_certificate(path), []
        names = [kind for kind in FORGERIES if found.certified_accuracy is not None or kind not in CLASSES_ONLY]
        for number in range(0 if given.again else given.forged):
            kind = names[number % len(names)]
            forged = given.folder / "forged.cert"
            write_certificate(
                forged, *forge(kind, certificate.plain, certificate.arrays, np.random.default_rng(number))
            )
            total[0] += 1
            if refused(forged, split):
                total[1] += 1
            else:
                wrong.append(kind)
        sizes = f"{found.rows:4d} {found.claims:6d} of {found.tests:5d}"
        print(f"{name:30s} {sizes} {seconds} {path.stat().st_size / 1e6:4.1f}  {told} {wrong}", flush=True)
    print(f"{total[1]} of {total[0]} forgeries refused; {total[2]} honest certificates refused.")


if __name__ == "__main__":
    main()
