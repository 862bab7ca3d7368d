"""Is the model any good, which candidate is chosen, and what a run will take: said truly, beside what looks at no column."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score, recall_score

import mibp_cert as mc
from mibp_cert.certify import forecast as forecasts
from mibp_cert.certify.choice import Judge
from mibp_cert.certify.predict import nominal_classes
from mibp_cert.certify.shown import loud
from mibp_cert.certify.worth import NumberWorth, Worth
from mibp_cert.data import load
from mibp_cert.engines import engine_named
from mibp_cert.errors import Diverged
from mibp_cert.fitted import DualEngine
from mibp_cert.report.html import html_report
from mibp_cert.report.terminal import worth_table
from mibp_cert.report.words import verdict
from mibp_cert.studies import choose
from mibp_cert.studies.choose import choose_C
from mibp_cert.usual import lonely_row, usual_batch

MOONS = mc.two_moons(0)


def one_sided(share: float = 0.9, rows: int = 120) -> mc.Split:
    """Columns that say nothing of classes, one of which is frequent."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(rows, 2)), np.where(rng.random(rows) < share, "no", "yes")
    parts = [mc.Dataset.of(x[i::3], y[i::3], ("no", "yes")) for i in range(3)]
    return mc.Split("one-sided", *parts)


def test_shares_are_those_of_scikit_learn() -> None:
    run = mc.certify_fit(MOONS, mc.LInf(0.05), mc.Fitted(C=1.0))
    worth, y = run.worth, MOONS.tested.y
    assert isinstance(worth, Worth)
    assert run.nominal is not None
    assert worth.balanced("clean") == pytest.approx(balanced_accuracy_score(y, run.nominal))
    assert [share.clean for share in worth.classes] == pytest.approx(
        recall_score(y, run.nominal, average=None).tolist()
    )
    assert run.test is not None
    assert worth.wrong == int((run.test.certified & (run.test.classes != y)).sum())
    certified, attacked, clean = (worth.balanced(what) for what in ("certified", "attacked", "clean"))
    assert certified is not None
    assert attacked is not None
    assert clean is not None
    assert certified <= attacked <= clean
    plain = run.to_json()["test"]
    assert plain["better_than_majority"] is worth.better is True
    assert [one["n"] for one in plain["by_class"]] == np.bincount(y).tolist()


def test_a_certificate_of_a_useless_model_is_called_that() -> None:
    run = mc.certify_fit(one_sided(), mc.LInf(0.01), mc.Fitted(C=1e-4))
    assert run.test is not None
    assert run.test.certified.all()
    told = " ".join(loud(run))
    assert "This model does no better than always answering 'no'" in told
    assert "No prediction is certified as 'yes'" in told
    assert "no better than always answering" in run._repr_html_()
    assert worth_table(run) is not None


def test_a_regression_stands_beside_the_mean_in_the_users_units() -> None:
    data = load("diabetes", 0)
    train = data.train.with_target(data.train.target_column())
    data = replace(data, train=train, validation=None, test=data.tested.with_target(train.target))
    run = mc.certify_fit(data, mc.TargetNoise(0.01), mc.Fitted("squared-error", C=0.1))
    worth = run.worth
    assert isinstance(worth, NumberWorth)
    assert data.tested.targets is not None
    assert train.targets is not None
    targets = train.in_units(data.tested.targets)
    assert worth.baseline_error == pytest.approx(np.abs(targets - train.in_units(train.targets).mean()).mean())
    assert worth.better
    useless = mc.certify_fit(data, mc.TargetNoise(0.01), mc.Fitted("squared-error", C=1e-9))
    assert useless.worth is not None
    assert (not useless.worth.better) == ("no better than always answering the mean" in " ".join(loud(useless)))


# Which candidate ------------------------------------------------------------------------------------------------------

FIGURES = st.lists(st.tuples(st.integers(0, 10), st.integers(0, 10)), min_size=1, max_size=8).map(
    lambda pairs: [(a / 10, min(a, b) / 10) for a, b in pairs]
)


@settings(deadline=None)
@given(FIGURES, st.integers(0, 10))
def test_no_candidate_without_certificates_is_chosen_beside_one_that_has_some(
    figures: list[tuple[float, float]], base: int
) -> None:
    judge = Judge(False, base / 10)
    clean, certified = max(figures, key=lambda pair: judge.rank(*pair))
    if any(c > 0 for _, c in figures):
        assert certified > 0
    good = [(a, c) for a, c in figures if judge.beats(a) and c > 0]
    if good:
        assert judge.beats(clean)
        assert certified == max(c for _, c in good)


