"""One recipe for certify and all studies; regression in all of them; every "no" names a command that runs; loss by part."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import mibp_cert as mc
from mibp_cert import cli
from mibp_cert.cli.asked import Asked
from mibp_cert.config import defaults, merged
from mibp_cert.errors import Diverged, UserError
from mibp_cert.job import job_of
from mibp_cert.studies.choose import choose_C
from mibp_cert.studies.parts import threats_in
from mibp_cert.studies.recipe import decide
from test_fitted_flags import BESIDE, OTHER

LINEAR = mc.Network.mlp([2, 1])
STEPS = mc.Training(epochs=6, batch_size=20, loss="cross-entropy", learning_rate=0.5, schedule="cosine")
QUICK = mc.AttackSettings(members=5, points=5, parameters=0, rounds=1, tries=4)
BEST = mc.Selection("best-validation", per_step=True)


def moons() -> mc.Split:
    return mc.two_moons(0, sizes=(60, 30, 20))


def homes(rows: int = 60, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    found = pd.DataFrame({"size": rng.uniform(30, 200, rows).round(1), "rooms": rng.integers(1, 6, rows).astype(float)})
    found["price"] = (2 * found["size"] + 15 * found["rooms"] + rng.normal(0, 15, rows)).round(2)
    return found


def patients(rows: int = 60, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age, mood = rng.integers(20, 90, rows).astype(float), rng.choice(["good", "fair", "bad"], rows)
    found = pd.DataFrame({"age": age, "dose": rng.normal(40, 9, rows).round(1), "mood": mood})
    ill = (age - 55) / 15 + (mood == "bad") * 1.5 + rng.normal(0, 0.5, rows) > 0.2
    found["ill"] = np.where(ill, "yes", "no")
    found.loc[rng.choice(rows, 6, replace=False), "mood"] = None
    return found


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "mibp_cert.fitted.problem.CUT_CELLS", 0
    )  # cutting exits takes seconds, and changes nothing here


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    homes().to_csv("homes.csv", index=False)
    patients().to_csv("my patients.csv", index=False)
    return tmp_path


def invoke(*words: str) -> str:
    found = CliRunner().invoke(cli.app, list(words))
    assert found.exit_code == 0, (words, found.output, found.exception)
    return found.output


CLASSES = ("my patients.csv", "--target", "ill", "--missing", "all", "--eps", "age=6,dose=3", "--no-attack")
NUMBERS = ("homes.csv", "--target", "price", "--eps", "size=2", "--epochs", "8", "--no-attack")
RIDGE = ("homes.csv", "--target", "price", "--eps", "size=2", "--model", "ridge", "--no-attack")

# One recipe --------------------------------------------------------------------------------------------------------------


def test_so_many_steps_give_the_bits_of_the_run_that_chose_them() -> None:
    """Whatever the rates of later epochs, and also in the middle of an epoch."""
    asked: dict[str, Any] = {"attack_settings": QUICK}
    run = mc.certify_training(LINEAR, moons(), mc.LInf(0.05), STEPS, select=BEST, **asked)
    again = mc.certify_training(LINEAR, moons(), mc.LInf(0.05), STEPS, steps=run.steps, **asked)
    assert 0 < run.steps == again.steps == again.request.plan.total
    assert (run.decided.steps, run.decided.select.rule) == (run.steps, "last")
    assert np.array_equal(run.bounds.lower, again.bounds.lower)
    assert np.array_equal(run.theta, again.theta)
    assert run.test is not None
    assert again.test is not None
    assert np.array_equal(run.test.margin, again.test.margin)


def test_the_first_steps_of_a_plan_are_whole_graphs() -> None:
    plan = STEPS.plan(LINEAR, moons().train, LINEAR.initialise(0), 2)
    assert plan.first(4).steps == plan.steps[:2]
    assert plan.first(None) is plan
    with pytest.raises(UserError, match="no first 3 of them, in whole graphs of 2"):
        plan.first(3)


def test_more_steps_than_there_are_is_refused() -> None:
    with pytest.raises(UserError, match="has no first 99 of them"):
        mc.certify_training(LINEAR, moons(), mc.LInf(0.05), STEPS, steps=99, attacked=False)


def test_a_run_of_so_many_steps_is_kept_and_read_again(tmp_path: Path) -> None:
    run = mc.certify_training(LINEAR, moons(), mc.LInf(0.05), STEPS, steps=4, attacked=False, run_dir=tmp_path / "run")
    again = mc.load_run(tmp_path / "run")
    assert again.request.steps == again.steps == run.steps == 4
    assert np.array_equal(run.bounds.upper, again.bounds.upper)


def test_all_studies_train_what_certify_trains(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs of tolerance and compare, and the second one of blame, have the steps and the bits of the run of certify."""
    said = {"data": {"source": CLASSES[0], "target": "ill"}, "threat": {"missing": ["all"], "eps": "age=6"}}
    job = job_of(merged({}, {**said, "model": {"kind": "network"}}))
    run = job.run("relational")
    assert run.select.by_validation
    assert run.steps < run.request.plan.total
    made: list[mc.CertifiedRun] = []
    for place in ("doors", "studies.blame"):
        module = __import__(f"mibp_cert.{place}", fromlist=["certify"])

        def noted(*asked: Any, real: Any = module.certify) -> Any:
            made.append(real(*asked))
            return made[-1]

        monkeypatch.setattr(module, "certify", noted)
    asked: dict[str, Any] = {"select": job.select, **job.options, "attacked": False}
    found = mc.tolerance(
        job.network,
        job.data,
        mc.Family("amount", job.threat),
        job.training,
        given=job.threat,
        most=1,
        share=0.1,
        **asked,
    )
    assert found.decided is not None
    assert found.decided.steps == run.steps
    mc.compare(job.network, job.data, job.threat, job.training, **asked)
    mc.blame(run, top=1)
    studied = [one for one in made if not one.select.by_validation]
    assert len(studied) >= 5
    assert {one.steps for one in studied} == {one.request.plan.total for one in studied} == {run.steps}
    alike = [one for one in studied if one.engine == "relational" and one.threat.to_json() == run.threat.to_json()]
    assert len(alike) >= 2
    for one in alike:
        assert np.array_equal(one.bounds.lower, run.bounds.lower)
        assert np.array_equal(one.theta, run.theta)


