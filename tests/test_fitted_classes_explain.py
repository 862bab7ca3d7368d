"""What a bound over several classes is made of: parts by rows and columns that add up, and rows to blame."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from rich.console import Console

import mibp_cert as mc
from fits import step_of, table, threats
from mibp_cert import Fitted, LabelFlips, LInf, Removed
from mibp_cert.certify.predict import nominal_outputs
from mibp_cert.cli.commands import write_report
from mibp_cert.data import iris
from mibp_cert.fitted import explain as parts_of
from mibp_cert.fitted import explain_classes as taken_apart
from mibp_cert.fitted import presence
from mibp_cert.fitted.softmax import ClassKnown
from test_fitted_classes_rows import BY_CLASS, REST, K, tiny

PARTS = ("noise", "chords", "bands", "targets", "budgets", "rest", "tilt", "rounding")
MODELS = [Fitted(C=0.02), Fitted(C=0.02, multi=REST), Fitted("squared-hinge", C=0.0003)]
KINDS: dict[str, Any] = {
    name: threats("cross-entropy")[name]
    for name in ("linf", "l1", "missing", "shift", "one-sided budget", "budget of balls", "noise and flips")
}
KINDS |= {
    "any labels": LabelFlips().where(mc.column("age") >= 72),
    "labels": LabelFlips(1),
    "noise and removed": LInf({"income": 0.2}) & Removed(1),
    "added": mc.Added(1, {}) & LInf({"income": 0.1}),
}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exits are not cut, and domains are left in few parts: it takes seconds, and changes nothing here."""
    monkeypatch.setattr("mibp_cert.fitted.problem.CUT_CELLS", 0)
    monkeypatch.setattr(presence, "MOST_PARTS", 8)


def fitted(model: Fitted, name: str) -> tuple[mc.CertifiedRun, Any]:
    train = table("cross-entropy", 12, missing=name == "missing", classes=K)
    run = mc.certify_fit(train, KINDS[name], model, attacked=False)
    return run, table("cross-entropy", 6, 50, like=train, classes=K).x


def check_sum(run: mc.CertifiedRun, x: Any) -> None:
    """Below the clean lead of each row's class by the parts of the lower end lies the margin; no part is negative that cannot
    be, rounding is small, and both ends together are the sum of each."""
    low, high, both = (mc.explain(run, x, end) for end in ("low", "high", "both"))
    found, out = run.certify(x), nominal_outputs(run.network, run.theta, x)
    lead = np.take_along_axis(out, found.centre[:, None], axis=1) - out
    lead[np.arange(len(x)), found.centre] = np.inf
    below = lead - low.total[:, None]
    assert np.abs(below - found.margin[:, None]).min(axis=1).max() <= 1e-8 * np.abs(found.margin).max()
    for one in (low, high):
        every = sum(np.reshape(getattr(one, name), (len(x), -1)).sum(axis=1) for name in PARTS)
        np.testing.assert_allclose(every, one.total, rtol=1e-9)
        assert (np.abs(one.rounding) <= 1e-6 * one.total.max()).all()
        for name in ("chords", "bands", "targets", "budgets", "rest"):
            assert getattr(one, name).min() >= -1e-9 * one.total.max(), name
    np.testing.assert_allclose(both.total, low.total + high.total)


HINGE = ("linf", "labels", "noise and removed", "added")
"""With the squared hinge: the other kinds are those of one-versus-rest."""
CASES = [(model, name) for model in MODELS for name in KINDS if model.loss == "cross-entropy" or name in HINGE]


@pytest.mark.parametrize(("model", "name"), CASES)
def test_the_parts_of_a_bound_add_up_to_its_width(model: Fitted, name: str) -> None:
    check_sum(*fitted(model, name))


@pytest.mark.parametrize("multi", [None, REST])
def test_parts_add_up_behind_features_and_beside_weights(multi: str | None) -> None:
    """Rows of weight 0 keep their place, and cost nothing."""
    data = tiny(1)
    run = mc.certify_fit(data, LInf(0.02), Fitted(C=0.05, features=mc.RandomFeatures(5), multi=multi), attacked=False)
    check_sum(run, tiny(2).x)
    assert mc.explain(run, data.x[:4]).noise.shape == (4, 12, 2)
    data, w = tiny(1, 24), np.resize([1.0, 0.5, 2.0, 1.0, 1.5], 24)
    w[[1, 6]] = 0.0
    model = Fitted(C=0.02, multi=multi, class_weight=BY_CLASS)
    run = mc.certify_fit(data, LInf(0.02) & LabelFlips(1), model, sample_weight=w, attacked=False)
    check_sum(run, tiny(2).x)
    rows = mc.explain(run, data.x[:4]).rows
    assert rows.shape == (4, 24)
    assert (rows[:, [1, 6]] == 0).all()
    assert (np.delete(rows, [1, 6], axis=1) > 0).all()
    assert {1, 6}.isdisjoint(mc.blame(run, x=data.x, points=[0, 1], verified=False).rows["number"])


