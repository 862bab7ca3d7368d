"""Tolerance, blame, compare; threats as plain data and in words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import mibp_cert as mc
from mibp_cert.errors import UserError
from mibp_cert.studies.tolerance import Tried, _Search, scaled
from mibp_cert.threats import Settled

NETWORK = mc.Network.mlp([2, 1])
TRAINING = mc.Training(epochs=5, loss="cross-entropy", learning_rate=0.5)


def frame() -> pd.DataFrame:
    return pd.DataFrame(
        {"age": [30.0, 50.0, None, 70.0], "mood": ["good", "bad", "fair", "good"], "ill": ["no", "yes", "no", "yes"]}
    )


THREATS: list[Any] = [
    mc.Nothing(),
    mc.LInf(0.1),
    mc.LInf({"age": 1}, clip=(0, None)),
    mc.LInf(0.05, relative=True),
    mc.LInf([0.5], rows=[0, 1]),
    mc.L1(0.1, columns=["age"]),
    mc.L2({"age": 2.0}),
    mc.Rounded("age", to=5),
    mc.Monotone("age", up=5, down=1),
    mc.AnyCategory("mood", among=["good", "fair"]),
    mc.Confusable("mood", {"good": ["fair"]}),
    mc.Shift("mood", by=-1),
    mc.Missing("age"),
    mc.LabelFlips(1, source=["yes"]),
    mc.Budget(mc.LInf(0.5), rows=1),
    mc.Budget(mc.LInf(0.5), cells=1),
    mc.LInf(1.0).where(mc.column("age") >= 50),
    mc.LInf(1.0).where((mc.column("mood") == "good") | ~mc.label_is("yes")),
    mc.LInf(1.0).where([0, 3]),
    mc.Rounded("age", to=1) & mc.LabelFlips(2) & mc.AnyCategory("mood"),
    Settled(mc.LInf(1.0), np.array([1])),
]


@pytest.mark.parametrize("threat", THREATS, ids=lambda t: str(t.to_json()))
def test_a_threat_read_from_its_plain_data_is_the_same_set(threat: Any) -> None:
    table = frame() if threat.knows_missing() else frame().fillna({"age": 40.0})
    data = mc.Dataset.from_frame(table, "ill")
    again = mc.threat_from_json(threat.to_json())
    assert again.to_json() == threat.to_json()
    one, two = (t.bind(data).hull() for t in (threat, again))
    for name in ("x_low", "x_high", "y_low", "y_high"):
        assert np.array_equal(getattr(one, name), getattr(two, name))
    words = mc.in_words(threat)
    assert words
    assert "{" not in words


def test_categories_that_are_numbers_survive_a_file() -> None:
    data = mc.Dataset.from_frame(pd.DataFrame({"k": [1, 2, 3], "y": [0, 1, 0]}), "y", categorical=["k"])
    threat = mc.Confusable("k", {1: [2], 3: [2]})
    again = mc.threat_from_json(threat.to_json())
    assert np.array_equal(again.bind(data).hull().x_high, threat.bind(data).hull().x_high)


def test_scaled_amounts_nest() -> None:
    threat = mc.LInf({"age": 2.0}) & mc.Budget(mc.Rounded("age", to=4), rows=1) & mc.AnyCategory("mood")
    data = mc.Dataset.from_frame(frame().fillna({"age": 40.0}), "ill")
    small, large = (scaled(threat, factor).bind(data).hull() for factor in (0.5, 1.0))
    assert (large.x_low <= small.x_low).all()
    assert (small.x_high <= large.x_high).all()
    age = data.columns[0]
    np.testing.assert_allclose(small.x_high[0, 0] - data.x[0, 0], 1.0 / age.scale + 1.0 / age.scale)
    with pytest.raises(UserError, match="no amount that could be varied"):
        scaled(mc.AnyCategory("mood"), 0.5)


def test_amounts_by_column_survive_a_series_and_numbered_names() -> None:
    data = mc.Dataset.from_frame(pd.DataFrame({"1": [1.0, 2.0, 4.0], "0": [5.0, 9.0, 7.0], "y": [0, 1, 0]}), "y")
    for threat in (mc.LInf(pd.Series({"0": 1.0, "1": 1e-3})), mc.LInf({0: 0.5}), mc.Budget(mc.LInf({0: 0.5}), rows=1)):
        one, two = (t.bind(data).hull() for t in (threat, mc.threat_from_json(threat.to_json())))
        assert np.array_equal(one.x_low, two.x_low)
        assert np.array_equal(one.x_high, two.x_high)
        assert np.array_equal(scaled(threat, 1.0).bind(data).hull().x_high, one.x_high)


def test_one_sided_errors_and_open_clips_can_be_varied() -> None:
    data = mc.Dataset.from_frame(frame().fillna({"age": 40.0}), "ill")
    assert np.array_equal(scaled(mc.Monotone("age", up=5), 0.0).bind(data).hull().x_high, data.x)
    threat = mc.LInf({"age": 1.0}, clip=(None, 90.0))
    assert mc.threat_from_json(threat.to_json()).to_json() == threat.to_json()
    listed = mc.LInf({"age": 1.0}, clip=([-np.inf], [90.0]))
    assert np.array_equal(
        mc.threat_from_json(listed.to_json()).bind(data).hull().x_high, listed.bind(data).hull().x_high
    )


def test_a_settled_row_is_a_member_of_the_threat_also_where_a_marker_stood() -> None:
    table = pd.DataFrame({"c": ["a", "?", "b", "a", "?"], "n": [1.0, -1.0, 3.0, 4.0, 5.0], "y": [0, 1, 0, 1, 0]})
    data = mc.Dataset.from_frame(table, "y")
    threat = mc.Missing("c", marker="?") & mc.Missing("n", marker=-1.0)
    whole, some = threat.bind(data), Settled(threat, np.array([1])).bind(data)
    for x, y in some.sample(np.random.default_rng(0), 20):
        assert whole.contains(x, y)


def search_over(certified: list[float], broken: list[float], *, whole: bool = False) -> tuple[_Search, list[float]]:
    """A search over made-up points: point `i` is certified up to `certified[i]` and attacked from `broken[i]` on."""
    asked: list[float] = []

    def run(value: float) -> Tried:
        asked.append(value)
        return Tried(np.array([value <= c for c in certified]), np.array([value >= b for b in broken]))

    return _Search(run, whole, 0.01), asked


@pytest.mark.parametrize("start", [0.001, 1.0, 300.0])
@pytest.mark.parametrize("true", [0.02, 0.7, 40.0])
def test_bisection_finds_the_threshold_from_both_sides(true: float, start: float) -> None:
    search, asked = search_over([true, 2 * true], [1.5 * true, 3 * true])
    good, bad = search.threshold(lambda t: bool(t.certified[0]), start, np.inf)
    assert good is not None
    assert bad is not None
    assert good <= true < bad
    assert bad - good <= 0.01 * bad
    assert len(asked) == len(set(asked)) < 50
    certified, broken = search.ends()
    assert certified[0] == good
    assert certified[1] >= good
    assert (certified < broken).all()


def test_bisection_over_whole_numbers_ends_at_neighbours() -> None:
    search, _ = search_over([5.0], [9.0], whole=True)
    assert search.threshold(lambda t: bool(t.certified[0]), 1.0, 100.0) == (5.0, 6.0)
    assert search.threshold(lambda t: not t.changed[0], 1.0, 100.0) == (8.0, 9.0)


def test_a_certificate_beyond_a_successful_attack_stops_everything() -> None:
    search, _ = search_over([3.0], [2.0])
    with pytest.raises(mc.SoundnessError, match="contradicts a certificate for a larger set"):
        search.threshold(lambda t: bool(t.certified[0]), 0.5, np.inf)


def test_nothing_certified_at_zero_gives_no_value() -> None:
    search, _ = search_over([-1.0], [np.inf])
    assert search.threshold(lambda t: bool(t.certified[0]), 0.5, np.inf) == (None, 0.0)


def test_the_tolerance_of_a_point_is_certified_and_everything_smaller_too() -> None:
    data, family = mc.two_moons(0), mc.Family("amount", mc.LInf(1.0))
    found = mc.tolerance(NETWORK, data, family, TRAINING, share=0.8, points=[5], start=0.05, precision=0.2)
    assert found.largest is not None
    assert found.smallest is not None
    assert found.largest < found.smallest
    for value in (found.largest, 0.5 * found.largest):
        run = mc.certify_training(NETWORK, data, mc.LInf(value), TRAINING, attacked=False)
        assert run.test is not None
        assert run.test.certification_rate() >= 0.8
        if value <= found.certified[5]:
            assert run.test.certified[5]
    attacked = mc.certify_training(NETWORK, data, mc.LInf(found.broken[5]), TRAINING)
    assert attacked.test is not None
    assert not attacked.test.certified[5]
    assert found.table().shape == (200, 2)


@pytest.mark.parametrize("vary", ["rows", "flips"])
def test_the_tolerance_in_rows_and_flips_is_a_whole_number(vary: str) -> None:
    family = mc.Family(vary, None if vary == "flips" else mc.LInf(0.5))
    found = mc.tolerance(
        mc.Network.mlp([2, 1]), mc.two_moons(0), family, mc.Training(epochs=2, loss="cross-entropy"), share=0.7
    )
    assert found.largest is not None
    assert found.largest == int(found.largest)
    assert found.largest < (found.smallest or np.inf)


def test_rows_are_varied_beside_missing_values() -> None:
    data = mc.Dataset.from_frame(frame(), "ill")
    family = mc.Family("rows", mc.LInf({"age": 1.0}) & mc.Missing())
    small, large = (family(k).bind(data).hull() for k in (0, 2))
    assert (large.x_low <= small.x_low).all()
    assert (small.x_high <= large.x_high).all()
    assert (small.x_high > small.x_low).any()
    with pytest.raises(UserError, match="Only missing values are in doubt"):
        mc.Family("rows", mc.Missing())(1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"share": 1.5}, "share of test points must be"),
        ({"points": [500]}, "numbered from 0 to 199"),
        ({"within": 1.0}, "classes are certain or not"),
        ({"start": 0.0}, "first value tried must be a finite number > 0"),
    ],
)
def test_tolerance_refuses_what_makes_no_sense(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        mc.tolerance(NETWORK, mc.two_moons(0), mc.Family("flips"), TRAINING, **change)


def poisoned() -> mc.Split:
    """Ten rows whose values are in great doubt among ninety that are not: they must be the ones to blame."""
    return mc.two_moons(0)


def test_blame_finds_the_rows_that_are_in_doubt_and_the_second_run_proves_it() -> None:
    data, suspects = poisoned(), [4, 17, 33, 52, 71]
    threat = mc.LInf(1.5, rows=suspects) & mc.LInf(0.001)
    run = mc.certify_training(NETWORK, data, threat, TRAINING)
    found = mc.blame(run, top=5)
    assert sorted(found.fixed) == suspects
    assert found.rows["effect"].sum() == pytest.approx(100.0)
    assert found.rows["effect"].is_monotonic_decreasing
    assert found.before is not None
    assert found.after is not None
    assert found.after > found.before
    rest = mc.certify_training(
        NETWORK, data, mc.LInf(0.001, rows=[i for i in range(100) if i not in suspects]), TRAINING
    )
    assert rest.test is not None
    assert found.after == rest.test.certified.sum()
    assert f"{found.after - found.before} more predictions become certain" in found.sentence


def test_effects_add_up_to_what_the_worst_dataset_takes_from_the_margin() -> None:
    """For one point: the cells' effects, before they are turned into shares, are the support of the linear part."""
    from mibp_cert.certify.predict import margin_pairs
    from mibp_cert.engines import Inputs
    from mibp_cert.engines.relational import linear_part, states_of
    from mibp_cert.studies.blame import _taken

    for threat in (mc.LInf(0.2), mc.L2(0.3), mc.LabelFlips(), mc.LInf(0.1) & mc.LabelFlips()):
        run = mc.certify_training(NETWORK, mc.two_moons(0), threat, TRAINING, attacked=False)
        (state,) = states_of(run.bounds)
        pairs, _ = margin_pairs(run.network)
        inputs = Inputs(np.array([[0.5, 0.25]]))
        _, linear = linear_part(lambda n, p=pairs: NETWORK.margin_graph(n, p), NETWORK.layout, state, inputs)
        g = linear.data[0, 0]
        lowest = sum(float(block.support(g[block.symbols])[0]) for block in state.noise.blocks)
        assert _taken(state, g).sum() == pytest.approx(-lowest, rel=1e-9)