def test_all_studies_fit_the_c_that_certify_chooses(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[float] = []

    def noted(*asked: Any, real: Any = choose_C, **options: Any) -> Any:
        found = real(*asked, **{**options, "grid": (0.01, 0.1)})
        chosen.append(found.C)
        return found

    monkeypatch.setattr("mibp_cert.job.choose_C", noted)
    for command in ("certify", "tolerance", "compare", "blame"):
        fast = ("--precision", "0.9", "--most", "1") if command == "tolerance" else ()
        invoke(command, *CLASSES, *fast)
    assert len(chosen) == 4
    assert len(set(chosen)) == 1


def test_the_steps_are_chosen_where_nothing_is_wrong_if_the_bounds_diverge() -> None:
    threats = [mc.LInf(50.0), mc.LInf(0.01)]
    training = mc.Training(epochs=2, batch_size=5, learning_rate=3.0)
    network = mc.Network.mlp([2, 6, 2])
    found = decide(network, moons(), threats, training, ("relational",), "best-validation")
    assert found.under == mc.LInf(0.01).words()
    with pytest.raises(Diverged):
        decide(network, moons(), threats[:1], training, ("relational",), "best-validation")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("tolerance", *CLASSES, "--share", "2"), "share of test points"),
        (("tolerance", *CLASSES, "--within", "1"), "classes are certain or not"),
        (("tolerance", *RIDGE, "--within", "-1"), "finite number > 0"),
        (("tolerance", "homes.csv", "--target", "price", "--vary", "flips", "--model", "ridge"), "Labels are flipped"),
        (("tolerance", *NUMBERS, "--point", "999"), "numbered from 0 to"),
        (("tolerance", *CLASSES[:5], "--model", "logistic"), "no amount that could be varied"),
        (("tolerance", *CLASSES, "--engine", "interval,relational"), "takes one engine"),
        (("blame", *CLASSES, "--engine", "interval"), "leave out --engine"),
        (("compare", *NUMBERS, "--engine", "interval,magic"), "no engine called 'magic'"),
    ],
)
def test_refusals_come_before_any_work(words: Any, said: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("work was done before the refusal")

    for place in ("mibp_cert.doors.certify", "mibp_cert.store.archive.certify", "mibp_cert.studies.blame.certify"):
        monkeypatch.setattr(place, never)
    found = CliRunner().invoke(cli.app, list(words))
    assert isinstance(found.exception, UserError), (found.output, found.exception)
    assert said in str(found.exception)


# Regression ---------------------------------------------------------------------------------------------------------------


def regression(threat: Any, *, steps: bool) -> tuple[Any, ...]:
    table = homes(40)
    recipe = mc.Recipe.fit(table.drop(columns="price"))
    whole = [
        mc.Dataset.from_frame(part, "price", recipe, regression=True) for part in (table[:24], table[24:32], table[32:])
    ]
    target = whole[0].target_column("price")
    data = mc.Split("homes", *(part.with_target(target) for part in whole))
    training = mc.Training(epochs=8, loss="squared-error", learning_rate=0.1)
    return (mc.Network.mlp([2, 1]) if steps else None), data, threat, training if steps else mc.Fitted("squared-error")


@pytest.mark.parametrize("steps", [True, False])
def test_the_tolerance_of_a_regression_is_what_ranges_and_attacks_say(steps: bool) -> None:
    network, data, threat, training = regression(mc.LInf({"size": 1.0}), steps=steps)
    asked: dict[str, Any] = {"attack_settings": QUICK, "precision": 0.3, "share": 0.8, "points": [1]}
    found = mc.tolerance(network, data, mc.Family("amount", threat), training, **asked)
    assert found.within is not None
    assert found.largest is not None
    assert 0 < found.largest < (found.smallest or np.inf)
    make = mc.certify_training if steps else mc.certify_fit
    first = (network,) if steps else ()
    run = make(*first, data, mc.LInf({"size": found.largest}), training, attack_settings=QUICK)
    clean = run.train.in_units(_outputs(run))
    assert np.mean(run.test_ranges.within(clean - found.within, clean + found.within)) >= 0.8
    rows = data.validation
    errors = np.abs(run.train.in_units(_outputs(run, rows.x)) - run.train.in_units(rows.targets))
    assert found.within == pytest.approx(errors.mean())
    wider = mc.tolerance(network, data, mc.Family("amount", threat), training, within=2 * found.within, **asked)
    assert wider.largest is not None
    assert wider.largest > found.largest
    assert found.to_json()["within"] == found.within


def _outputs(run: Any, x: Any = None) -> Any:
    from mibp_cert.certify.predict import nominal_outputs

    return nominal_outputs(run.network, run.theta, run.data.test.x if x is None else x)


def test_blame_of_a_network_for_numbers_finds_the_rows_and_columns_in_doubt() -> None:
    threat = mc.LInf({"size": 20.0}, rows=[3, 11]) & mc.TargetNoise(0.1)
    network, data, threat, training = regression(threat, steps=True)
    run = mc.certify_training(network, data, threat, training, attacked=False)
    found = mc.blame(run, top=2)
    assert sorted(found.rows["number"][:2]) == [3, 11]
    assert found.columns.index.tolist() == ["size", "(target)"]
    assert found.rows["effect"].sum() == pytest.approx(100.0)
    assert found.widths
    assert found.before is not None
    assert found.after is not None
    assert found.after < found.before == pytest.approx(run.test_ranges.width.mean())
    assert "wide on average" in found.sentence


def test_effects_on_an_output_are_what_the_worst_datasets_move_it_by() -> None:
    """Of one point: the effects before they are shares are the reach of the linear part, down and up."""
    from mibp_cert.engines import Inputs
    from mibp_cert.engines.relational import linear_part, states_of
    from mibp_cert.studies.blame import _effects

    network, data, threat, training = regression(mc.LInf({"size": 5.0}) & mc.TargetNoise(2.0), steps=True)
    run = mc.certify_training(network, data, threat, training, attacked=False)
    (state,) = states_of(run.bounds)
    x = data.test.x[:1]
    _, linear = linear_part(network.forward_graph, network.layout, state, Inputs(x))
    g = linear.data[0, 0]
    ends = [sum(float(block.support(s * g[block.symbols])[0]) for block in state.noise.blocks) for s in (1.0, -1.0)]
    assert sum(_effects(run, x, None).values()) == pytest.approx(-sum(ends), rel=1e-9)


def test_every_study_of_numbers_on_the_command_line(here: Path) -> None:
    for words in (NUMBERS, RIDGE):
        told = invoke("tolerance", *words, "--precision", "0.5", "--json", "t.json")
        assert "known to lie within ± " in told
        assert json.loads((here / "t.json").read_text())["within"] > 0
        told = invoke("blame", *words, "--top", "2")
        assert "By column: size 100 %" in told
        assert "wide on average instead of" in told
        told = invoke("compare", *words)
        assert "certified error  range width" in told
        assert "in the units of the target" in told


# Advice -------------------------------------------------------------------------------------------------------------------


def commands_in(told: str) -> list[list[str]]:
    """The commands that were advised."""
    return [shlex.split(line)[1:] for line in told.splitlines() if line.startswith("  mibp-cert ")]


def asked_by(words: list[str]) -> dict[str, Any]:
    """The configuration that a command line stands for, without running it."""
    heard: list[Any] = []
    command = cli.shared(lambda config: heard.append(config), cli.MODEL | cli.FLAGS | cli.QUESTIONS)
    command.__annotations__["return"] = None
    app = cli.typer.Typer()
    app.command()(command)
    found = CliRunner().invoke(app, words)
    assert found.exit_code == 0, (words, found.output, found.exception)
    return dict(heard[0])


def test_a_configuration_is_a_command_line_and_back() -> None:
    for key, _ in (cli.MODEL | cli.FLAGS | cli.QUESTIONS).values():
        section, _, entry = key.partition(".")
        value = "logistic" if key == "model.kind" else OTHER[key]
        said: dict[str, Any] = {"data": {"source": "two moons.csv"}, "network": {}}
        if section == "model":
            said["model"] = {"kind": "logistic"}
        for name, keys in BESIDE.get(key, {}).items():
            said[name] = {**said.get(name, {}), **keys}
        said[section] = {**said.get(section, {}), entry: value}
        if said["data"]["source"] != "two moons.csv" and "model" in said:
            said["model"] = {"kind": "logistic"}
        asked = Asked(merged({}, said), said)
        words = shlex.split(asked.command("certify"))
        assert words[:2] == ["mibp-cert", "certify"]
        again, meant = asked_by(words[2:]), merged({}, said)
        plain = {name: {k: str(v) for k, v in keys.items()} for name, keys in again.items()}
        assert plain == {name: {k: str(v) for k, v in keys.items()} for name, keys in meant.items()}, key
    assert defaults()["data"]["source"] is None


def test_flags_go_over_the_file_in_an_advice(tmp_path: Path) -> None:
    said = {"data": {"source": "x.csv"}, "questions": {"margin": 0.1}, "attack": {"enabled": False}}
    asked = Asked(merged({}, said), said, tmp_path / "run.toml")
    words = shlex.split(asked.command("tolerance", {"training.learning_rate": 0.5, "attack.enabled": None}, share=0.5))
    assert words == [
        "mibp-cert",
        "tolerance",
        "x.csv",
        "--config",
        str(tmp_path / "run.toml"),
        "--lr",
        "0.5",
        "--share",
        "0.5",
    ]
    assert asked.command("certify", {"threat.eps": "-1"}).endswith("--margin 0.1 --no-attack --eps=-1")


SURVEY = ("my patients.csv", "--target", "ill", "--no-attack")
NOES = {
    "little certified": ("certify", *CLASSES, "--epochs", "4", "--select", "last", "--lr", "1"),
    "another engine": ("certify", *CLASSES, "--epochs", "4", "--engine", "interval"),
    "a fitted model": ("certify", *CLASSES, "--model", "logistic", "--C", "0.05"),
    "a wide range": ("certify", *RIDGE[:4], "size=5,rooms=0.4", *RIDGE[5:]),
    "no value": ("tolerance", *CLASSES, "--share", "1", "--epochs", "2"),
    "no value for numbers": ("tolerance", *NUMBERS[:4], "rooms=1", *NUMBERS[5:], "--missing", "size", "--within", "1e-9"),
    "no difference": ("compare", *CLASSES, "--epochs", "2"),
    "nothing uncertain": ("blame", *SURVEY, "--drop", "mood", "--eps", "age=0.001", "--model", "logistic", "--C", "0.1"),
    "nothing gained": ("blame", *CLASSES, "--top", "1", "--epochs", "2"),
}  # fmt: skip


@pytest.mark.parametrize("name", NOES)
def test_every_no_names_commands_that_run(name: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "--missing" in NOES[name] and "homes.csv" in NOES[name]:
        table = homes()
        table.loc[::3, "size"] = np.nan
        table.to_csv("homes.csv", index=False)
    advised = commands_in(invoke(*NOES[name]))
    assert advised, name
    for words in advised[: 2 if name in ("no value", "a fitted model") else 1]:
        fast = ["--precision", "0.9", "--most", "1"] if words[0] == "tolerance" else []
        assert "rror" not in invoke(*words, *fast, "--quiet")
    for words in advised:
        assert words[0] in ("certify", "tolerance", "blame", "compare", "report")
        assert words[1] == NOES[name][1]


def test_a_model_that_only_knows_the_frequent_class_is_followed_by_one_that_knows_both(here: Path) -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(150, 2)), columns=["income", "debt"]).round(3)
    table["deny"] = np.where(table["income"] + 0.5 * rng.normal(size=150) > 1.4, "yes", "no")
    table.to_csv("loans.csv", index=False)
    asked = ("certify", "loans.csv", "--target", "deny", "--eps", "income=0.02", "--no-attack")
    told = invoke(*asked)
    assert "no better than always answering 'no'" in told
    first, *_ = commands_in(told)
    assert first[-2:] == ["--class-weight", "balanced"]
    again = invoke(*first)
    assert "Warning" not in again
    assert "all classes counting alike" in again
    assert all("--class-weight" not in words for words in commands_in(invoke(*asked, "--flips", "1")))


