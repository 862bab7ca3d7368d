"""How a case of each kind is made of what is accepted, carried out, and judged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

import fuzz_mutate as mutate
from cases import ROWS as COMING
from cases import THREATS, survey
from forged_runs import Folder
from fuzz_accepted import KEPT, LATER, PROVEN, QUICK, TABLES, TOML, World, text
from fuzz_judge import ENDS, Fault, command, limited, sensible, strict
from fuzz_mutate import Rng, often, some
from mibp_cert import AttackSettings, Fitted, Network, Split, Training, certify_fit, certify_training, load_run
from mibp_cert.check.file import read_certificate, write_certificate
from mibp_cert.cli import app
from mibp_cert.config import SECTIONS
from mibp_cert.errors import Diverged, MibpCertError
from mibp_cert.store.npz import digest, opened, sealed
from mibp_cert.threats import threat_from_json


def _told(path: Path, rows: int | None = None) -> None:
    """The JSON that a command wrote, if it wrote one, holds together."""
    if path.exists():
        sensible(strict(path.read_text(encoding="utf-8")), rows)


# The six kinds --------------------------------------------------------------------------------------------------------------


def table(world: World, rng: Rng, folder: Path) -> str:
    """A table of which cells, rows, columns or bytes are others; what is certified of it is checked, verified or shown."""
    name = some(rng, list(TABLES))
    given, more = TABLES[name], list[str]()
    cells = mutate.repeated(mutate.cells, rng, given.cells)
    content = text(cells, given.separator).encode()
    if often(rng, 0.25):
        content = mutate.repeated(mutate.octets, rng, given.content.encode())
    file, flags = folder / "table.csv", given.flags
    file.write_bytes(content)
    if often(rng, 0.1):  # the rows to be tested are the others
        flags = (*flags, "--test-file", str(file))
        source = world.file(name)
    else:
        source = file
    then = some(rng, ("", "", "", "", "check", "verify", "report"))
    if then == "check" and name in PROVEN:
        more = ["--certificate", "table.cert"]
    elif then == "verify" and name in KEPT:
        more = ["--run", "run"]
    elif then == "report" and "--ensemble" not in flags:
        more = ["--report", "page.html"]
    status, said = command("certify", source, *flags, *world.quick, "--json", "out.json", *more)
    if status == 0:
        _told(folder / "out.json", max(content.count(b"\n"), content.count(b"\r")) + 30)
        tests = ["--test-file", file] if source != file else []
        if Path("table.cert").exists() and command("check", "table.cert", "--data", source, *tests)[0] != 0:
            raise Fault(f"an honest certificate is refused: {said}")
        if Path("run").exists() and command("verify", "run", "--points", "1", "--parameters", "1")[0] not in (0, 4):
            raise Fault(f"an honest run is called wrong: {said}")
    return ENDS[status]


LITERALS = (
    "nan",
    "-inf",
    "1e999",
    "0x10",
    "1979-05-27",
    "07:32:00",
    "''",
    "[]",
    "{}",
    "[[1], ['a']]",
    "'''a\nb'''",
    '"\\u001b"',
)


def toml(world: World, rng: Rng, folder: Path) -> str:
    """A configuration of which keys, values or bytes are others."""
    config: dict[str, Any] = {"attack": QUICK, **some(rng, TOML)}
    if often(rng, 0.3):
        section = some(rng, [name for name in SECTIONS if SECTIONS[name]])
        key = some(rng, list(SECTIONS[section]))
        config = {**config, section: {**config.get(section, {}), key: SECTIONS[section][key][1]}}
    if often(rng, 0.8):
        config = mutate.repeated(mutate.plain, rng, config)
    config = _local(config)
    content = written(config, rng)
    if often(rng, 0.15):
        content = mutate.octets(rng, content)
    Path("c.toml").write_bytes(content)
    status, _ = command("certify", world.file("noise"), "--config", "c.toml", "--json", "out.json")
    if status == 0:
        _told(folder / "out.json", 30)
    return ENDS[status]


def _local(config: Any) -> Any:
    """Nothing is sent to other machines, and no file is read but ours."""
    if isinstance(config, dict) and isinstance(solver := config.get("solver"), dict):
        solver.pop("parallel", None)
        solver.pop("jobs", None)
    return config


def written(config: dict[str, Any], rng: Rng | None = None) -> bytes:
    """Sections as TOML; with a generator, seldom something else."""
    return "".join(_section(name, values, rng) for name, values in config.items()).encode("utf-8", "replace")


def _section(name: str, values: Any, rng: Rng | None) -> str:
    if not isinstance(values, dict):
        return f"{_key(name)} = {_literal(values, rng)}\n"
    return f"[{_key(name)}]\n" + "".join(f"{_key(key)} = {_literal(value, rng)}\n" for key, value in values.items())


def _key(name: str) -> str:
    return json.dumps(str(name))


def _literal(value: Any, rng: Rng | None) -> str:
    if rng is not None and (value is None or often(rng, 0.01)):
        return str(some(rng, LITERALS))
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {_literal(part, rng)}" for key, part in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_literal(part, rng) for part in value) + "]"
    return json.dumps(value).replace("Infinity", "inf").replace("NaN", "nan")


def flags(world: World, rng: Rng, folder: Path) -> str:
    """A command of which flags and values are others."""
    name = some(rng, list(TABLES))
    verb = some(rng, ("certify", "certify", *LATER))
    words = [str(world.file(name)), *TABLES[name].flags, *some(rng, LATER[verb])]
    known = _known(verb)
    words = mutate.repeated(lambda rng, words: mutate.words(rng, words, known), rng, words)
    told = ["--json", "out.json"] if "--json" in known else []
    status, _ = command(verb, *_within(words), *world.quick, *told)
    if status == 0 and verb == "certify":
        _told(folder / "out.json", 30)
    return ENDS[status]


FILES = (
    "--json",
    "--report",
    "--run",
    "--bounds",
    "--witness",
    "--certificate",
    "--csv",
    "--config",
    "--parallel",
    "--jobs",
)
"""Flags that write, start processes, or call other machines."""


def _within(words: list[str]) -> list[str]:
    """Nothing is written outside, also if a word became the value of such a flag."""
    return [word for word in words if not word.startswith(FILES)]


_KNOWN: dict[str, dict[str, list[str]]] = {}


def _known(verb: str) -> dict[str, list[str]]:
    """Flags of a command, with words of their help as values; some of these are the names that the flag takes."""
    if verb not in _KNOWN:
        every: dict[str, list[str]] = {}
        for option in typer.main.get_command(app).commands[verb].params:  # type: ignore[attr-defined]
            for flag in (*option.opts, *option.secondary_opts):
                if flag.startswith("--") and not flag.startswith((*FILES, "--help")):
                    help_ = getattr(option, "help", None) or ""
                    names = [word.strip("().,;:") for word in help_.replace(",", " ").split()]
                    every[flag] = [] if getattr(option, "is_flag", False) else [*names, *mutate.NUMBERS]
        for given in TABLES.values():
            for flag, value in zip(given.flags[::2], given.flags[1::2], strict=True):
                every.get(flag, []).extend([value] * 3)
        _KNOWN[verb] = every
    return _KNOWN[verb]


def threat(world: World, rng: Rng, folder: Path) -> str:
    """A threat of which entries are others, in its typed form; a model is fitted or trained under it."""
    every = {**THREATS, **COMING}
    chosen = every[some(rng, list(every))].to_json()
    while often(rng, 0.3):
        other = every[some(rng, list(every))].to_json()
        chosen = some(
            rng, ({"kind": "all", "threats": [chosen, other]}, {"kind": "budget", "threat": chosen, "rows": 1})
        )
    given = mutate.repeated(mutate.plain, rng, json.loads(json.dumps(chosen)))
    data = survey(12, missing=often(rng, 0.2))
    split, how = Split("survey", data, test=survey(5, 1, missing=False, like=data)), AttackSettings(**QUICK)
    try:
        with limited():
            made = threat_from_json(given)
            if threat_from_json(json.loads(json.dumps(made.to_json(), allow_nan=False))).to_json() != made.to_json():
                raise Fault(f"{given} is read back as another threat than {made.to_json()}")
            if often(rng, 0.7):
                run = certify_fit(split, made, Fitted(C=0.1), attack_settings=how)
            else:
                engine = some(rng, ("interval", "relational", "crown"))
                training = Training(epochs=1, loss="cross-entropy", learning_rate=0.1)
                run = certify_training(
                    Network.mlp([data.features, 2]), split, made, training, engine, attack_settings=how
                )
            said = " ".join([made.words(), str(run.to_json())])
    except Diverged:
        return "no bounds"
    except MibpCertError as error:
        if "not sound" in str(error) or "\n" in str(error):
            raise Fault(f"{given}: {error}") from error
        return "refused"
    except Exception as error:
        raise Fault(f"{given}") from error
    sensible(json.loads(json.dumps(run.to_json(), allow_nan=False)), len(split.tested))
    return "accepted" if said else "refused"


def run(world: World, rng: Rng, folder: Path) -> str:
    """A run directory of which bytes, files, values or arrays are others; seals and hashes of the latter are mended."""
    name = some(rng, list(world.runs))
    shutil.copytree(world.runs[name], folder / "run")
    how = int(rng.integers(10))
    if how <= 3:
        _files(rng, folder / "run")
    elif how <= 4:
        _configuration(rng, folder / "run")
    else:
        _forged(rng, folder / "run")
    verb = some(rng, ("verify", "verify", "verify", "resume", "report", "blame"))
    more: dict[str, tuple[Any, ...]] = {
        "verify": ("--points", "1", "--parameters", "1", "--data", world.file(name)),
        "resume": ("-q",),
        "report": ("page.html",),
        "blame": (),
    }
    status, said = command(verb, "run", *more[verb])
    if status == 0 and verb == "verify":
        found = load_run(folder / "run").to_json()
        sensible(found)
        if found["test"] != world.results[name]["test"]:
            raise Fault(f"an altered result is called right: {said}")
    return ENDS[status]


def _files(rng: Rng, path: Path) -> None:
    files = sorted(place for place in path.rglob("*") if place.is_file())
    one, other = some(rng, files), some(rng, files)
    how = int(rng.integers(6))
    if how == 0:
        one.unlink()
    elif how == 1:
        one.write_bytes(other.read_bytes())
    elif how == 2:
        shutil.copy(one, one.with_name(f"{some(rng, ('000009', '1', 'x'))}{one.suffix}"))
    else:
        one.write_bytes(mutate.octets(rng, one.read_bytes()))


def _configuration(rng: Rng, path: Path) -> None:
    plain = opened(path / "config.json")
    plain["configuration"] = _local(mutate.repeated(mutate.plain, rng, plain["configuration"]))
    _sealed(path / "config.json", plain)


def _sealed(path: Path, plain: Any) -> None:
    try:
        path.write_bytes(sealed(plain))
    except ValueError:  # no JSON holds this
        return


def _forged(rng: Rng, path: Path) -> None:
    found = Folder.read(path)
    how = int(rng.integers(7))
    if how <= 2:
        found.run = mutate.repeated(mutate.plain, rng, found.run)
    elif how == 3 and found.records:
        at = int(rng.integers(len(found.records)))
        changed = mutate.plain(rng, found.records[at])
        found.records[at] = changed if isinstance(changed, dict) else {}
    elif how == 4:
        found.result = mutate.repeated(mutate.plain, rng, found.result)
    else:
        arrays = some(rng, [found.data, found.answers, *found.sets.values()])
        key = some(rng, list(arrays))
        if often(rng, 0.1):
            del arrays[key]
        else:
            arrays[key] = mutate.array(rng, arrays[key])
    try:
        found.write(mended=False)
    except ValueError:  # no JSON holds this
        return
    if (path / "config.json").exists():
        _sealed(path / "config.json", {**opened(path / "config.json"), "run": digest((path / "run.json").read_bytes())})


def certificate(world: World, rng: Rng, folder: Path) -> str:
    """A certificate of which bytes, values or arrays are others; claims that are proven hold for models really fitted."""
    name = some(rng, list(world.proofs))
    path, theta, x = world.proofs[name]
    honest, target, how = read_certificate(path), folder / "one.cert", int(rng.integers(10))
    if how == 0:
        target.write_bytes(mutate.repeated(mutate.octets, rng, path.read_bytes()))
    else:
        entries, arrays = honest.plain, dict(honest.arrays)
        if how <= 4:
            entries = mutate.repeated(mutate.plain, rng, dict(entries))
        else:
            key = some(rng, list(arrays))
            arrays[key] = mutate.array(rng, arrays[key])
        try:
            write_certificate(target, entries, arrays)
        except ValueError:  # no JSON holds this
            return "refused"
    status, said = command("check", target, "--data", world.file(name))
    if status == 0:
        found = read_certificate(target)
        rows, signs, ends = (found.arrays[f"claim_{part}"] for part in ("rows", "signs", "ends"))
        if len(rows) and (rows.min() < 0 or rows.max() >= len(x)):
            raise Fault(f"claims about rows that are not there: {said}")
        same = all(found.plain.get(key) == honest.plain[key] for key in ("data", "threat", "model", "test_threat"))
        if same and (signs[:, None] * (x[rows.astype(int)] @ theta.T) < ends[:, None] - 1e-9).any():
            raise Fault(f"a claim that a fitted model contradicts is called proven: {said}")
    return ENDS[status]


KINDS: dict[str, Callable[[World, Rng, Path], str]] = {
    "csv": table,
    "toml": toml,
    "flags": flags,
    "threats": threat,
    "runs": run,
    "certificates": certificate,
}