def test_blame_names_labels_cells_and_budgets() -> None:
    data = mc.two_moons(0)
    run = mc.certify_training(
        NETWORK, data, mc.Budget(mc.LInf(0.8), rows=3) & mc.LabelFlips(1), TRAINING, attacked=False
    )
    found = mc.blame(run, verified=False)
    assert set(found.cells["column"]) == {"0", "1", "(label)"}
    assert "not verified" in found.sentence
    assert len(found.rows) == 100


def test_blame_of_nothing_is_empty() -> None:
    run = mc.certify_training(NETWORK, mc.two_moons(0), mc.LInf(1e-6), TRAINING, attacked=False)
    assert run.test is not None
    assert run.test.certified.all()
    assert mc.blame(run).rows.empty


@pytest.mark.parametrize(
    ("engine", "points", "words"),
    [("interval", None, "run the engine 'relational'"), ("relational", [999], "numbered from 0 to 199")],
)
def test_blame_refuses_what_it_cannot_answer(engine: str, points: Any, words: str) -> None:
    run = mc.certify_training(NETWORK, mc.two_moons(0), mc.LInf(0.1), TRAINING, engine, attacked=False)
    with pytest.raises(UserError, match=words):
        mc.blame(run, points)


def test_compare_puts_engines_and_threats_side_by_side() -> None:
    threats = {"small": mc.LInf(0.01), "large": mc.LInf(0.2)}
    found = mc.compare(NETWORK, mc.two_moons(0), threats, TRAINING, ("interval", "relational"))
    assert found.shape[0] == 4
    wide = found["radius"].unstack("engine")
    assert (wide["relational"] <= wide["interval"]).all()
    assert (found["certified"] <= found["attacked"]).all()
    assert (found["attacked"] <= found["clean"]).all()
    assert (found.loc["large", "certified"] <= found.loc["small", "certified"]).all()


def test_compare_shows_engines_that_diverge() -> None:
    training = mc.Training(epochs=3, batch_size=10, learning_rate=50.0)
    found = mc.compare(
        mc.Network.mlp([2, 4, 2]), mc.two_moons(0), mc.LInf(5.0), training, ("interval",), attacked=False
    )
    assert found["diverged"].all()
    assert (found["certified"] == 0).all()