@pytest.mark.parametrize(("said", "weights"), [("balanced", "balanced"), ("yes=3, no=0.5", {"yes": 3.0, "no": 0.5})])
def test_weights_of_classes_can_be_said_on_the_command_line(said: str, weights: Any, here: Path) -> None:
    data = {"source": "my patients.csv", "target": "ill"}
    told = {"data": data, "model": {"class_weight": said}, "threat": {"missing": ["all"]}}
    model = job_of(merged({}, told)).training
    assert isinstance(model, mc.Fitted)
    assert model.class_weight == weights
    told["model"] = {"class_weight": "yes=much"}
    with pytest.raises(mc.UserError, match=r"balanced, or weights such as yes=3,no=1"):
        job_of(merged({}, told))


def test_bounds_that_diverge_name_the_next_command(here: Path) -> None:
    words = ("certify", "two-moons", "--model", "logistic", "--C", "1000", "--eps", "3", "--no-attack")
    found = CliRunner().invoke(cli.app, list(words))
    assert isinstance(found.exception, Diverged)
    told = str(found.exception)
    assert re.search(
        r"Next, a smaller C: mibp-cert certify two-moons --model logistic --C [\d.]+ --eps 3 --no-attack$", told
    )
    assert len(told.splitlines()) == 1
    invoke(*shlex.split(told.partition("mibp-cert ")[2]))


