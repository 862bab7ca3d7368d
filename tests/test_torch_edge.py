"""PyTorch at the edge: a module's weights start the training, the clean model comes back."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import mibp_cert as mc
from mibp_cert.certify.predict import nominal_outputs
from mibp_cert.errors import UserError


def test_importing_the_torch_edge_does_not_import_torch() -> None:
    code = "import sys, mibp_cert; mibp_cert.from_torch; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


def test_without_torch_the_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UserError, match=r"mibp-cert\[torch\]"):
        mc.from_torch(object())


def test_what_is_no_run_is_refused_before_torch_is_looked_for() -> None:
    with pytest.raises(UserError, match="to_torch takes a run or an estimator that is fitted, got Dataset"):
        mc.to_torch(mc.two_moons(0).train)


def test_a_torch_module_starts_the_training_and_comes_back(torch: Any) -> None:
    nn = torch.nn
    torch.manual_seed(3)
    module = nn.Sequential(
        nn.Linear(2, 5), nn.Tanh(), nn.Sequential(nn.Linear(5, 3), nn.LeakyReLU(0.2)), nn.Linear(3, 2)
    )
    start, data = mc.from_torch(module), mc.two_moons(0)
    x = torch.from_numpy(np.array(data.test.x))
    before = module.double()(x).detach().numpy()
    np.testing.assert_allclose(nominal_outputs(start.network, start.theta, data.test.x), before, rtol=1e-12)
    training = mc.Training(epochs=3, learning_rate=0.2, loss="cross-entropy")
    run = mc.certify_training(start.network, data, mc.LInf(0.01), training, theta0=start.theta)
    back = mc.to_torch(run)
    outputs = nominal_outputs(run.network, run.theta, data.test.x)
    np.testing.assert_allclose(back(x).detach().numpy(), outputs, rtol=1e-12)
    # PyTorch trains the same module on a dataset of the threat: inside the bounds.
    rng = np.random.default_rng(0)
    moved = torch.from_numpy(data.train.x + rng.uniform(-0.01, 0.01, data.train.x.shape))
    labels = torch.from_numpy(np.array(data.train.y))
    optimiser = torch.optim.SGD(module.parameters(), lr=0.2)
    for _ in range(3):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(moved), labels).backward()
        optimiser.step()
    theta = np.concatenate([p.detach().numpy().ravel() for p in module.parameters()])
    assert run.bounds.contains(theta)


def test_a_torch_convolution_keeps_its_weights(torch: Any) -> None:
    nn = torch.nn
    module = nn.Sequential(
        nn.Conv2d(1, 3, 3, stride=2, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(12, 2)
    ).double()
    start = mc.from_torch(module, (1, 8, 8))
    images = np.random.default_rng(0).random((4, 64))
    expected = module(torch.from_numpy(images).reshape(4, 1, 8, 8)).detach().numpy()
    np.testing.assert_allclose(nominal_outputs(start.network, start.theta, images), expected, rtol=1e-12)


def test_the_estimator_starts_from_a_torch_module(torch: Any) -> None:
    nn = torch.nn
    module = nn.Sequential(nn.Linear(2, 2))
    data = mc.two_moons(0).train
    model = mc.CertifiedClassifier(network=mc.from_torch(module), threat=mc.LInf(0.01), scaling="none", epochs=0 + 1)
    model.fit(np.array(data.x), np.array(data.y))
    weights = np.concatenate([p.detach().double().numpy().ravel() for p in module.parameters()])
    assert np.array_equal(model.run_.start, weights)


def test_a_fitted_estimator_comes_back_as_a_torch_module(torch: Any) -> None:
    data = mc.two_moons(0)
    X, y = np.array(data.train.x), np.array(data.train.y)
    for model in (
        mc.CertifiedClassifier(hidden=(3,), threat=mc.LInf(0.001), epochs=1, scaling="none"),
        mc.CertifiedLogisticRegression(threat=mc.LInf(0.001)),
    ):
        with pytest.raises(
            UserError, match=r"to_torch takes a run or an estimator that is fitted, got .*; fit it first"
        ):
            mc.to_torch(model)
        run = model.fit(X, y).run_
        module, same = mc.to_torch(model), mc.to_torch(run)
        inputs = torch.from_numpy(np.array(data.test.x))
        assert torch.equal(module(inputs), same(inputs))
        scores = module(inputs).detach().numpy()
        found = scores.argmax(axis=1) if scores.shape[1] > 1 else (scores[:, 0] > 0).astype(int)
        assert np.array_equal(found, model.predict_nominal(data.test.x))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda nn: nn.Sequential(nn.Linear(2, 3), nn.GELU(), nn.Linear(3, 2)),
            r"Module 1, GELU\(.*\), has no counterpart",
        ),
        (lambda nn: nn.Sequential(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))), "Module 1, BatchNorm1d"),
        (lambda nn: nn.Sequential(nn.Conv2d(2, 2, 3, groups=2)), "has groups"),
        (lambda nn: nn.Sequential(nn.Conv2d(1, 2, (3, 2))), "is not square"),
        (lambda nn: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()), "name the shape"),
        (lambda nn: nn.Linear(2, 2), "takes an nn.Sequential, got Linear"),
        (lambda nn: nn.Sequential(nn.ReLU()), "nothing to train"),
    ],
)
def test_an_unsupported_torch_module_is_named_with_its_index(torch: Any, make: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        mc.from_torch(make(torch.nn))


# Frozen bodies ----------------------------------------------------------------------------------------------------------


def _body(torch: Any, *, head: bool) -> Any:
    nn = torch.nn
    torch.manual_seed(1)
    body = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 4), nn.ReLU())
    body.requires_grad_(requires_grad=False)
    return nn.Sequential(body, nn.Linear(4, 1)) if head else body


@pytest.mark.parametrize("head", [False, True])
def test_a_frozen_torch_body_with_a_fitted_head_is_certified(torch: Any, head: bool) -> None:
    """Heads that PyTorch fits behind the body, on datasets of the threat, lie in the bounds."""
    module, eps = _body(torch, head=head), 0.02
    body = module[0] if head else module
    data = mc.two_moons(0, sizes=(30, 10, 20))
    found = mc.features_from_torch(module)
    assert found.network.sizes == [2, 6, 4]
    model = mc.Fitted(C=0.5, features=found)
    quick = mc.AttackSettings(members=8, points=8, parameters=4, rounds=1)
    run = mc.certify_fit(data, mc.LInf(eps), model, attack_settings=quick)
    assert run.test is not None
    assert run.test.certified.any()
    rng, body = np.random.default_rng(0), body.double()
    for _ in range(3):
        moved = data.train.x + eps * rng.choice([-1.0, 1.0], data.train.x.shape)
        phi, labels = body(torch.from_numpy(moved)), torch.from_numpy(np.array(data.train.y, dtype=np.float64))
        last = torch.nn.Linear(4, 1).double()
        optimiser = torch.optim.LBFGS(
            last.parameters(), max_iter=500, tolerance_grad=1e-12, tolerance_change=0.0, line_search_fn="strong_wolfe"
        )

        def closure(phi: Any = phi, labels: Any = labels, last: Any = last, optimiser: Any = optimiser) -> Any:
            optimiser.zero_grad()
            loss = torch.nn.functional.binary_cross_entropy_with_logits(last(phi)[:, 0], labels, reduction="sum")
            loss = loss + (last.weight**2).sum() / (2 * model.C)
            loss.backward()
            return loss

        optimiser.step(closure)
        theta = np.concatenate([p.detach().numpy().ravel() for p in (*body.parameters(), *last.parameters())])
        assert (run.bounds.lower - 1e-7 <= theta).all()
        assert (theta <= run.bounds.upper + 1e-7).all()
    back = mc.to_torch(run)(torch.from_numpy(np.array(data.test.x))).detach().numpy()
    np.testing.assert_allclose(back, nominal_outputs(run.network, run.theta, data.test.x), rtol=1e-9)


def test_images_go_through_a_frozen_torch_body(torch: Any) -> None:
    nn = torch.nn
    body = nn.Sequential(nn.Conv2d(1, 2, 3, stride=2), nn.ReLU(), nn.Flatten()).requires_grad_(requires_grad=False)
    found = mc.features_from_torch(body, (1, 8, 8))
    images = np.random.default_rng(0).random((4, 64))
    network, theta = found.body(64)
    expected = body.double()(torch.from_numpy(images).reshape(4, 1, 8, 8)).numpy()
    np.testing.assert_allclose(nominal_outputs(network, theta, images), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda nn: nn.Linear(2, 1), "features_from_torch takes an nn.Sequential"),
        (lambda nn: nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)), "no frozen leading layers"),
        (lambda nn: nn.Sequential(nn.ReLU(), nn.Linear(2, 1)), "nothing to freeze"),
        (
            lambda nn: nn.Sequential(nn.Linear(2, 3).requires_grad_(False), nn.Linear(3, 3), nn.ReLU()),
            "module 1, Linear",
        ),
        (lambda nn: nn.Sequential(nn.Linear(2, 3).requires_grad_(False), nn.BatchNorm1d(3)), "module 1, BatchNorm1d"),
        (lambda nn: nn.Sequential(nn.Linear(2, 3).requires_grad_(False), nn.Dropout()), "has no counterpart"),
    ],
)
def test_a_body_that_is_not_frozen_or_not_plain_is_refused(torch: Any, make: Any, words: str) -> None:
    with pytest.raises(UserError, match=words) as found:
        mc.features_from_torch(make(torch.nn))
    assert "\n" not in str(found.value)


def test_from_torch_names_the_door_for_frozen_layers(torch: Any) -> None:
    with pytest.raises(UserError, match=r"is frozen .* features_from_torch"):
        mc.from_torch(_body(torch, head=True))
