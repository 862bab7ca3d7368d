"""Run directories on bad days: planted links, disks that are full, power cuts, files that somebody else wrote."""

from __future__ import annotations

import errno
import io
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mibp_cert as mc
from archives import copy_of, request, same, truncate
from bad_days import FILES, KINDS, answer, contents, put
from mibp_cert import disk
from mibp_cert.disk import write_safely
from mibp_cert.errors import UserError
from mibp_cert.store import archive
from mibp_cert.store.npz import digest, opened, pack, sealed, unpack


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    mc.certify_training(*request(mc.LInf(0.02), epochs=2), run_dir=folder)
    archive.keep_config(folder, {"data": {"source": "two-moons"}})
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return copy_of(finished, tmp_path / "run")


# What somebody may have planted -------------------------------------------------------------------------------------------


PLACES = [("link", name) for name in FILES] + [
    (kind, name) for kind in KINDS[1:] for name in ("run.json", "steps", "steps/000004.npz")
]
"""`benchmarks/bad_days.py` has every kind in place of every file."""


@pytest.mark.parametrize(("kind", "name"), PLACES)
def test_what_is_no_file_in_place_of_one_is_one_sentence_and_nothing_is_touched(
    run: Path, tmp_path: Path, kind: str, name: str
) -> None:
    outside = tmp_path / "outside"
    outside.write_text("not yours")
    put(kind, run / name, outside)
    before = contents(run)
    for read in (mc.load_run, mc.resume_run):
        with pytest.raises(UserError, match=r"and no file of a run is: nothing was read or written"):
            read(run)
    found = mc.verify(run)
    assert not found[0].holds
    assert contents(run) == before
    assert outside.read_text() == "not yours"
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("name", [".lock", ".run.json.tmp", ".test.npz.tmp", ".report.html.tmp", ".config.json.tmp"])
def test_planted_links_under_names_of_drafts_change_nothing_outside(tmp_path: Path, name: str) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "run"
    outside.write_text("not yours")
    folder.mkdir()
    (folder / name).symlink_to(outside)
    if name == ".lock":
        with pytest.raises(UserError, match="is a symbolic link"):
            mc.certify_training(*request(mc.LInf(0.02), epochs=1), attacked=False, run_dir=folder)
        assert sorted(path.name for path in folder.iterdir()) == [".lock", "steps"]
    else:
        mc.certify_training(*request(mc.LInf(0.02), epochs=1), attacked=False, run_dir=folder)
        archive.keep_config(folder, {})
        write_safely(folder / "report.html", b"")
    assert outside.read_text() == "not yours"