@settings(deadline=None)
@given(FIGURES)
def test_what_is_chosen_is_on_the_frontier_and_nothing_beats_the_frontier(figures: list[tuple[float, float]]) -> None:
    judge = Judge(False, 0.0)
    best = [figures[i] for i in judge.frontier(list(figures))]
    assert max(figures, key=lambda pair: judge.rank(*pair))[1] in [c for _, c in best] + [0.0]
    for a, c in figures:
        assert any(x >= a and y >= c for x, y in best)
    errors = [(1.0 - a, 1.0 - c) for a, c in figures]
    assert Judge(True, 1.0).frontier(list(errors)) == judge.frontier(list(figures))


def test_errors_are_judged_the_other_way_round() -> None:
    judge = Judge(True, 10.0)
    assert judge.rank(5.0, 6.0) > judge.rank(5.0, 7.0) > judge.rank(11.0, 12.0) > judge.rank(1.0, None)


def test_c_is_chosen_by_what_certificates_say_of_validation_rows() -> None:
    threat, model = mc.LInf(0.05), mc.Fitted()
    found = choose_C(MOONS, threat, model, (0.01, 0.1, 1.0))
    judge = Judge.of(MOONS)
    for one in found.candidates:
        if one.certified is not None:
            run = mc.certify_fit(MOONS, threat, replace(model, C=one.C), attacked=False)
            assert (one.clean, one.certified) == run.validation
    best = max((one for one in found.candidates if one.certified), key=lambda one: judge.rank(one.clean, one.certified))
    assert found.C == best.C


