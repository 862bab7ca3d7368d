"""Certificates as files and on the command line: written, read by anybody, proven again, and refused where they were altered."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from fits import attacked, start_of, step_of, table
from forgeries import FORGERIES, forge
from mibp_cert import CertifiedRun, Split, certificate_of, certify_fit, check_certificate
from mibp_cert.check.data import split_of
from mibp_cert.check.file import Certificate, read_certificate, write_certificate
from mibp_cert.check.fitted import check
from mibp_cert.cli import app
from mibp_cert.errors import UserError
from mibp_cert.fitted import Fitted, RandomFeatures
from mibp_cert.store.archive import pack
from mibp_cert.store.certificate import claim_of
from mibp_cert.threats import AnyCategory, Budget, LabelFlips, LInf, Missing, Removed, TargetNoise, column
from proofs import small

HONEST: dict[str, tuple[str, Any, float]] = {
    "noise": ("cross-entropy", LInf({"income": 0.5}), 0.1),
    "labels": ("cross-entropy", LabelFlips(1), 0.1),
    "rows that go": ("cross-entropy", Removed(1), 0.1),
    "missing": ("cross-entropy", Missing(), 0.1),
    "a bad row": ("squared-hinge", Budget(LInf({"income": 2.0}), rows=1), 0.03),
    "categories": ("squared-hinge", AnyCategory("mood").where(column("age") >= 60), 0.003),
    "targets": ("squared-error", TargetNoise(0.2), 0.1),
    "numbers": ("huber", LInf({"income": 0.3}) & TargetNoise(0.1), 0.1),
}
"""The loss, what may be wrong, and C."""


def run_of(name: str) -> tuple[Split, CertifiedRun]:
    loss, threat, c = HONEST[name]
    data = table(loss, rows=16, missing=name == "missing")
    split = Split("small", data, test=table(loss, rows=8, seed=3, like=data))
    return split, certify_fit(split, threat, Fitted(loss, C=c), attacked=False)


@pytest.fixture(scope="module", params=HONEST)
def honest(request: Any, tmp_path_factory: Any) -> tuple[Split, CertifiedRun, Path]:
    split, run = run_of(request.param)
    path = tmp_path_factory.mktemp("certificates") / "one.cert"
    certificate_of(run).write(path)
    return split, run, path


def test_an_honest_certificate_is_proven_and_holds_for_every_fit(honest: tuple[Split, CertifiedRun, Path]) -> None:
    split, run, path = honest
    found, read = check_certificate(path, split), read_certificate(path)
    assert not found.failures
    assert found.claims > 0
    step, bound = step_of(split.train, run.fitted), run.threat.bind(split.train)
    _, _, theta = attacked(step, bound)
    assert ((read.arrays["low0"] <= theta) & (theta <= read.arrays["high0"])).all()
    x = step.design(start_of(step), split.test.x)
    score = x[read.arrays["claim_rows"]] @ theta.T
    assert (read.arrays["claim_signs"][:, None] * score >= read.arrays["claim_ends"][:, None] - 1e-9).all()


def test_what_a_run_certifies_the_certificate_mostly_claims(honest: tuple[Split, CertifiedRun, Path]) -> None:
    _, run, path = honest
    claims = read_certificate(path).arrays["claim_rows"]
    wanted = 8 if run.test is None else int(run.test.certified.sum())
    assert len(np.unique(claims)) >= wanted - 1


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_certificate_is_refused(name: str, honest: tuple[Split, CertifiedRun, Path], tmp_path: Path) -> None:
    split, run, path = honest
    read = read_certificate(path)
    if run.test is None:  # numbers have neither signs nor labels
        name = {"claims without a sign": "a larger margin", "wrong labels, too": "more doubt"}.get(name, name)
    plain, arrays = forge(name, read.plain, read.arrays, np.random.default_rng(len(name)))
    write_certificate(tmp_path / "forged.cert", plain, arrays)
    assert refused(tmp_path / "forged.cert", split)


def refused(path: Path, split: Split) -> bool:
    try:
        return bool(check_certificate(path, split).failures)
    except UserError:
        return True


def test_other_rows_than_those_it_is_about_are_refused(honest: tuple[Split, CertifiedRun, Path]) -> None:
    split, _, path = honest
    with pytest.raises(UserError, match="not the train rows"):
        check_certificate(path, Split("other", split.tested, test=split.tested))


def test_missing_values_that_the_threat_is_silent_about_are_refused() -> None:
    split, run = run_of("missing")
    made = certificate_of(run)
    with pytest.raises(UserError, match="Values are missing"):
        check(Certificate({**made.plain, "threat": {"kind": "nothing"}}, made.arrays), split)


def test_what_the_checker_does_not_know_is_refused_before_any_work() -> None:
    split = small("cross-entropy", "linf")
    for model, named in (
        (Fitted(features=RandomFeatures(3)), "frozen features"),
        (Fitted(loss="squared-error"), "of two classes or of numbers"),
    ):
        with pytest.raises(UserError, match=named):
            claim_of(split, model, LInf(0.1), None)
    three = table("cross-entropy", rows=12, classes=3)
    run = certify_fit(Split("three", three, test=three), LInf({"income": 0.01}), Fitted(C=0.05), attacked=False)
    with pytest.raises(UserError, match="of two classes"):
        certificate_of(run)


def test_the_bits_of_a_certificate_are_those_of_its_run(tmp_path: Path) -> None:
    _, run = run_of("noise")
    for name in ("one", "two"):
        certificate_of(run).write(tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def _bomb(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("certificate.json", "{}")
        with archive.open("u.npy", "w", force_zip64=True) as member:
            header = (
                b"\x93NUMPY\x01\x00v\x00"
                + b"{'descr': '<f8', 'fortran_order': False, 'shape': (3,), }".ljust(117)
                + b"\n"
            )
            member.write(header)
            for _ in range(40):
                member.write(bytes(1 << 20))


ODD: dict[str, Any] = {
    "nothing": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("age,ill\n1,0\n"),
    "no json": lambda path: path.write_bytes(pack({"u": np.zeros(3)})),
    "a bomb": _bomb,
    "a folder": lambda path: path.mkdir(),
}


@pytest.mark.parametrize("name", ODD)
def test_files_that_are_no_certificate_are_one_sentence(name: str, tmp_path: Path) -> None:
    ODD[name](tmp_path / "odd.cert")
    with pytest.raises(UserError, match=r"certificate"):
        read_certificate(tmp_path / "odd.cert")


@pytest.mark.parametrize(
    "array", [np.array(["x"]), np.array([1 + 2j]), np.array([object()]), np.zeros(2, dtype=np.float32)]
)
def test_arrays_of_other_kinds_are_refused(array: Any, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "odd.cert", "w") as archive:
        archive.writestr("certificate.json", "{}")
        with archive.open("u.npy", "w") as member:
            np.lib.format.write_array(member, array, allow_pickle=True)
    with pytest.raises(UserError, match=r"8-byte numbers|not a certificate"):
        read_certificate(tmp_path / "odd.cert")


def test_cut_short_it_is_refused_wherever_the_cut_is(honest: tuple[Split, CertifiedRun, Path], tmp_path: Path) -> None:
    content = honest[2].read_bytes()
    for share in (0.1, 0.5, 0.9, 0.999):
        (tmp_path / "cut.cert").write_bytes(content[: int(share * len(content))])
        with pytest.raises(UserError, match="not a certificate"):
            read_certificate(tmp_path / "cut.cert")


def test_the_command_line_writes_and_checks_a_file(tmp_path: Path) -> None:
    table = pd.DataFrame(
        {
            "age": np.arange(20.0, 60.0),
            "mood": ["good", "bad"] * 20,
            "ill": ["no"] * 18 + ["yes", "no"] * 2 + ["yes"] * 18,
        }
    )
    table.loc[3, "mood"] = None
    table.to_csv(tmp_path / "people.csv", index=False)
    path = str(tmp_path / "people.cert")
    asked = [str(tmp_path / "people.csv"), "--target", "ill", "--eps", "age=0.5", "--missing", "mood", "--C", "0.1"]
    said = CliRunner().invoke(app, ["certify", *asked, "--no-attack", "--no-parts", "--certificate", path])
    assert said.exit_code == 0, said.output
    assert "it proves certified classes of" in said.output
    checked = CliRunner().invoke(app, ["check", path, "--data", str(tmp_path / "people.csv")])
    assert checked.exit_code == 0, checked.output
    assert "Proven for" in checked.output
    assert "'age' may be off by 0.5" in checked.output
    assert "would be right in" in checked.output
    read = read_certificate(path)
    plain, arrays = forge("another class", read.plain, read.arrays, np.random.default_rng(0))
    write_certificate(path, plain, arrays)
    wrong = CliRunner().invoke(app, ["check", path, "--data", str(tmp_path / "people.csv")])
    assert wrong.exit_code == 1
    assert "NOT proven: it does not follow" in wrong.output


def test_the_command_line_refuses_networks_before_any_work(tmp_path: Path) -> None:
    path = tmp_path / "net.cert"
    said = CliRunner().invoke(app, ["certify", "two-moons", "--epochs", "1", "--certificate", str(path)])
    assert isinstance(said.exception, UserError)
    assert "verify DIR" in str(said.exception)
    assert not path.exists()


def test_a_certificate_of_a_file_asks_for_the_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--data people\.csv"):
        split_of({"source": "people.csv", "seed": 0, "reading": {"target": "ill"}})
    with pytest.raises(UserError, match="does not say how its rows are read"):
        split_of({})
