"""The checker of steps against models that are really trained, and against wrong rules of its own."""

from __future__ import annotations

import sys
import types
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checked_trained import NETS, OTHERS, outside, scenario
from mibp_cert.check import cells, ranges, said, steps
from mibp_cert.check.ranges import BITS, ONE, Range


@pytest.mark.parametrize("name", [*NETS, *OTHERS])
def test_models_that_are_really_trained_lie_in_the_ranges_and_in_the_boxes_that_are_proven(name: str) -> None:
    found = scenario(name)
    assert replace(found.run, result=None).prove().failed == ""
    assert not found.escaped(steps, cells)
    for number, box in found.run.sets.items():
        for model in found.models:
            assert not outside(model[number - 1], box["lower"], box["upper"], 1)


@pytest.mark.parametrize("name", ["linear hinge", "labels", "shares"])
def test_the_first_step_of_a_linear_model_is_reached_up_to_its_ends(name: str) -> None:
    """The ranges are no larger than they must be: what is not allowed for is noticed."""
    found = scenario(name)
    box = found.run.sets[1]
    reached = np.array([[float(v) for v in model[0]] for model in found.models])
    width = box["upper"] - box["lower"]
    assert ((reached.max(axis=0) - reached.min(axis=0)) >= 0.4 * width - 1e-12).any()


