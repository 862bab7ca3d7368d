"""The table of configuration keys in docs/cli.md, made from the package: `python docs/keys.py` writes it there.

A key that has a flag is described by the flag's help; the others by `WORDS`. A key without words is an error.
"""

from __future__ import annotations

import math
import typing
from pathlib import Path
from typing import Any

from mibp_cert.cli import ENSEMBLE, FLAGS, MODEL
from mibp_cert.config import defaults

PAGE = Path(__file__).parent / "cli.md"
START, STOP = "<!-- keys: start -->", "<!-- keys: stop -->"
FREE = {
    "threat": (
        "Either the short keys `eps`, `missing`, `any_category`, `rows`, `flips`, `removed`, `added`, `added_range`, "
        "`arbitrary`, `target_eps`, which are those of the flags, or a `kind` with its own keys "
        "(see [What may be wrong](threats.md))."
    ),
    "test_threat": "What may be wrong with the test inputs: `eps`, or a `kind` with its own keys.",
}
ALL = MODEL | FLAGS | ENSEMBLE
WORDS = {
    "model.fit_intercept": "Whether a fitted model has an intercept.",
    "model.penalise_intercept": "Whether its intercept is penalised, too, as `LinearSVC` does.",
    "model.class_weight": "How much the rows of each class count: a table of classes and weights, or `balanced`.",
    "data.source": "The file or the name of a built-in data set; the argument of the commands.",
    "data.categorical": "Columns to be taken as categories.",
    "data.drop": "Columns to be left out.",
    "data.keep": "Columns that stay, though they only count the rows.",
    "data.na": "Further texts that stand for a missing value.",
    "select.least_steps": "Smallest number of steps that `best-validation` may choose.",
    "select.least_accuracy": "Smallest clean validation accuracy that `best-validation` takes; default: above the baseline.",
    "select.per_step": "Whether any step may be chosen, not only the last one of an epoch.",
    "solver.floor": "Radius below which the gap is measured absolutely.",
    "relational.cases": "A row budget with at most so many choices of rows is split into one set for each choice.",
    "attack.members": "Random datasets that are tried.",
    "attack.points": "Test points attacked along the linear part of the bound.",
    "attack.parameters": "Parameters pushed both ways.",
    "attack.rounds": "Rounds of improvement.",
    "attack.tries": "Datasets in each round.",
    "attack.seed": "Seed of the attack.",
    "questions.margin": "Which classes lead by at least this much? (`--margin`)",
    "questions.protected": "Is the class the same whatever these columns are? (`--protected`)",
    "questions.rising": "Does the last class's lead, or the output, only rise with these columns? (`--rising`)",
    "questions.falling": "Does it only fall with them? (`--falling`)",
    "questions.collective": "How many predictions can flip at once? (`--collective`)",
}


def _flag(name: str) -> tuple[str, str]:
    """The flag of one entry of `ALL`, and its help."""
    option: Any = next(m for m in typing.get_args(ALL[name][1]) if hasattr(m, "help"))
    given = (option.default, *(option.param_decls or ()))  # typer keeps the first name apart
    declared = next((text for text in given if isinstance(text, str) and text.startswith("--")), None)
    return declared or f"--{name.replace('_', '-')}", str(option.help)


def _value(value: Any) -> str:
    """A default as TOML would have it."""
    if value is None:
        return "–"
    if isinstance(value, float) and math.isinf(value):
        return "no limit"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return "`[]`" if value == () else f'`"{value}"`' if isinstance(value, str) else f"`{value:g}`"


def tables() -> str:
    """One table for every section."""
    by_key = {key: name for name, (key, _) in ALL.items()}
    out = []
    for section, values in defaults().items():
        out.append(f"### `[{section}]`\n")
        if section in FREE:
            out.append(f"{FREE[section]}\n")
        else:
            out.append("| key | default | flag | meaning |\n|---|---|---|---|")
        for key, default in values.items():
            place = f"{section}.{key}"
            flag, words = _flag(by_key[place]) if place in by_key else ("", "")
            words = WORDS.get(place, words)
            if not words:
                raise SystemExit(f"The key {place} has no flag: describe it in WORDS of docs/keys.py.")
            shown = f"`{flag}`" if flag else "–"
            out.append(f"| `{key}` | {_value(default)} | {shown} | {words.replace('|', chr(92) + '|')} |")
        out.append("")
    return "\n".join(out).strip()


def main() -> None:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    _, _, after = rest.partition(STOP)
    PAGE.write_text(f"{before}{START}\n\n{tables()}\n\n{STOP}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
