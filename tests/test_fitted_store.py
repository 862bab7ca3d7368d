"""Fitted models in run directories: the same bits again, nothing altered passes, and a second opinion on the minimum."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flint
import numpy as np
import pytest
from typer.testing import CliRunner

import mibp_cert as mc
from archives import copy_of, flip_bit, rewrite, same, truncate
from fits import table, threats
from mibp_cert import cli
from mibp_cert.certify.attack import AttackSettings
from mibp_cert.errors import UserError
from mibp_cert.fitted import REGRESSIONS, SCORE_LOSSES, RandomFeatures
from mibp_cert.fitted import engine as fitted_engine
from mibp_cert.store import refit, stored_request
from mibp_cert.store.archive import digest, opened, pack, read_step, sealed
from mibp_cert.store.npz import unpack
from mibp_cert.store.second import BITS, balls
from mibp_cert.store.verify import AuditSettings, verify

QUICK = AuditSettings(points=2, parameters=1, members=5)
FEW = AttackSettings(members=5, points=3, parameters=2, rounds=1)
C = {"cross-entropy": 0.1, "squared-error": 0.02, "squared-hinge": 0.005, "huber": 0.02}
CASES = [
    ("cross-entropy", "missing"),
    ("cross-entropy", "labels"),
    ("cross-entropy", "categories and a bad row"),
    ("squared-hinge", "labels"),
    ("squared-hinge", "one-sided budget"),
    ("squared-error", "noise and targets"),
    ("huber", "budget of balls"),
    ("huber", "linf"),
]


def kept(folder: Path, loss: str = "cross-entropy", name: str = "linf", **model: Any) -> mc.CertifiedRun:
    train = table(loss, missing=name.startswith("missing"))
    split = mc.Split("survey", train, test=table(loss, 8, 50, like=train))
    model = {"C": C[loss] / (4.0 if name.startswith("categories") else 1.0), **model}
    return mc.certify_fit(split, threats(loss)[name], mc.Fitted(loss, **model), attack_settings=FEW, run_dir=folder)


@pytest.mark.parametrize(("loss", "name"), CASES)
def test_a_stored_run_gives_the_same_answers_and_is_verified(loss: str, name: str, tmp_path: Path) -> None:
    """Read back, and made again after an interruption behind the fit; new rows get the same bits."""
    run = kept(tmp_path, loss, name)
    x = run.data.tested.x
    checks = verify(tmp_path, QUICK)
    assert all(check.holds for check in checks), checks
    again = mc.load_run(tmp_path)
    (tmp_path / "result.json").unlink()
    for other in (again, mc.resume_run(tmp_path)):
        assert same(run, other)
        mine, kept_ = (one.ranges(x).outputs for one in (run, other))
        assert np.array_equal(mine.low, kept_.low)
        assert np.array_equal(mine.high, kept_.high)
        if loss not in REGRESSIONS:
            assert np.array_equal(run.certify(x).margin, other.certify(x).margin)


def test_frozen_features_are_kept(tmp_path: Path) -> None:
    data = mc.two_moons(0, sizes=(30, 10, 10))
    model = mc.Fitted(C=1.0, features=RandomFeatures(6, 2.0, seed=3))
    run = mc.certify_fit(data, mc.LInf(0.01), model, attack_settings=FEW, run_dir=tmp_path)
    assert stored_request(tmp_path).training == model
    assert same(run, mc.load_run(tmp_path))
    assert all(check.holds for check in verify(tmp_path, QUICK))


def test_frozen_layers_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their parameters are the first ones of the model's; the layers behind them are no part of it."""
    data, network = mc.two_moons(0, sizes=(20, 5, 5)), mc.Network.mlp([2, 4, 3])
    model = mc.Fitted(C=0.05, features=mc.FrozenLayers(network, network.initialise(0), layers=2))

    def made(folder: Path) -> mc.CertifiedRun:
        return mc.certify_fit(data, mc.LInf(0.01), model, attack_settings=FEW, run_dir=folder)

    run = made(tmp_path / "whole")
    interrupt(monkeypatch, lambda: made(tmp_path / "cut"))
    for again in (mc.load_run(tmp_path / "whole"), mc.resume_run(tmp_path / "cut")):
        assert same(run, again)
        x = data.tested.x
        assert np.array_equal(run.ranges(x).outputs.low, again.ranges(x).outputs.low)
    assert all(check.holds for check in verify(tmp_path / "whole", QUICK))
    other = mc.Fitted(C=0.05, features=mc.FrozenLayers(network, network.initialise(1), layers=2))
    with pytest.raises(UserError, match=r"run on other data|training was"):
        mc.certify_fit(data, mc.LInf(0.01), other, attack_settings=FEW, run_dir=tmp_path / "whole", resume=True)


