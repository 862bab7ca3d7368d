"""Questions beyond the class, asked of one run together: what the command line and the JSON file know of postconditions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mibp_cert.certify.run import CertifiedRun
from mibp_cert.data import Split, Task
from mibp_cert.errors import UserError
from mibp_cert.questions.collective import collective
from mibp_cert.questions.properties import Verdict, fair, monotone


@dataclass(frozen=True)
class Questions:
    """About the test points: a margin of at least `margin`; the same class whatever a `protected` column is; outputs that only
    rise (or fall) with a column; and how many predictions can flip at once."""

    margin: float | None = None
    protected: tuple[str, ...] = ()
    rising: tuple[str, ...] = ()
    falling: tuple[str, ...] = ()
    collective: bool = False

    def check(self, data: Split, *, test_threat: bool = False) -> None:
        """Refuse before any work is done what these data cannot answer; `test_threat`: the test inputs may be wrong, too."""
        if self.collective and test_threat:
            raise UserError("Joint flips are about one training dataset; leave out the noise of the test inputs.")
        for name in (*self.protected, *self.rising, *self.falling):
            data.train.column(name)
        for name in (*self.rising, *self.falling):
            if data.train.columns[data.train.column(name)].categories is not None:
                raise UserError(f"The column '{name}' is categorical; only numbers can rise or fall.")
        if data.train.task is Task.NUMBERS and (self.margin is not None or self.protected or self.collective):
            raise UserError(
                "Margins, protected columns and joint flips are about classes; these data have real targets."
            )
        if self.margin is not None and not self.margin >= 0:
            raise UserError(f"The margin asked for must be a number ≥ 0, got {self.margin}.")

    def ask(self, run: CertifiedRun) -> dict[str, Any]:
        """The answers as plain data, counts over the test points."""
        if run.data.test is None:
            raise UserError("These questions are about test points; the data have none.")
        if not run.reached:
            return {}  # nothing is known about the training asked for
        x, found = run.data.tested.x, dict[str, Any]()
        if self.margin is not None:
            inputs = run.certify_inputs(run.test_inputs(), margin=self.margin)
            found["margin"] = {
                "at_least": self.margin,
                "certification_rate": inputs.certification_rate(),
                "certified_accuracy": inputs.certified_accuracy(run.data.tested.y),
            }
        if self.protected:
            found["protected"] = {name: _count(fair(run, x, name).verdicts) for name in self.protected}
        for name, columns, rising in (("rising", self.rising, True), ("falling", self.falling, False)):
            if columns:
                found["output"] = _output(run)
                found[name] = {column: _count(monotone(run, x, column, rising=rising)) for column in columns}
        if self.collective:
            found["collective"] = collective(run).to_json()
        return found


def _output(run: CertifiedRun) -> str:
    """What rises or falls, in words."""
    if run.train.task is Task.NUMBERS:
        return "output"
    classes = run.train.classes
    return f"lead of class {classes[-1]!r} over {classes[0]!r}"


def _count(verdicts: list[Verdict]) -> dict[str, int]:
    return {verdict.name.lower(): verdicts.count(verdict) for verdict in Verdict}


def describe(answers: dict[str, Any]) -> list[str]:
    """The answers in sentences."""
    lines = []
    if "margin" in answers:
        a = answers["margin"]
        lines.append(
            f"Margin of at least {a['at_least']:g}: certified for {100 * a['certification_rate']:.1f} % of the test points, "
            f"certified and correct for {100 * a['certified_accuracy']:.1f} %."
        )
    output = answers.get("output", "output")
    output = f"{output[0].upper()}{output[1:]}"
    words = (
        ("protected", "Same class whatever", " is"),
        ("rising", f"{output} only rises with", ""),
        ("falling", f"{output} only falls with", ""),
    )
    for kind, before, after in words:
        for column, a in answers.get(kind, {}).items():
            count = f"holds for {a['holds']} test points, fails for {a['fails']}, open for {a['open']}"
            lines.append(f"{before} '{column}'{after}: {count}.")
    if "collective" in answers:
        a = answers["collective"]
        # Bounds that meet leave one number, also where not every member was tried.
        known = a["exact"] or a["reached"] == a["proven"]
        count = f"exactly {a['reached']}" if known else f"at least {a['reached']} and at most {a['proven']}"
        lines.append(
            f"Flips at once: {count} of {a['points']} test predictions under one dataset; {a['single']} are not certified one "
            "by one."
        )
    return lines