@pytest.mark.parametrize("multi", [None, REST])
def test_rows_and_columns_that_nothing_moves_cost_nothing(multi: str | None) -> None:
    run = mc.certify_fit(tiny(1), LInf(0.1, rows=[3, 5], columns=[1]), Fitted(C=0.3, multi=multi), attacked=False)
    found = mc.explain(run, tiny(2).x)
    moved = found.noise + found.chords
    assert (np.delete(moved, [3, 5], axis=1) == 0).all()
    assert (moved[..., 0] == 0).all()
    assert (moved[:, [3, 5], 1] > 0).all()


@pytest.mark.parametrize("multi", [None, REST])
def test_parts_are_what_first_order_says_where_doubt_is_small(multi: str | None) -> None:
    """Noise alone, `eps Σ|∂lead/∂x_ij|`, with derivatives from differences of real fits, for one of the other classes."""
    data, model, eps, h = tiny(1), Fitted(C=0.5, multi=multi), 1e-7, 1e-5
    run, rows = mc.certify_fit(data, LInf(eps), model, attacked=False), tiny(2).x[:4]
    step = step_of(data, model)
    slopes = np.zeros((4, 12, 2, K))
    for i, j in np.ndindex(12, 2):
        up, down = data.x.copy(), data.x.copy()
        up[i, j], down[i, j] = up[i, j] + h, down[i, j] - h
        ends = [nominal_outputs(run.network, step.train(np.zeros(9), x, data.one_hot), rows) for x in (up, down)]
        slopes[:, i, j] = (ends[0] - ends[1]) / (2 * h)
    centre = run.certify(rows).centre
    leads = np.take_along_axis(slopes, centre[:, None, None, None], axis=3) - slopes
    found = mc.explain(run, rows, "low").noise
    off = np.abs(found[..., None] - eps * np.abs(leads)).max(axis=(1, 2)) / (eps * np.abs(leads).max())
    assert (off.min(axis=1) < 1e-3).all()


MUTANTS: dict[str, Any] = {
    "chords forgotten": (parts_of, "_gap", lambda middle, radius, rho: np.zeros_like(middle)),
    "labels forgotten": (ClassKnown, "labels", lambda self, omega: -(self.rows.y.T * omega).sum(axis=-2) + 1e-3),
    "budgets forgotten": (
        taken_apart,
        "_replaced",
        lambda dual, gains, by_column, shape: (np.zeros(shape[:2]), np.zeros(shape[0]), np.zeros(shape)),
    ),
    "supports forgotten": (taken_apart, "_supports", lambda *of: []),
}
SHOWN = {"chords forgotten": "linf", "labels forgotten": "any labels", "supports forgotten": "l1"}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_part_that_is_wrong_is_noticed(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run, x = fitted(MODELS[0], SHOWN.get(mutant, "noise and flips"))
    monkeypatch.setattr(*MUTANTS[mutant])
    with pytest.raises(AssertionError):
        check_sum(run, x)


@pytest.mark.parametrize("multi", [None, REST])
def test_blame_finds_the_rows_in_doubt_and_says_what_they_are_worth(multi: str | None, tmp_path: Any) -> None:
    data = iris(0)
    threat = LInf(0.001) & LInf(1.5, rows=[4, 10], columns=[2])
    run = mc.certify_fit(data, threat, Fitted(C=0.1, multi=multi), attacked=False)
    found = mc.blame(run, list(range(5)), top=2)
    assert set(found.rows["number"][:2]) == {4, 10}
    assert found.cells["column"].iloc[0] == data.train.columns[2].name
    assert found.before is not None
    assert found.after is not None
    assert found.after >= found.before
    write_report(Console(quiet=True), tmp_path / "page.html", run, None)
    assert (tmp_path / "page.html").exists()


def test_a_row_that_may_go_is_to_blame_and_not_its_cells() -> None:
    run = mc.certify_fit(tiny(1), Removed(2), Fitted(C=0.3), attacked=False)
    found = mc.blame(run, x=tiny(2).x, points=[0, 1, 2], top=3)
    assert set(found.cells["column"]) == {"(label)"}
    noisy = mc.certify_fit(tiny(1), LInf(1e-9) & Removed(1), Fitted(C=0.3), attacked=False)
    possible = mc.explain(noisy, tiny(2).x).possible
    assert (possible[..., :-1] == 0).all()
    assert (possible[..., -1].max(axis=1) > 0).all()
