"""What may be wrong, said shortly: the flags of the command line, and the keys of the section `threat` of a configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mibp_cert.data import Dataset
from mibp_cert.errors import UserError
from mibp_cert.threats import Catalogued, nearest, threat_from_json
from mibp_cert.threats.rows import is_target

SHORT = {
    "flips": ("label-flips", "at_most"),
    "removed": ("removed", "at_most"),
    "target_eps": ("target-noise", "eps"),
    "arbitrary": ("arbitrary", "at_most"),
    "missing": ("missing", "columns"),
}
"""Short keys of the section `threat`, the kind that each stands for, and the entry there."""
NAMED = ("missing", "any_category")
"""Short keys that name columns."""
EASY = ("eps", "rows", "any_category", *SHORT, "added", "added_range")
"""Keys of the section `threat` that the command line knows; a `kind` says everything else."""


def threat_of(section: Mapping[str, Any], train: Dataset, keys: Sequence[str] = EASY) -> Catalogued:
    """What a section says: its `kind`, or short keys that stand for several kinds at once: noise of cells and wrong categories
    (in all rows or in a few), wrong labels, noise of the targets, values that are missing, and rows that come or go.

    `eps`: one number for every numeric column, or one for each, in its units or in per cent of the value.

    >>> from mibp_cert import two_moons
    >>> threat_of({"eps": "0=1,1=5%"}, two_moons(0).train).to_json()["threats"][1]
    {'kind': 'linf', 'eps': {'1': 0.05}, 'relative': True}
    """
    if "kind" in section:
        return threat_from_json(section)
    for key in section:
        if key not in keys:
            raise UserError(f"[threat] has no key {key!r}; {nearest(key, ['kind', *keys])}")
    said = {key: value for key, value in section.items() if value not in (None, (), [])}
    said |= {key: column_names(key, said[key]) for key in NAMED if key in said}
    if not said:
        raise UserError(
            "Say what may be wrong with the data: --eps, --missing, --any-category, --flips, --removed, --added, or [threat] in "
            "a configuration."
        )
    parts = _noise(said["eps"]) if "eps" in said else []
    if "any_category" in said:
        parts.append({"kind": "any-category", "columns": said["any_category"]})
    if "rows" in said:
        if not parts:
            raise UserError("--rows limits how many rows are off: say by how much with --eps, or name --any-category.")
        parts = [{"kind": "budget", "threat": {"kind": "all", "threats": parts}, "rows": said["rows"]}]
    found = {**said, "missing": _with_gaps(said.get("missing", ()), train)}
    parts += [{"kind": kind, entry: found[key]} for key, (kind, entry) in SHORT.items() if found.get(key)]
    if "added_range" in said and not said.get("added"):
        raise UserError("--added-range says what lost rows are like: say how many there may be, such as --added 1.")
    if said.get("added"):
        domain = _domain(said.get("added_range", {}), train)
        parts.append({"kind": "added", "at_most": said["added"], "domain": domain})
    if "missing" in said and not parts:
        raise UserError("No training row has a missing value in the columns named; say what else may be wrong.")
    return threat_from_json({"kind": "all", "threats": parts})


def column_names(key: str, given: Any) -> list[str]:
    """The columns that a short key names: one, or several.

    >>> column_names("missing", "all"), column_names("missing", None)
    (['all'], [])
    """
    names = [] if given is None else [given] if isinstance(given, str) else given
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise UserError(
            f'[threat] {key} takes the name of a column, or a list of such as ["age", "mood"]; got {given!r}.'
        )
    return list(names)


def named_columns(section: Mapping[str, Any]) -> list[str]:
    """The columns that short keys speak of by name."""
    eps = section.get("eps")
    amounts = list(eps) if isinstance(eps, Mapping) else []
    if isinstance(eps, str):
        amounts = [part.rpartition("=")[0].strip() for part in eps.split(",")]
    return [*map(str, amounts), *(name for key in NAMED for name in column_names(key, section.get(key)))]


def for_columns(eps: Any, value: str) -> str:
    """The amount `value` for the columns that `eps` names; as it is where `eps` names none, or `value` does.

    >>> for_columns("age=1,income=5%", "2%"), for_columns("age=1", "income=2"), for_columns(0.1, "2%")
    ('age=2%,income=2%', 'income=2', '2%')
    """
    names = [] if "=" in value else [name for name in named_columns({"eps": eps}) if name]
    return ",".join(f"{name}={value}" for name in names) or value


def _noise(eps: str | float | Mapping[str, Any]) -> list[dict[str, Any]]:
    """`0.1`, `5%`, or `age=1,income=5%`."""
    if not isinstance(eps, str):
        return [{"kind": "linf", "eps": eps}]
    if any(":" in part and "=" not in part for part in eps.split(",")):
        raise UserError(f"--eps takes columns with numbers joined by =, such as {eps.replace(':', '=')}; got {eps!r}.")
    if "=" not in eps:
        amount, share = _amount(eps)
        return [{"kind": "linf", "eps": amount, "relative": share}]
    amounts: dict[bool, dict[str, float]] = {False: {}, True: {}}
    for part in eps.split(","):
        name, sign, value = part.rpartition("=")
        if not sign or not name.strip():
            raise UserError(f"--eps takes a number, or columns with numbers such as age=1,income=5%; got {eps!r}.")
        amount, share = _amount(value)
        amounts[share][name.strip()] = amount
    return [{"kind": "linf", "eps": found, "relative": share} for share, found in amounts.items() if found]


def _amount(text: str) -> tuple[float, bool]:
    share = text.strip().endswith("%")
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        raise UserError(f"--eps takes numbers such as 0.1 or 5%, got {text!r}.") from None
    return (value / 100.0, True) if share else (value, False)


def _domain(given: Any, train: Dataset) -> Any:
    """`age=18:99,mood=good:bad`, or a table of the same: ends of numbers, and categories."""
    if not isinstance(given, str):
        return given
    found: dict[str, Any] = {}
    for part in given.split(","):
        name, sign, value = (word.strip() for word in part.rpartition("="))
        ends = [end.strip() for end in value.split(":")]
        if not sign or not name or not all(ends):
            raise UserError(
                f"--added-range takes columns with their ends or categories, such as age=18:99,mood=good:bad; got {given!r}."
            )
        column = None if is_target(train, name) else train.columns[train.column(name)]
        if column is not None and column.categories is not None:
            known = {str(category): category for category in column.categories}
            found[name] = [known.get(end, end) for end in ends]
        else:
            found[name] = _numbers(name, ends)
    return found


def _numbers(name: str, ends: Sequence[str]) -> list[float]:
    try:
        low, high = map(float, ends)
    except ValueError:
        raise UserError(
            f"--added-range takes two numbers for the column '{name}', such as {name}=18:99; got {':'.join(ends)!r}."
        ) from None
    return [low, high]


def _with_gaps(names: Sequence[str], train: Dataset) -> list[str]:
    """Those of the columns named (or of all) that have missing values."""
    for name in names:
        if name != "all":
            train.column(name)  # refuses a column that does not exist
    gaps = train.missing
    known = [c.name for j, c in enumerate(train.columns) if gaps is not None and gaps[:, j].any()]
    return known if "all" in names else [name for name in names if name in known]
