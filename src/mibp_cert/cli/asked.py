"""What was asked for, and the command line that would ask for it again, changed here and there."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

PROGRAM = "mibp-cert"
CERTIFY = "certify"
"""The command that knows every flag."""
OF_CERTIFY = ("questions", "ensemble")
"""Sections that the other commands have no flags for."""
Sections = dict[str, dict[str, Any]]
Changes = Mapping[str, Any]
"""Keys of the configuration with other values; None: leave it out."""


class Asked(Sections):
    """A merged configuration that remembers what was said beside its file, key by key, and the file."""

    def __init__(
        self, config: Sections, said: Mapping[str, Mapping[str, Any]] | None = None, file: Path | None = None
    ) -> None:
        super().__init__(config)
        self.file = file
        self.said = {f"{section}.{key}": value for section, keys in (said or {}).items() for key, value in keys.items()}

    def command(self, name: str, changes: Changes | None = None, **options: Any) -> str:
        """The command `name` with the user's own arguments, other values for some keys, and `options` of its own.

        >>> asked = Asked({}, {"data": {"source": "my data.csv", "target": "ill"}, "threat": {"eps": "age=1"}})
        >>> asked.command("certify", {"threat.eps": "age=0.5", "attack.enabled": False}, parts=True)
        "mibp-cert certify 'my data.csv' --target ill --eps age=0.5 --no-attack --parts"
        """
        from mibp_cert.config import flag_of

        said = {**self.said, **(changes or {})}
        source = said.pop("data.source", None)
        words = [PROGRAM, name, *([] if source is None else [str(source)])]
        words += [] if self.file is None else ["--config", str(self.file)]
        for key, value in said.items():
            if name == CERTIFY or key.partition(".")[0] not in OF_CERTIFY:
                words += _given(flag_of(key), value)
        for option, value in options.items():
            words += _given(f"--{option.replace('_', '-')}", value)
        return shlex.join(words)


def _given(flag: str, value: Any) -> Iterator[str]:
    """A flag with its value: switched on or off, repeated for a list, and nothing for None."""
    if isinstance(value, bool):
        yield flag if value else flag.replace("--", "--no-", 1)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _given(flag, entry)
    elif value is not None:
        text = str(value)
        yield from [f"{flag}={text}"] if text.startswith("-") else [flag, text]
