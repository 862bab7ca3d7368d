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