def rare(rows: int = 150) -> mc.Split:
    """A column that says which rows have the rare class."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 2))
    y = np.where(x[:, 0] + 0.5 * rng.normal(size=rows) > 1.4, "yes", "no")
    return mc.Split("rare", *(mc.Dataset.of(x[i::3], y[i::3], ("no", "yes")) for i in range(3)))


@pytest.mark.parametrize("weights", ["balanced", {"yes": 9.0}])
def test_a_model_whose_classes_have_weights_is_judged_by_balanced_accuracy(weights: Any) -> None:
    data, threat, model = rare(), mc.LInf(0.02), mc.Fitted(C=0.01, class_weight=weights)
    run = mc.certify_fit(data, threat, model)
    assert data.validation is not None
    y, named = data.validation.y, nominal_classes(run.network, run.theta, data.validation.x)
    assert run.validation[0] == pytest.approx(balanced_accuracy_score(y, named))
    right = run.certify(data.validation.x).classes == y
    assert run.validation[1] == pytest.approx(np.mean([right[y == c].mean() for c in (0, 1)]))
    worth, told = run.worth, run.to_json()["test"]
    assert (told["judged_by"], told["better_than_majority"]) == ("balanced accuracy", True)
    assert isinstance(worth, Worth)
    assert worth.clean < worth.baseline_accuracy  # accuracy alone would say that it is of no use
    assert worth.judged == pytest.approx((0.5, worth.balanced("clean"), worth.balanced("certified")))
    assert worth.better
    assert not loud(run)
    found = choose_C(data, threat, model, (0.001, 0.01))
    assert found.judge.baseline == 0.5
    assert (found.judge.figure, found.better) == ("balanced accuracy", True)
    assert [one.clean for one in found.candidates if one.C == 0.01] == [run.validation[0]]
    for page in (verdict(run), run._repr_html_(), html_report(run, words="x")):
        assert "balanced accuracy" in page


def test_without_weights_the_same_model_is_of_no_use_where_it_only_knows_the_frequent_class() -> None:
    run = mc.certify_fit(rare(), mc.LInf(0.02), mc.Fitted(C=0.001))
    assert any("no better than always answering 'no'" in said for said in loud(run))


def test_a_candidate_that_cannot_win_is_not_bounded_and_c_below_the_grid_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[float] = []

    class Found:
        validation = (0.9, 0.9)

    def fitted(data: Any, threat: Any, model: mc.Fitted, **how: Any) -> Any:
        tried.append(model.C)
        if model.C >= 0.1:
            raise Diverged("too much", 0.01)
        return Found()

    monkeypatch.setattr(choose, "certify_fit", fitted)
    assert choose_C(MOONS, mc.LInf(0.1), mc.Fitted(), (0.1, 1.0)).C == 0.01
    assert tried == [0.1, 0.01]


def test_where_the_smallest_of_a_coarse_grid_has_no_start_smaller_ones_are_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[tuple[float, bool]] = []

    class Found:
        validation = (0.9, 0.8)

    def fitted(data: Any, threat: Any, model: mc.Fitted, *, thorough: bool, **how: Any) -> Any:
        tried.append((model.C, thorough))
        if model.C > 0.002:
            raise Diverged("too much")
        return Found()

    monkeypatch.setattr(choose, "certify_fit", fitted)
    found = choose_C(MOONS, mc.LInf(0.1), mc.Fitted(), (0.01, 0.1, 1.0))
    assert found.C == 0.001
    assert tried == [(0.01, True), (0.001, True)]
    assert [(one.C, one.why) for one in found.candidates] == [(0.001, ""), (0.01, choose.HOPELESS)]
    tried.clear()
    found = choose_C(load("iris", 0), mc.LInf(0.1), mc.Fitted(), (0.01, 0.1, 1.0))
    assert tried == [(0.01, False), (0.001, True)]  # of several classes slower ways come last
    assert [(one.C, one.why) for one in found.candidates] == [(0.001, ""), (0.01, choose.UNPROVEN)]


def test_a_grid_without_any_proof_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*given: Any, **how: Any) -> Any:
        raise Diverged("too much")

    monkeypatch.setattr(choose, "certify_fit", never)
    with pytest.raises(Diverged, match="too much"):
        choose_C(MOONS, mc.LInf(0.1), mc.Fitted(), (0.1, 1.0))


def test_giving_up_soon_proves_nothing_that_patience_would_not() -> None:
    threat = mc.LInf(0.1)
    with pytest.raises(Diverged, match="Plain bounds"):
        mc.certify_fit(MOONS, threat, mc.Fitted(C=1.0), attacked=False, thorough=False)
    quick = mc.certify_fit(MOONS, mc.LInf(0.02), mc.Fitted(C=1.0), attacked=False, thorough=False)
    slow = mc.certify_fit(MOONS, mc.LInf(0.02), mc.Fitted(C=1.0), attacked=False)
    assert (quick.bounds.lower == slow.bounds.lower).all()


# What it takes --------------------------------------------------------------------------------------------------------


def test_more_rows_take_longer_and_more_memory() -> None:
    def told(rows: int) -> forecasts.Forecast:
        data = mc.Dataset.of(np.zeros((rows, 3)), np.arange(rows) % 2)
        model = mc.Fitted()
        return forecasts.forecast(model.network(data), data, mc.LInf(0.1), model, DualEngine, 100)

    found = [told(rows) for rows in (1_000, 100_000, 1_000_000)]
    assert [one.bytes for one in found] == sorted(one.bytes for one in found)
    assert found[0].seconds < found[2].seconds
    assert not told(100).notable


def test_the_limits_of_the_process_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    free = forecasts.free_memory()
    numbers = {"/sys/fs/cgroup/memory.max": 3_000, "/sys/fs/cgroup/memory.current": 1_000}
    monkeypatch.setattr(forecasts, "_number_in", numbers.get)
    assert forecasts.free_memory() == min(2_000, free)


def test_a_training_that_memory_does_not_hold_names_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    data = mc.Dataset.of(rng.normal(size=(20_000, 10)), rng.integers(0, 2, 20_000))
    monkeypatch.setattr(forecasts, "free_memory", lambda: 10**8)
    with pytest.raises(mc.UserError, match="--model logistic or ridge"):
        forecasts.check_memory(mc.Network.mlp([10, 1]), data, mc.LInf(0.1), mc.Training(), engine_named("relational"))


@pytest.mark.parametrize("rows", [2, 100, 2000, 2001, 2101, 5051, 10_001])
def test_no_row_is_left_alone_by_default(rows: int) -> None:
    assert lonely_row(rows, usual_batch(rows)) is None
    assert lonely_row(101, 100) is not None
    with pytest.warns(UserWarning, match="holds a single row"):
        mc.CertifiedClassifier(batch_size=2, epochs=1).fit([[0.0], [1.0], [2.0]], [0, 1, 1])