# Loss by part -------------------------------------------------------------------------------------------------------------


def test_each_part_alone_is_certified_by_the_same_training() -> None:
    threat = mc.LInf(0.1) & mc.LabelFlips(3)
    for run in (
        mc.certify_fit(moons(), threat, mc.Fitted(C=0.3), attacked=False),
        mc.certify_training(LINEAR, moons(), threat, STEPS, select=BEST, attacked=False),
    ):
        found = mc.loss_by_part(run)
        assert found.whole.certification_rate == run.test.certification_rate()
        for part, alone in zip(found.parts, threats_in(threat), strict=True):
            asked = {"attacked": False} | ({} if run.fitted else {"steps": run.steps})
            first = () if run.fitted else (LINEAR,)
            make = mc.certify_fit if run.fitted else mc.certify_training
            again = make(*first, moons(), alone, run.training, **asked)
            assert part.words == alone.words()
            assert part.certified_accuracy == again.certified_test_accuracy
            print(run.engine, part.said, found.whole.said)
        assert set(found.by_column) <= {"0", "1", "(label)"}
        assert sum(found.by_column.values()) == pytest.approx(1.0)
        plain = json.loads(json.dumps(found.to_json()))
        assert set(plain["parts"][0]) == {"words", "certified_accuracy", "certification_rate"}


