"""Votes of parts: certified accuracy by the number of wrong rows, beside the plain learner and the attack; and votes that are
themselves certified, beside each ingredient alone.

    python benchmarks/ensembles.py [--seeds 3] [--only "breast cancer"]
    python benchmarks/ensembles.py --bags 500      # bagging and BagFlip, certified with a confidence of 99 %
    python benchmarks/ensembles.py --overlapping   # finite aggregation: is it better at equal cost?
    python benchmarks/ensembles.py --certified     # noise and wrong labels on Breast Cancer, where parts have certificates
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits, make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

import mibp_cert as mc
from mibp_cert.ensembles.attack import attack
from mibp_cert.ensembles.bag_attack import attack_bags
from mibp_cert.ensembles.findings import Findings
from mibp_cert.ensembles.rows import Rows, dealt
from mibp_cert.ensembles.votes import NOBODY, counted

RADII = (0, 1, 2, 5, 10, 20)
LEARNERS: dict[str, Any] = {
    "tree": DecisionTreeClassifier(random_state=0),
    "forest": RandomForestClassifier(20, random_state=0),
    "logistic": make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)),
}
Table = tuple[Any, Any, Any, Any]


def breast_cancer() -> tuple[Any, Any]:
    found: tuple[Any, Any] = load_breast_cancer(return_X_y=True)
    return found


def digits(classes: int) -> tuple[Any, Any]:
    x, y = load_digits(return_X_y=True)
    return x[y < classes], y[y < classes]


def large() -> tuple[Any, Any]:
    found: tuple[Any, Any] = make_classification(6250, 20, n_informative=8, random_state=0)
    return found


TABLES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "breast cancer": (breast_cancer, (10, 25, 50, 100)),
    "digits, 2": (lambda: digits(2), (10, 25, 50)),
    "digits, 10": (lambda: digits(10), (10, 25, 50, 100)),
    "5,000 rows": (large, (25, 50, 100, 250)),
}


def split(x: Any, y: Any, seed: int) -> Table:
    found = train_test_split(x, y, test_size=0.2, stratify=y, random_state=seed)
    return found[0], found[1], found[2], found[3]


def percent(values: Any) -> str:
    return "  ".join(f"{100 * value:5.1f}" for value in values)


def plain_votes(name: str, seeds: int, learners: list[str], tries: int) -> None:
    """Certified for altered rows by number (k: one part each) and by content (2k), and under attack; means over the seeds."""
    make, many = TABLES[name]
    x, y = make()
    print(f"\n{name}: {len(x)} rows, test 20 %, {seeds} seeds; altered rows 0, 1, 2, 5, 10, 20; per cent")
    for learner in learners:
        whole = []
        for seed in range(seeds):
            a, b, c, d = split(x, y, seed)
            whole.append(float((clone(LEARNERS[learner]).fit(a, c).predict(b) == d).mean()))
        print(f"  {learner}, all rows: {100 * np.mean(whole):.1f}")
        for parts in many:
            for by in ("row", "content"):
                certified, attacked, seconds = _measured(x, y, LEARNERS[learner], parts, by, seeds, tries)
                told = f"certified {percent(certified)}   attacked {percent(attacked)}   {seconds:.1f} s"
                print(f"    {parts:4} parts by {by:8} {told}", flush=True)


def _measured(x: Any, y: Any, learner: Any, parts: int, by: str, seeds: int, tries: int) -> tuple[Any, Any, float]:
    tables, seconds = [], 0.0
    for seed in range(seeds):
        a, b, c, d = split(x, y, seed)
        start = time.perf_counter()
        model = mc.PartitionedClassifier(learner, parts=parts, by=by, random_state=seed).fit(a, c)
        seconds += time.perf_counter() - start
        found = attack(model, a, c, b, tries=tries) if tries else None
        tables.append(Findings.of(model, b, d, found, most_frequent=0, radii=RADII).by_radius)
    attacked = np.mean([table["attacked"] for table in tables], axis=0) if tries else []
    return np.mean([table["altered"] for table in tables], axis=0), attacked, seconds / seeds


# Bags --------------------------------------------------------------------------------------------------------------------------

SIZES = {"breast cancer": (20, 40), "digits, 2": (15, 30), "digits, 10": (40, 100), "5,000 rows": (100, 250)}
"""Rows of a bag."""
FLIPPED: dict[str, dict[str, Any]] = {
    "features, odds 9": {"flips": "features", "odds": 9.0},
    "features, odds 4": {"flips": "features", "odds": 4.0},
    "labels, odds 9": {"flips": "labels", "odds": 9.0},
    "both, odds 9": {"flips": "both", "odds": 9.0},
}
"""What BagFlip flips; certified are rows with one other value, of these."""


def bag_votes(name: str, seeds: int, learner: str, bags: int, tries: int) -> None:
    """Bagging and BagFlip: certified for altered rows, for rows with one other value, and under attack. A tenth of the
    training rows is trusted, cuts the bins, and is used for nothing else; bagging does without these rows, too."""
    x, y = TABLES[name][0]()
    print(f"\n{name}: {bags} bags, {learner}, {seeds} seeds; wrong rows 0, 1, 2, 5, 10, 20; per cent, confidence 99 %")
    for size in SIZES[name]:
        for told, flips in {"bagging": None, **FLIPPED}.items():
            clean, tables, seconds = [], [], 0.0
            for seed in range(seeds):
                a, b, c, d = split(x, y, seed)
                a, trusted, c, _ = train_test_split(a, c, test_size=0.1, stratify=c, random_state=seed)
                given = {"bags": bags, "size": size, "together": len(b), "random_state": seed}
                start, model = time.perf_counter(), mc.BaggedClassifier(LEARNERS[learner], **given)
                if flips is not None:
                    bins = mc.quantile_bins(trusted)
                    model = mc.FlipBaggedClassifier(LEARNERS[learner], bins=bins, **given, **flips)
                model.fit(a, c)
                found = Findings.of(model, b, d, most_frequent=0, radii=RADII)
                seconds += time.perf_counter() - start
                if tries:
                    found = Findings.of(
                        model, b, d, attack_bags(model, a, c, b, tries=tries), most_frequent=0, radii=RADII
                    )
                clean.append(float(found.right.mean()))
                tables.append(found.by_radius)
            lines = [
                f"{kind} {percent(np.mean([table[kind] for table in tables], axis=0))}"
                for kind in ("altered", "flipped", "attacked")
                if kind in tables[0]
            ]
            head = f"  size {size:3} {told:16} votes {100 * np.mean(clean):5.1f}"
            print(f"{head}   {'   '.join(lines)}   {seconds / seeds:.1f} s", flush=True)


# Parts that overlap ----------------------------------------------------------------------------------------------------------


def overlapping(name: str, learner: Any, learners: int, spread: int, seed: int) -> tuple[Any, float]:
    """Finite aggregation (Wang et al. 2022): rows are hashed into as many parts as there are learners, and every part is
    seen by `spread` of them. A row that is lost takes from the lead over `d` the sum of what its learners can; the worst
    parts come first."""
    a, b, c, d = split(*TABLES[name][0](), seed)
    rows = Rows(np.asarray(a, dtype=np.float64), c)
    parts = dealt(rows, learners, "content", seed)
    shifts = np.random.default_rng(seed).permutation(learners)[:spread]
    seen = [(h + shifts) % learners for h in range(learners)]
    classes, start = np.unique(c), time.perf_counter()
    votes = np.empty((len(b), learners), dtype=np.intp)
    for i in range(learners):
        mine = np.concatenate([parts[h] for h in range(learners) if i in seen[h]])
        votes[:, i] = NOBODY
        if len(mine):
            votes[:, i] = np.searchsorted(classes, clone(learner).fit(a[mine], c[mine]).predict(b))
    counts, at = counted(votes, len(classes)), np.arange(len(b))
    own = counts.argmax(axis=1)
    least = np.full(len(b), learners)
    for rival in range(len(classes)):
        gain = 1 + (votes == own[:, None]).astype(int) - (votes == rival)
        taken = np.cumsum(-np.sort(-np.stack([gain[:, one].sum(axis=1) for one in seen], axis=1), axis=1), axis=1)
        lead = counts[at, own] - counts[:, rival] - (rival < own)
        least = np.where(own == rival, least, np.minimum(least, (taken <= lead[:, None]).sum(axis=1)))
    right = classes[own] == d
    return [float((right & (least >= r)).mean()) for r in RADII], time.perf_counter() - start


def compare_overlapping(seeds: int) -> None:
    """Rows that come or go, parts by content: the same number of learners, each seen row by `spread` of them."""
    for name in ("breast cancer", "digits, 10"):
        print(f"\n{name}: trees; rows that come or go 0, 1, 2, 5, 10, 20; {seeds} seeds; per cent certified and right")
        for learners in (25, 50, 100):
            for spread in (1, 2, 4):
                found = [overlapping(name, LEARNERS["tree"], learners, spread, seed) for seed in range(seeds)]
                seconds = np.mean([took for _, took in found])
                told = percent(np.mean([line for line, _ in found], axis=0))
                print(f"  {learners:4} learners, every row in {spread}: {told}   {seconds:.2f} s", flush=True)


# Votes that are certified ----------------------------------------------------------------------------------------------------


def scaled(seed: int) -> Table:
    """Breast Cancer, scaled by validation rows that are trusted: a tenth of the rows, which nothing else sees."""
    x, y = breast_cancer()
    x, trusted, y, _ = train_test_split(x, y, test_size=0.1, stratify=y, random_state=seed)
    low, high = trusted.min(axis=0), trusted.max(axis=0)
    return split((x - low) / (high - low), y, seed)


def certified_votes(seeds: int, size: float) -> Iterator[str]:
    """Noise .01 in every cell and arbitrary rows, together and alone; wrong labels by the knapsack beside lost parts."""
    tables = [scaled(seed) for seed in range(seeds)]
    yield f"Breast Cancer, scaled by trusted rows; logistic regression C = {size:g}; means of {seeds} seeds; per cent"
    yield "noise in every cell and arbitrary rows at once: certified and right"
    for parts in (1, 5, 10, 20):
        for eps in (0.0, 0.01):
            noise = mc.LInf(eps) if eps else mc.Nothing()
            lines = []
            for a, b, c, d in tables:
                model = _votes(parts, "row", noise, size).fit(a, c)
                answers = model.answers(b)
                right = model.classes_[answers.nominal] == d
                lines.append(
                    [float(right.mean()), *(float((right & (answers.lost >= k)).mean()) for k in (0, 1, 3, 5))]
                )
            yield f"  {parts:3} parts, eps {eps:4}: clean, then 0, 1, 3, 5 arbitrary rows   {percent(np.mean(lines, axis=0))}"
    yield "wrong labels, parts by features: lost parts beside the knapsack, for 0, 1, 2, 5, 10, 20 wrong labels"
    for parts in (3, 5, 10, 20, 50):
        lost, knapsack = [], []
        for a, b, c, d in tables:
            model = _votes(parts, "features", mc.LabelFlips(20), size, 4).fit(a, c)
            answers = model.answers(b)
            right = model.classes_[answers.nominal] == d
            plain = (
                mc.PartitionedClassifier(LogisticRegression(C=size), parts=parts, by="features").fit(a, c).answers(b)
            )
            lost.append([float((right & (plain.lost >= r)).mean()) for r in RADII])
            knapsack.append([float((right & (answers.changed >= r)).mean()) for r in RADII])
        yield f"  {parts:3} parts: lost parts {percent(np.mean(lost, axis=0))}"
        yield f"             knapsack   {percent(np.mean(knapsack, axis=0))}"


def _votes(parts: int, by: str, threat: Any, size: float, tried: int = 3) -> Any:
    return mc.PartitionedClassifier(
        mc.CertifiedLogisticRegression(C=size), parts=parts, by=by, threat=threat, tried=tried
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", choices=list(TABLES))
    parser.add_argument("--learner", nargs="+", choices=list(LEARNERS), default=list(LEARNERS))
    parser.add_argument("--tries", type=int, default=2, help="Wrong rows of each kind in each part; 0: no attack.")
    parser.add_argument("--certified", action="store_true")
    parser.add_argument("--C", type=float, default=0.1, help="Of certified parts.")
    parser.add_argument("--bags", type=int, help="So many bags, in place of parts.")
    parser.add_argument("--overlapping", action="store_true")
    given = parser.parse_args()
    if given.overlapping:
        compare_overlapping(given.seeds)
        return
    if given.certified:
        for line in certified_votes(given.seeds, given.C):
            print(line, flush=True)
        return
    for name in TABLES if given.only is None else [given.only]:
        if given.bags is None:
            plain_votes(name, given.seeds, given.learner, given.tries)
            continue
        for learner in given.learner:
            bag_votes(name, given.seeds, learner, given.bags, given.tries)


if __name__ == "__main__":
    main()