def test_a_lock_that_is_a_second_name_of_a_file_outside_leaves_it_as_it_is(run: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("not yours")
    (run / ".lock").unlink()
    os.link(outside, run / ".lock")
    (run / "result.json").unlink()
    mc.resume_run(run)
    assert outside.read_text() == "not yours"


def test_a_link_that_appears_after_the_check_is_not_followed(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between looking and opening, somebody exchanges the file for a link."""
    outside = tmp_path / "outside"
    outside.write_bytes((run / "run.json").read_bytes())
    (run / "run.json").unlink()
    (run / "run.json").symlink_to(outside)
    monkeypatch.setattr(disk, "kind_of", lambda place, at: "file")
    monkeypatch.setattr(archive, "check_files", lambda run, names: None)
    with pytest.raises(UserError, match="cannot be read"):
        mc.load_run(run)
    (run / "run.json").unlink()
    shutil.move(run / "steps", tmp_path / "steps")
    (run / "steps").symlink_to(tmp_path / "steps")
    (run / "run.json").write_bytes(outside.read_bytes())
    with pytest.raises((UserError, OSError)):
        mc.load_run(run)


def test_an_output_that_the_user_named_may_be_a_link(run: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "page.html").symlink_to(tmp_path / "elsewhere" / "page.html")
    assert answer("report", run, tmp_path / "page.html")[0] == 0
    assert (tmp_path / "page.html").is_symlink()
    assert "<html" in (tmp_path / "elsewhere" / "page.html").read_text(encoding="utf-8")


def test_reading_a_finished_run_writes_nothing(run: Path, tmp_path: Path) -> None:
    for name in (".lock", "config.json"):  # it was not the command line that made this run
        (run / name).unlink()
    before = contents(run)
    for words in (["verify", run], ["report", run, tmp_path / "page.html"], ["resume", run, "-q"]):
        assert answer(*words)[0] == 0
    assert contents(run) == before


def test_the_page_of_a_report_stands_beside_the_run(run: Path) -> None:
    assert answer("report", run)[0] == 0
    assert run.with_name("run.html").exists()


def test_report_never_trains(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where records are missing, and the result was mended so that it fits those that are left."""
    for name in ("000003", "000004"):
        for kind in ("json", "npz"):
            (run / f"steps/{name}.{kind}").unlink()
    plain = opened(run / "result.json")
    plain["previous"] = digest((run / "steps/000002.json").read_bytes())
    (run / "result.json").write_bytes(sealed(plain))
    monkeypatch.setattr("mibp_cert.engines.RelationalEngine.advance", None)
    with pytest.raises(UserError, match="is not finished"):
        mc.load_run(run)


# Archives that were made to harm ------------------------------------------------------------------------------------------


def _archive(members: dict[str, bytes], how: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", how) as target:
        for name, content in members.items():
            target.writestr(name, content)
    return buffer.getvalue()


def _member(array: Any, **changed: Any) -> bytes:
    """An array as a file, with another header."""
    array = np.asarray(array)
    header = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape} | changed
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, header)
    return buffer.getvalue() + array.tobytes()


HARMFUL = {
    "packed": _archive({"a.npy": _member(np.zeros(10**6))}, zipfile.ZIP_DEFLATED),
    "a shape that is not there": _archive({"a.npy": _member(np.zeros(3), shape=(10**12,))}),
    "a negative shape": _archive({"a.npy": _member(np.zeros(3), shape=(-3,))}),
    "objects": _archive({"a.npy": _member(np.zeros(1), descr="|O")}),
    "records": _archive({"a.npy": _member(np.zeros(2), descr="<M8[s]")}),
    "no array": _archive({"a.npy": b"hello"}),
    "another member": _archive({"a.txt": b"hello"}),
    "no archive": b"hello",
    "nothing": b"",
    "cut short": pack({"a": np.zeros(100)})[:-40],
    "another checksum": pack({"a": np.zeros(100)}).replace(b"\0" * 64, b"\1" * 64, 1),
}


@pytest.mark.parametrize("name", HARMFUL)
def test_archives_that_were_made_to_harm_are_refused_before_they_are_unpacked(name: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each for its own reason
        unpack(HARMFUL[name])


def test_members_of_one_archive_that_share_their_bytes_are_refused() -> None:
    """So that a small file says that it holds a large one many times."""
    content = _archive({f"{i}.npy": _member(np.zeros(1000)) for i in range(3)})
    one = content[: content.index(b"PK\x03\x04", 4)]
    entries = content[content.index(b"PK\x01\x02") :]
    with pytest.raises(ValueError, match=r"larger than the file|Bad magic|Overlap|differ"):
        unpack(one + entries)


def test_what_is_packed_is_unpacked_to_the_same_arrays() -> None:
    arrays = {
        "a": np.arange(6.0).reshape(2, 3).T,
        "b": np.array(["x", "é"]),
        "c": np.zeros((0, 3)),
        "d": np.array(True),
    }
    found = unpack(pack(arrays))
    assert all(
        np.array_equal(found[name], array) and found[name].dtype == array.dtype for name, array in arrays.items()
    )


def _forge_arrays(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the data, and mend every hash."""
    arrays = unpack((run / "data.npz").read_bytes())
    change(arrays)
    content = pack(arrays)
    (run / "data.npz").write_bytes(content)
    _forge_request(run, lambda plain: plain.update(data=digest(content)))


def _forge_request(run: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    plain = opened(run / "run.json")
    change(plain)
    text = sealed(plain)
    (run / "run.json").write_bytes(text)
    last = digest(text)
    for place in sorted((run / "steps").glob("*.json")):
        record = opened(place)
        record["previous"] = last
        place.write_bytes(sealed(record))
        last = digest(sealed(record))
    result = opened(run / "result.json")
    (run / "result.json").write_bytes(sealed({**result, "previous": last}))


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a.update(train_x=a["train_x"].ravel()),
        lambda a: a.update(train_x=a["train_x"][:, :1]),
        lambda a: a.update(train_x=a["train_x"].astype("U8")),
        lambda a: a.update(train_x=a["train_x"] * np.nan),
        lambda a: a.update(train_y=a["train_y"] + 7),
        lambda a: a.update(train_y=a["train_y"][:3]),
        lambda a: a.update(start=a["start"][:3]),
        lambda a: a.update(start=np.array("x")),
        lambda a: a.pop("start"),
        lambda a: a.pop("train_x"),
        lambda a: a.update(test_missing=np.ones(3, dtype=bool)),
    ],
)
def test_data_of_other_kinds_and_shapes_are_one_sentence(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    _forge_arrays(run, change)
    with pytest.raises(UserError):
        mc.load_run(run)


def _refused(run: Path) -> bool:
    """Is it refused with one sentence?"""
    try:
        mc.load_run(run)
    except UserError as error:
        return "\n" not in str(error)
    return False


@pytest.mark.parametrize("value", [None, 3, "x", [], {"kind": "x"}, 10**400])
@pytest.mark.parametrize(
    "key",
    ["name", "shape", "layers", "threat", "training", "engine", "solver", "select", "attack", "data", "prediction"],
)
def test_requests_of_other_kinds_are_one_sentence_or_harmless(run: Path, key: str, value: Any) -> None:
    _forge_request(run, lambda plain: plain["description"].update({key: value}))
    refused = _refused(run)
    assert refused or key in ("name", "shape", "attack", "solver", "threat", "select")


@pytest.mark.parametrize(
    "key", ["steps", "report", "elapsed", "diverged", "nominal", "radius_max", "dropped", "arrays"]
)
@pytest.mark.parametrize("value", ["x", [1], None])
def test_records_of_other_kinds_are_one_sentence_or_harmless(run: Path, key: str, value: Any) -> None:
    place = run / "steps/000004.json"
    plain = opened(place)
    plain[key] = value
    place.write_bytes(sealed(plain))
    result = opened(run / "result.json")
    (run / "result.json").write_bytes(sealed({**result, "previous": digest(place.read_bytes())}))
    allowed = (("nominal", None), ("arrays", None), ("dropped", [1]))
    assert _refused(run) or (key, value) in allowed


@pytest.mark.parametrize("text", ["", "[]", "3", '{"a": 1}', '{"a":', "[" * 100_000, "\ud800", '{"a": {"b": NaN}}'])
def test_a_configuration_that_is_none_is_one_sentence(run: Path, text: str) -> None:
    (run / "config.json").write_text(text, encoding="utf-8", errors="surrogatepass")
    with pytest.raises(UserError, match=r"config.json was cut short or altered"):
        archive.read_config(run)


# Power cuts ---------------------------------------------------------------------------------------------------------------


def _cut_after(run: Path, last: int) -> None:
    """The run as it was after this step."""
    for name in ("result.json", "test.npz"):
        (run / name).unlink(missing_ok=True)
    for place in (run / "steps").iterdir():
        if int(place.stem) > last:
            place.unlink()


CUTS: dict[str, Callable[[Path], Any]] = {
    "half a record": lambda run: truncate(run / "steps/000003.json"),
    "an empty record": lambda run: (run / "steps/000003.json").write_bytes(b""),
    "half a set": lambda run: truncate(run / "steps/000003.npz"),
    "an empty set": lambda run: (run / "steps/000003.npz").write_bytes(b""),
    "a record without its set": lambda run: (run / "steps/000003.npz").unlink(),
    "a set without its record": lambda run: (run / "steps/000003.json").unlink(),
    "a draft": lambda run: (run / "steps/.0123456789abcdef.tmp").write_bytes(b"half"),
    "a draft of the result": lambda run: (run / ".0123456789abcdef.tmp").write_bytes(b"half"),
}


@pytest.mark.parametrize("name", CUTS)
def test_what_a_power_cut_left_of_the_newest_files_is_made_again(finished: Path, run: Path, name: str) -> None:
    _cut_after(run, 3)
    CUTS[name](run)
    assert same(mc.load_run(finished), mc.resume_run(run))
    assert not list(run.rglob("*.tmp"))
    assert mc.verify(run)[0].holds


@pytest.mark.parametrize("name", ["result.json", "test.npz"])
@pytest.mark.parametrize("damage", [truncate, lambda path: path.write_bytes(b""), lambda path: path.unlink()])
def test_a_result_that_was_cut_short_is_computed_again(
    finished: Path, run: Path, name: str, damage: Callable[[Path], Any]
) -> None:
    damage(run / name)
    told: list[str] = []
    again = mc.resume_run(run, callbacks=mc.certify.loop.Callbacks(on_note=told.append))
    assert same(mc.load_run(finished), again)
    assert told == ["The result was cut short: it is computed again."] or name == "result.json"


@pytest.mark.parametrize("name", ["000002.json", "000002.npz"])
def test_an_older_file_that_was_altered_is_refused_and_nothing_is_removed(run: Path, name: str) -> None:
    _cut_after(run, 3)
    truncate(run / "steps/000003.npz")
    truncate(run / "steps" / name)
    before = contents(run / "steps")
    for _ in range(2):
        with pytest.raises(UserError, match=r"cut short|altered"):
            mc.resume_run(run)
        assert contents(run / "steps") == before


def test_a_newest_step_that_cannot_be_read_is_not_removed(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _cut_after(run, 3)
    real = os.open

    def no_rights(path: Any, *args: Any, **options: Any) -> int:
        if str(path).endswith("000003.npz"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return real(path, *args, **options)

    monkeypatch.setattr(os, "open", no_rights)
    with pytest.raises(UserError, match="cannot be read: Permission denied"):
        mc.resume_run(run)
    assert (run / "steps/000003.npz").exists()


def test_a_run_goes_on_where_the_step_that_was_lost_had_dropped_the_sets_before(
    tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "KEEP", 1)
    folder = tmp_path / "run"
    mc.certify_training(*request(mc.LInf(0.02), epochs=2), run_dir=folder)
    assert sorted(path.name for path in (folder / "steps").glob("*.npz")) == ["000002.npz", "000004.npz"]
    for name in ("result.json", "test.npz"):
        (folder / name).unlink()
    truncate(folder / "steps/000004.npz")
    assert same(mc.load_run(finished), mc.resume_run(folder))
    assert mc.verify(folder)[0].holds


def test_a_run_that_was_cut_off_before_it_was_written_down_begins_anew(tmp_path: Path, finished: Path) -> None:
    folder = tmp_path / "run"
    (folder / "steps").mkdir(parents=True)
    for name, size in (("data.npz", 100), ("run.json", 30)):
        (folder / name).write_bytes((finished / name).read_bytes()[:size])
        again = mc.certify_training(*request(mc.LInf(0.02), epochs=2), run_dir=folder, resume=True)
        assert same(mc.load_run(finished), again)
        shutil.rmtree(folder)
        (folder / "steps").mkdir(parents=True)


# Disks that do not take what is written -----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS])
@pytest.mark.parametrize("call", ["fsync", "replace", "write"])
@pytest.mark.parametrize("at", [1, 3, 6, 9])
def test_a_disk_that_refuses_is_one_sentence_and_the_run_goes_on_to_the_same_bits(
    tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch, number: int, call: str, at: int
) -> None:
    if number != errno.ENOSPC and (call, at) != ("replace", 6):
        return  # one place is enough for the others
    asked, left = request(mc.LInf(0.02), epochs=2), at

    def refusing(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise OSError(number, os.strerror(number))
            return function(*args, **options)

        return called

    with monkeypatch.context() as patch:
        if call == "write":
            real = open
            full = refusing(real)
            chosen = lambda file, mode="r", **how: (full if mode == "wb" else real)(file, mode, **how)  # noqa: E731
            patch.setattr(disk, "open", chosen, raising=False)
        else:
            patch.setattr(os, call, refusing(getattr(os, call)))
        with pytest.raises(UserError, match=rf"{os.strerror(number)}; ") as told:
            mc.certify_training(*asked, run_dir=tmp_path / "run")
    words = str(told.value)
    assert "nothing is kept" in words or f"mibp-cert resume {tmp_path / 'run'}" in words
    assert not list((tmp_path / "run").rglob("*.tmp"))
    again = mc.certify_training(*asked, run_dir=tmp_path / "run", resume=True)
    assert same(mc.load_run(finished), again)


def test_a_folder_without_rights_is_one_sentence(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write everywhere: so the system call says no."""
    _cut_after(run, 2)
    before, real = contents(run), os.open

    def read_only(path: Any, flags: int, *args: Any, **options: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return real(path, flags, *args, **options)

    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(UserError, match="Read-only file system; make the folder writable, or copy the run elsewhere"):
        mc.resume_run(run)
    assert contents(run) == before


def test_drafts_are_gone_and_the_old_file_stands_where_writing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "file"
    write_safely(place, b"old")
    monkeypatch.setattr(os, "fsync", lambda handle: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
    with pytest.raises(OSError, match="full"):
        write_safely(place, b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert place.read_bytes() == b"old"


def test_the_configuration_is_read_back(finished: Path) -> None:
    assert archive.read_config(finished) == {"data": {"source": "two-moons"}}