def test_missing_values_are_the_usual_ones_in_the_parts_that_do_not_doubt_them() -> None:
    table = patients()
    table.loc[3, "age"] = np.nan
    recipe = mc.Recipe.fit(table.drop(columns="ill"), categorical=["mood"])
    parts = (table[:40], table[40:].dropna())
    data = [mc.Dataset.from_frame(part, "ill", recipe, ("no", "yes")) for part in parts]
    threat = mc.Missing("mood") & mc.LInf({"age": 2.0}) & mc.Missing("age")
    assert [part.knows_missing() for part in threats_in(threat)] == [True, False]
    run = mc.certify_fit(mc.Split("patients", data[0], None, data[1]), threat, mc.Fitted(C=0.05), attacked=False)
    found = mc.loss_by_part(run)
    assert found.parts[1].words.endswith("missing values being the usual ones")
    assert all(part.certification_rate is not None for part in found.parts)


def test_parts_on_the_command_line(here: Path) -> None:
    words = ("certify", *CLASSES, "--model", "logistic", "--C", "0.05", "--json", "out.json")
    told = invoke(*words)
    assert told.count("Only this: ") == 2
    found = json.loads((here / "out.json").read_text())
    assert len(found["parts"]) == 2
    assert sum(found["by_column"].values()) == pytest.approx(1.0)
    told = invoke(*words, "--no-parts")
    assert "Only this: " not in told
    assert any("--parts" in command for command in commands_in(told))
    assert "parts" not in json.loads((here / "out.json").read_text())
    told = invoke("certify", *RIDGE, "--target-eps", "0.1", "--parts")
    assert re.search(r"Both at once: error at most [\d.]+, ranges [\d.]+ wide", told)


def test_parts_that_would_take_long_are_left_to_a_command(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mibp_cert.cli.commands.QUICK", 0.0)
    told = invoke("certify", *CLASSES, "--model", "logistic", "--C", "0.05")
    assert "Only this: " not in told
    assert any(command[0] == "certify" and "--parts" in command for command in commands_in(told))