def arithmetic_holds(ranges: Any) -> bool:
    """Every operation contains what it does to corners and points inside, in fractions; ends are exact where they can be."""
    rng = np.random.default_rng(4)
    one = Fraction(1, ONE)

    def members(r: Any) -> list[Any]:
        low, high = (np.frompyfunc(lambda v: v * one, 1, 1)(end) for end in (r.low, r.high))
        return [low, high, (low + high) / 2, np.where(rng.random(low.shape) < 0.5, low, high)]

    def inside(r: Any, value: Any) -> bool:
        return bool(((value >= r.low * one) & (value <= r.high * one)).all())

    for _ in range(20):
        # thirds have no end in binary, so that products are rounded
        ends = [np.sort(rng.integers(-50, 50, size=(2, 3, 3)), axis=0) * Fraction(1, 3) for _ in range(2)]
        a, b = (ranges.Range.of(low, high) for low, high in ends)
        third = Fraction(int(rng.integers(-3, 4)), 3)
        for p in members(a):
            singles = [
                (-a, -p),
                (a.times(third), third * p),
                (a.clip(0), np.maximum(p, 0)),
                (a.clip(-ONE // 2, ONE // 2), np.minimum(np.maximum(p, -Fraction(1, 2)), Fraction(1, 2))),
                (a.gate(closed=True), (p >= 0).astype(int)),
                (a.gate(closed=False), (p > 0).astype(int)),
            ]
            pairs = [
                pair for q in members(b) for pair in ((a + b, p + q), (a - b, p - q), (a * b, p * q), (a @ b, p @ q))
            ]
            if not all(inside(r, value) for r, value in singles + pairs):
                return False
    zero = ranges.Range.of([0.0], [0.0])
    return bool(zero.gate(closed=True).low[0] == ONE and zero.gate(closed=False).high[0] == 0)


MUTANTS: list[tuple[str, str, str]] = [
    ("ranges", "return Range(-self.high, -self.low)", "return Range(-self.low, -self.high)"),
    ("ranges", "(self.low, self.high) if n >= 0 else (self.high, self.low)", "(self.low, self.high)"),
    ("ranges", "-(-high * n // d)", "high * n // d"),
    ("ranges", "-(-self.high >> BITS)", "self.high >> BITS"),
    (
        "ranges",
        "for a in (self.low, self.high) for b in (other.low, other.high)]",
        "for a, b in ((self.low, other.low), (self.high, other.high))]",
    ),
    ("ranges", "np.maximum(end, least)", "end"),
    ("ranges", "np.minimum(end, most)", "end - end"),
    ("ranges", "end >= 0 if closed else end > 0", "end > 0"),
    ("ranges", "end >= 0 if closed else end > 0", "end >= 0"),
    ("ranges", "end >= 0 if closed else end > 0", "end < 0"),
    ("ranges", "return _outward(first, last)", "return _outward(first, first)"),
    ("ranges", "nearest = np.minimum(np.maximum(a.low, 0), a.high)", "nearest = a.low"),
    ("ranges", "return _outward(at(low, high), at(high, low))", "return _outward(at(low, low), at(high, high))"),
    ("ranges", "1 / (1 + sum(powers))", "1 / sum(powers)"),
    (
        "ranges",
        "lambda a, s: a.gate(closed=False)),",
        "lambda a, s: Range.of(np.ones(a.low.shape), np.ones(a.low.shape))),",
    ),
    ("ranges", '"ReLU": (lambda a, s: a.clip(0),', '"ReLU": (lambda a, s: a,'),
    ("ranges", "a.times(s) + a.clip(0).times(1 - s)", "a.clip(0)"),
    ("ranges", "a.gate(closed=False).times(1 - s) + Range.of(s, s)", "a.gate(closed=False)"),
    ("ranges", "1 / (2 * (x / 2).cosh()) ** 2", "1 / (2 * x.cosh()) ** 2"),
    ("ranges", "x.exp().log1p()", "x.exp()"),
    ("ranges", "1 / x.cosh() ** 2", "1 / x.cosh()"),
    ("ranges", "reduce(np.minimum, low), reduce(np.maximum, high)", "low[0], high[0]"),
    ("cells", "amount * share / scale", "amount * share / scale / 2"),
    ("cells", "amount * share / scale", "amount * share / scale**2"),
    ("cells", "for amount in amounts]", "for amount in amounts[::-1]]"),
    ("cells", 'if how.get("relative") else', "if False else"),
    ("said", "(column, to / 2, to / 2)", "(column, to / 4, to / 4)"),
    ("said", 'for end in ("down", "up"))', 'for end in ("up", "down"))'),
    ("cells", "self.labels |= ", "self.labels = self.labels & "),
    ("cells", "lost[rows, j], place = True", "rows, place = rows & False"),
    ("cells", "options[reported[row]]]] = True", "options[reported[row]]]] = False"),
    ("said", "order[i + by : i + by + 1]", "order[i : i + 1]"),
    ("cells", "max(value - reach[0], least)", "max(value - reach[0], least + 1)"),
    ("cells", "rows & where(self.data, threat))", "rows & ~where(self.data, threat))"),
    ("said", '">=": operator.ge', '">=": operator.gt'),
    ("cells", "_move(self.targets, self.data.targets[:, 0], 0, column, (eps, eps), rows)", "eps = 0"),
    ("steps", "Fraction(1, len(rows))", "Fraction(1)"),
    ("steps", "- mean.times(rate)", "+ mean.times(rate)"),
    ("steps", "theta.times(1 - rate * self.decay)", "theta"),
    ("steps", "+ theta.times(self.decay)", ""),
    ("steps", "velocity.times(self.momentum) + mean", "mean"),
    ("steps", "kept - velocity.times(rate * self.momentum)", "kept"),
    ("steps", "mean = mean.clip(-limit, limit)", "pass"),
    ("steps", "else order[start : start + size]", "else order[:size]"),
    ("steps", "rng.permutation(n)", "np.arange(n)"),
    ("steps", "Fraction(rate_of(training, epoch))", "Fraction(rate_of(training, 0))"),
    ("steps", '[training["seed"], 1]', '[training["seed"], 2]'),
    ("steps", "y = Fraction(2 * label - 1)", "y = Fraction(1 - 2 * label)"),
    ("steps", "o.times(y)).times(-y)", "o.times(y)).times(y)"),
    ("steps", "Range.of(1.0, 1.0) - o.times(y)", "Range.of(0.0, 0.0) - o.times(y)"),
    ("steps", "Range.of(1.0, 1.0) + (o - own)", "Range.of(1.0, 1.0) - (o - own)"),
    ("steps", "return push - total.map(lambda end: np.where(others, 0, end))", "return push"),
    ("steps", "smooth(o, sigmoid) if", "o if"),
    ("steps", "shares(o)) - wanted", "shares(o)) + wanted"),
    ("steps", "(o - wanted).times(Fraction(2))", "(o - wanted)"),
    ("steps", "off.clip(-ONE, ONE)", "off"),
    ("steps", 'slack.gate(closed=True) if self.loss == "hinge"', "slack.gate(closed=True) if True"),
    ("steps", "slack.clip(0).times(Fraction(2))", "slack.clip(0)"),
    ("steps", "* upstream\n", "\n"),
    (
        "steps",
        "found.append(upstream.map(lambda end: end.sum(axis=0)))",
        "found.append(upstream.map(lambda end: end[0]))",
    ),
    ("steps", "x = x if bias is None else x + bias", "pass"),
]


@pytest.mark.parametrize("number", range(len(MUTANTS)), ids=lambda number: f"{MUTANTS[number][0]}-{number}")
def test_a_wrong_rule_of_the_checker_is_noticed(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a model that is really trained and leaves its ranges, or by an operation that leaves out a member."""
    whose, old, new = MUTANTS[number]
    made: dict[str, Any] = {}
    for original in (ranges, said, cells, steps):
        name = original.__name__
        assert original.__file__ is not None
        source = Path(original.__file__).read_text()
        if name.endswith(f".{whose}"):
            assert old in source
            source = source.replace(old, new, 1)
        made[name.rsplit(".", 1)[1]] = module = types.ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        exec(compile(source, name, "exec"), module.__dict__)
    order = (*OTHERS, *NETS) if whose in ("said", "cells") else (*NETS, *OTHERS)
    assert not arithmetic_holds(made["ranges"]) or any(left(made, name) for name in order)


def left(made: dict[str, Any], name: str) -> bool:
    """Does some model leave the ranges of a mutant, or do its shapes not even fit?"""
    known = scenario(name)
    try:
        return known.escaped(made["steps"], made["cells"])
    except (ValueError, TypeError, IndexError, made["cells"].NotProven):
        return True


def test_the_rules_of_the_arithmetic_hold() -> None:
    assert BITS >= 128
    assert arithmetic_holds(ranges)


def test_ranges_are_read_outward_and_boxes_inward() -> None:
    tiny = 2.0 ** -(BITS + 10)
    assert [int(end[0]) for end in (Range.of([tiny], [tiny]).low, Range.of([tiny], [tiny]).high)] == [0, 1]
    assert [int(v) for v in (ranges.ceilings(tiny), ranges.floors(tiny))] == [1, 0]