@pytest.mark.parametrize(
    "model",
    [
        mc.Fitted(C=np.float32(0.1)),
        mc.Fitted(C=np.int64(1)),
        mc.Fitted(C=0.1, class_weight={np.int64(0): 2.0}),
        mc.Fitted(C=0.1, class_weight={0: np.int64(2)}),
        mc.Fitted(C=0.1, features=RandomFeatures(np.int64(3), np.float32(0.5), np.int64(2))),
        mc.Fitted(C=0.1, fit_intercept=np.bool_(True), penalise_intercept=np.bool_(True)),
    ],
)
def test_numbers_of_numpy_are_kept_as_plain_ones(model: mc.Fitted, tmp_path: Path) -> None:
    data = mc.two_moons(0, sizes=(12, 5, 5))
    run = mc.certify_fit(data, mc.LInf(0.01), model, attacked=False, run_dir=tmp_path)
    assert same(run, mc.load_run(tmp_path))
    assert type(model.C) in (int, float)


def interrupt(monkeypatch: pytest.MonkeyPatch, run: Callable[[], Any]) -> None:
    """Begin a run, and stop it before its ranges are proven."""

    def stopped(*_: Any, **how: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(fitted_engine, "prove", stopped)
        with pytest.raises(KeyboardInterrupt):
            run()


def weighted(folder: Path, how: str) -> mc.CertifiedRun:
    """A run whose rows, or classes (true and false here), count differently."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(20, 2))
    data = mc.Dataset.of(x, x @ [1.0, 2.0] + rng.normal(size=20) > 0)
    options: dict[str, Any] = {"sample_weight": rng.choice([0.05, 1.0, 8.0], size=20)} if "rows" in how else {}
    model = mc.Fitted(C=0.1, class_weight={True: 3.0} if "classes" in how else None)
    return mc.certify_fit(
        mc.Split("weighted", data, test=data.take(np.arange(4))),
        mc.LInf(0.01),
        model,
        attack_settings=FEW,
        run_dir=folder,
        **options,
    )


@pytest.mark.parametrize("how", ["rows", "classes", "rows and classes"])
def test_weights_are_kept_to_the_same_bits(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = weighted(tmp_path / "whole", how)
    interrupt(monkeypatch, lambda: weighted(tmp_path / "cut", how))
    for again in (mc.load_run(tmp_path / "whole"), mc.resume_run(tmp_path / "cut")):
        assert same(run, again)
        mine, other = (one.ranges(run.train.x).outputs for one in (run, again))
        assert np.array_equal(mine.low, other.low)
        assert np.array_equal(mine.high, other.high)
    for folder in ("whole", "cut"):
        checks = verify(tmp_path / folder, QUICK)
        assert all(check.holds for check in checks), checks


@pytest.mark.parametrize("what", ["lost", "altered", "lost before they were hashed"])
def test_lost_or_altered_weights_are_refused_though_hashes_were_mended(what: str, tmp_path: Path) -> None:
    weighted(tmp_path, "rows")
    data, kept_ = unpack((tmp_path / "data.npz").read_bytes()), opened(tmp_path / "run.json")
    if what == "altered":
        data["train_weights"] = data["train_weights"] + 1e-9
    else:
        del data["train_weights"]
    if "before" in what:
        del kept_["description"]["data"]["weights_sha256"]
    (tmp_path / "data.npz").write_bytes(pack(data))
    (tmp_path / "run.json").write_bytes(sealed({**kept_, "data": digest(pack(data))}))
    rewrite(tmp_path, lambda arrays, number: None, range(0))
    for read in (mc.load_run, mc.resume_run):
        with pytest.raises(UserError, match=r"weights of the rows in .* were lost or altered"):
            read(tmp_path)
    (check,) = verify(tmp_path, QUICK)
    assert check.holds is False


def test_a_fit_that_was_interrupted_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt(monkeypatch, lambda: kept(tmp_path / "cut"))
    whole = kept(tmp_path / "whole")
    with pytest.raises(UserError, match="is not finished; go on with it"):
        mc.load_run(tmp_path / "cut")
    assert same(whole, mc.resume_run(tmp_path / "cut"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    kept(folder, name="budget of rows")
    return folder


@pytest.mark.parametrize("name", ["steps/000001.npz", "steps/000001.json", "run.json", "data.npz", "test.npz"])
@pytest.mark.parametrize("damage", [truncate, flip_bit])
def test_what_was_cut_short_or_altered_is_refused(
    finished: Path, tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    folder = copy_of(finished, tmp_path / "run")
    damage(folder / name)
    with pytest.raises(UserError, match=r"cut short|altered|belongs to|other data|does not belong"):
        mc.load_run(folder)
    assert not all(check.holds for check in verify(folder, QUICK))


def test_another_model_does_not_resume_a_run(finished: Path, tmp_path: Path) -> None:
    folder, request = copy_of(finished, tmp_path / "run"), stored_request(finished)
    with pytest.raises(UserError, match="belongs to another run: training was"):
        mc.certify_fit(request.data, request.threat, mc.Fitted(C=0.3), attack_settings=FEW, run_dir=folder, resume=True)


ENDS = ("lower", "upper", "score_low", "score_high", "other_low_0", "other_high_0")


@pytest.mark.parametrize("end", ENDS)
def test_one_end_moved_by_a_billionth_is_caught_though_hashes_were_mended(
    finished: Path, tmp_path: Path, end: str
) -> None:
    folder = copy_of(finished, tmp_path / "run")
    rising, other = ("low" in end), end.replace("low", "high") if "low" in end else end.replace("high", "low")
    other = {"lower": "upper", "upper": "lower"}.get(end, other)

    def moved(arrays: dict[str, Any], number: int) -> None:
        width = abs(arrays[other][2] - arrays[end][2])
        arrays[end][2] += 1e-9 * width * (1 if rising else -1)

    rewrite(folder, moved, range(1, 2))
    found = {check.name: check for check in verify(folder, QUICK)}
    assert found["hashes"].holds
    assert not found["recomputed"].holds
    assert "other bounds" in found["recomputed"].words


@pytest.mark.parametrize("end", ENDS)
def test_the_second_opinion_alone_catches_ranges_that_are_too_small(finished: Path, tmp_path: Path, end: str) -> None:
    """Drawn in by half: minimisers of single datasets are outside, whatever the engine says."""
    folder = copy_of(finished, tmp_path / "run")
    low = end.replace("high", "low").replace("upper", "lower")
    high = end.replace("low", "high").replace("higher", "upper")

    def smaller(arrays: dict[str, Any], number: int) -> None:
        width = arrays[high] - arrays[low]
        arrays[end] = arrays[end] + (0.5 if end == low else -0.5) * width

    rewrite(folder, smaller, range(1, 2))
    settings = AuditSettings(points=8, parameters=6, members=2, recompute=False)
    found = {check.name: check for check in verify(folder, settings)}
    assert not found["second opinion"].holds
    assert ("score" if "_" in end else "parameter") in found["second opinion"].words


@pytest.mark.parametrize("loss", SCORE_LOSSES)
def test_minimisers_are_enclosed_to_many_digits(loss: str, tmp_path: Path) -> None:
    """The gradient changes its sign, in every direction, across the enclosure: checked to 60 digits by bisection's own sign."""
    run = kept(tmp_path, loss)
    (step,) = run.request.plan.steps
    x, y = run.request.members.reference
    with flint.ctx.workprec(BITS):
        design, target = balls(np.append(x, np.ones((len(x), 1)), axis=1)), balls(y[:, step.column])
        found = refit.minimiser(step, design, target, refit.balls(np.ones(len(design))), run.theta)
        assert found is not None
        assert all(float(ball.rad()) < 1e-20 for ball in found)
        assert np.allclose(found.astype(float), run.theta, rtol=1e-9, atol=1e-12)
        # A start that is no minimiser: Newton's method gets there, or nothing is said.
        far = refit.minimiser(step, design, target, refit.balls(np.ones(len(design))), run.theta + 1e-3)
        assert far is None or all(a.overlaps(b) for a, b in zip(far, found, strict=True))
        assert (
            refit.minimiser(step, design, target, refit.balls(np.ones(len(design))), np.full_like(run.theta, np.nan))
            is None
        )


def test_bounds_of_another_minimum_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On exact data the bounds are some digits wide: were `ψ` another one by a millionth, its minimiser would be outside."""
    data = table("cross-entropy")
    mc.certify_fit(data, None, mc.Fitted(C=0.1), run_dir=tmp_path)
    psi, slope = refit.PSI["cross-entropy"]
    monkeypatch.setitem(refit.PSI, "cross-entropy", (lambda y, s: psi(y, s) + flint.arb(1e-6), slope))
    found = {check.name: check for check in verify(tmp_path, QUICK)}
    assert found["second opinion"].holds is False


def test_a_loss_without_a_second_rule_is_not_said_to_be_checked(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(refit.PSI, "cross-entropy")
    found = {check.name: check for check in verify(finished, QUICK)}
    assert found["second opinion"].holds is None
    assert "no second rule for the loss" in found["second opinion"].words


def test_every_loss_has_a_second_rule() -> None:
    assert set(refit.PSI) == set(SCORE_LOSSES)


def test_restored_sets_are_the_same_bit_for_bit(finished: Path) -> None:
    request, arrays = stored_request(finished), read_step(finished, 1)
    again = request.make_engine().restore(arrays, request.members, request.plan.steps[0]).arrays()
    assert again.keys() == arrays.keys() - {"trained"}
    assert all(np.array_equal(again[name], arrays[name]) for name in again)


def test_run_directories_of_fitted_models_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def invoke(*words: str) -> str:
        found = CliRunner().invoke(cli.app, list(words))
        assert found.exit_code == 0, (found.output, found.exception)
        return found.output

    folder, first, second = str(tmp_path / "run"), str(tmp_path / "a.json"), str(tmp_path / "b.json")
    asked = ["certify", "two-moons", "--model", "logistic", "--eps", "0.02", "--no-attack", "--run", folder]
    invoke(*asked, "--json", first)
    assert "at the minimum" in invoke("resume", folder, "--json", second)
    assert json.loads(Path(first).read_text()) == json.loads(Path(second).read_text())
    invoke("report", folder)
    assert "at the minimum" in (tmp_path / "run.html").read_text()
    told = invoke("verify", folder, "--points", "1", "--parameters", "1")
    assert "minimisers of 4 datasets enclosed in ball arithmetic" in told
    assert "step 1" not in told
    invoke(*asked, "--resume")
    monkeypatch.setattr(sys, "argv", ["mibp-cert", *asked])
    with pytest.raises(SystemExit):
        cli.main()
    assert "holds a run already" in capsys.readouterr().err
