"""Ordinary training: equal to PyTorch, to the losses' definition, and with the stated conventions at kinks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from conftest import small_data
from mibp_cert.data import Dataset
from mibp_cert.errors import UserError
from mibp_cert.graph import evaluate
from mibp_cert.nets import (
    SGD,
    AvgPool2d,
    Conv2d,
    Flatten,
    LeakyReLU,
    Linear,
    Network,
    ReLU,
    batch_plan,
    learning_rates,
    loss_named,
    run_steps,
    trace_steps,
)


def _torch_training(torch: Any, network: Network, theta: Any, data: Dataset, plan: Any, rate: float) -> Any:
    """The same training by autograd and optim.SGD in float64; the hinge by `clamp`, which is active at margin exactly 1."""
    parameters = [torch.tensor(np.array(v), requires_grad=True) for v in network.layout.unflatten(theta).values()]
    x, y = torch.tensor(np.array(data.x)), torch.tensor(np.array(data.y, dtype=np.int64))
    optimiser = torch.optim.SGD(parameters, lr=rate)
    for rows in plan:
        optimiser.zero_grad()
        out = x[rows]
        for i in range(0, len(parameters), 2):
            out = (torch.relu(out) if i else out) @ parameters[i].T + parameters[i + 1]
        if network.logits == 1:
            per_row = torch.clamp(1 - (2 * y[rows] - 1) * out[:, 0], min=0)
        else:
            own = out.gather(1, y[rows][:, None])
            other = 1 - torch.nn.functional.one_hot(y[rows], network.logits)
            per_row = (torch.clamp(1 - own + out, min=0) * other).sum(1)
        per_row.mean().backward()
        optimiser.step()
    return np.concatenate([p.detach().numpy().ravel() for p in parameters])


@pytest.mark.parametrize("sizes", [[1], [2], [5, 1], [5, 2], [4, 3, 2], [3, 3, 3, 1], [4, 4, 3]])
@pytest.mark.parametrize("batch_size", [1, 3, 8])
@pytest.mark.parametrize("mode", ["shuffle", "subsample"])
def test_training_equals_pytorch(torch: Any, sizes: list[int], batch_size: int, mode: str) -> None:
    data = small_data(np.random.default_rng(sum(sizes)), rows=8, features=3, classes=max(2, sizes[-1]))
    network = Network.mlp([3, *sizes])
    plan = batch_plan(8, batch_size, 3, seed=batch_size, mode=mode)
    theta = network.initialise(7)
    loss = loss_named("hinge", sizes[-1])
    steps = [trace_steps(network, loss, SGD(0.3), len(data.classes), [rows]) for rows in plan]
    ours = run_steps(steps, theta, data.x, data.one_hot)
    np.testing.assert_allclose(ours, _torch_training(torch, network, theta, data, plan, 0.3), rtol=0, atol=1e-12)


def test_kinks_equal_pytorch(torch: Any) -> None:
    """Preactivation exactly 0 and margin exactly 1 in the same batch."""
    network = Network.mlp([1, 1, 1])
    data = Dataset.of([[0.0], [1.0]], [1, 0], (0, 1))
    theta = np.array([1.0, 0.0, 1.0, 1.0])  # row 0: preactivation 0, logit 1, margin 1
    step = trace_steps(network, loss_named("hinge", 1), SGD(0.5), 2, [np.arange(2)])
    ours = run_steps([step], theta, data.x, data.one_hot)
    np.testing.assert_array_equal(ours, _torch_training(torch, network, theta, data, [np.arange(2)], 0.5))


def _loss(name: str, o: Any, data: Dataset) -> Any:
    """The loss of every row, from its definition."""
    one, signs = o.shape[1] == 1, 2 * data.y - 1
    own = o[np.arange(len(o)), 0 if one else data.y][:, None]
    slack = np.maximum(0, 1 - signs[:, None] * o) if one else np.maximum(0, 1 - own + o) * (1 - data.one_hot)
    match name:
        case "hinge":
            return slack.sum(axis=1)
        case "squared-hinge":
            return (slack**2).sum(axis=1)
        case "cross-entropy":
            return np.log1p(np.exp(-signs * o[:, 0])) if one else np.log(np.exp(o - own).sum(axis=1))
        case "squared-error":
            return ((o - data.one_hot) ** 2).sum(axis=1)
    raise AssertionError(name)


@pytest.mark.parametrize(("sizes", "classes"), [([3, 1], 2), ([3, 2], 2), ([4, 3], 3)])
@pytest.mark.parametrize("loss", ["hinge", "squared-hinge", "cross-entropy", "squared-error"])
def test_update_is_the_finite_difference_of_the_mean_loss(loss: str, sizes: list[int], classes: int) -> None:
    rng = np.random.default_rng(11)
    data = small_data(rng, rows=5, classes=classes)
    if loss == "squared-error" and sizes[-1] == 1:
        data = Dataset.regression(data.x, rng.normal(size=5))
    network = Network.mlp([2, *sizes])
    outputs = data.one_hot.shape[1]
    step = trace_steps(network, loss_named(loss, sizes[-1]), SGD(1.0), outputs, [np.arange(5)])
    theta = network.initialise(2)

    def mean_loss(at: Any) -> float:
        o = evaluate(network.forward_graph(5), {**network.layout.unflatten(at), "x": data.x})["logits"]
        return float(((o - data.one_hot) ** 2).mean() if outputs == 1 else _loss(loss, o, data).mean())

    gradient = theta - run_steps([step], theta, data.x, data.one_hot)
    h = 1e-6
    for i in range(len(theta)):
        move = h * np.eye(len(theta))[i]
        assert gradient[i] == pytest.approx((mean_loss(theta + move) - mean_loss(theta - move)) / (2 * h), abs=1e-7)


def test_relu_has_zero_slope_at_zero_and_the_hinge_is_active_at_margin_one() -> None:
    network = Network.mlp([1, 1, 1], bias=False)
    step = trace_steps(network, loss_named("hinge", 1), SGD(1.0), 2, [np.array([0])])
    at_zero = Dataset.of([[0.0]], [1], (0, 1))
    np.testing.assert_array_equal(run_steps([step], np.array([1.0, 1.0]), at_zero.x, at_zero.one_hot), [1.0, 1.0])
    at_margin = Dataset.of([[1.0]], [1], (0, 1))
    np.testing.assert_array_equal(run_steps([step], np.array([1.0, 1.0]), at_margin.x, at_margin.one_hot), [2.0, 2.0])
    beyond = Dataset.of([[np.nextafter(1.0, 2.0)]], [1], (0, 1))
    np.testing.assert_array_equal(run_steps([step], np.array([1.0, 1.0]), beyond.x, beyond.one_hot), [1.0, 1.0])


def test_batch_plans_are_seeded_and_cover_the_data() -> None:
    plan = batch_plan(10, 4, 2, seed=3)
    assert [len(rows) for rows in plan] == [4, 4, 2, 4, 4, 2]
    assert sorted(np.concatenate(plan[:3]).tolist()) == list(range(10))
    assert all(np.array_equal(a, b) for a, b in zip(plan, batch_plan(10, 4, 2, seed=3), strict=True))
    drawn = batch_plan(10, 4, 2, seed=3, mode="subsample")
    assert [len(rows) for rows in drawn] == [4] * 6
    assert all(len(set(rows.tolist())) == 4 for rows in drawn)
    assert batch_plan(5, 5, 1, seed=0)[0].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: batch_plan(10, 11, 1, 0), "between 1 and the 10 training rows, got 11"),
        (lambda: batch_plan(10, 0, 1, 0), "got 0"),
        (lambda: batch_plan(10, 5, 0, 0), "epochs"),
        (lambda: batch_plan(10, 5, 1, 0, "random"), "'random'"),
        (lambda: SGD(float("nan")), "learning rate"),
        (lambda: SGD(3e-323), "at least 1e-250"),
        (lambda: SGD(0.1, momentum=1.0), "momentum must be"),
        (lambda: SGD(0.1, momentum=-0.1), "momentum must be"),
        (lambda: SGD(0.1, weight_decay=-1e-9), "weight decay must be"),
        (lambda: SGD(0.1, clip=1e9), "leave it out"),
        (lambda: learning_rates(0.1, [0.1], 2), "1 learning rates for 2 epochs"),
        (lambda: learning_rates(0.1, "step:0:0.5", 2), "no schedule"),
        (lambda: LeakyReLU(1.0), "slope of LeakyReLU"),
        (
            lambda: Network((Linear(2, 3), ReLU(), Linear(4, 2)), 2),
            r"Layer 2, Linear\(inputs=4.* takes 4 features, but layer 1, ReLU\(\), returns 3 features",
        ),
        (lambda: Network((Conv2d(2, 4, 3),), (1, 8, 8)), "takes 2 channels, but the input has 1 channel"),
        (lambda: Network((Conv2d(1, 4, 3),), (1, 8, 8)), "end with Flatten"),
        (lambda: Network((Conv2d(1, 4, 3),), 64), "takes images, given as"),
        (lambda: Network((AvgPool2d(9), Flatten()), (1, 8, 8)), "needs an image of at least 9"),
        (lambda: Network((Conv2d(1, 4, 2, padding=2), Flatten()), (1, 8, 8)), "padding below the kernel"),
        (lambda: SGD("fast"), "learning_rate must be a number"),
        (lambda: learning_rates(0.1, None, 2), "one number per epoch"),
        (lambda: Network((), 2), "sequence of layers"),
        (lambda: Network((Linear(2, 2), ReLU), 2), "sequence of layers"),
        (lambda: Network((Conv2d(1, 2, 3), Flatten()), (8, 8)), "channels, height, width"),
        (lambda: Network((Conv2d(1, 2, (3, 3)), Flatten()), (1, 8, 8)), "one whole number each"),
        (lambda: Network.mlp([2, 2], activation="tanh"), "a layer such as Tanh"),
        (lambda: loss_named("cross-entropy", 1).check(1, 3), "2 classes"),
        (lambda: loss_named("squared-error", 2).check(2, 3), "one output per target"),
        (lambda: Network.mlp(3), "a list such as"),
        (lambda: Dataset.of([[1.0], [2.0]], ["a", "b"], ("a", "b", "a")), "twice"),
        (lambda: Network.mlp([2]), "at least an input and an output"),
        (lambda: loss_named("tent", 2), "'tent'"),
        (lambda: loss_named("hinge", 3).check(3, 2), "one logit per class"),
        (lambda: loss_named("hinge", 1).check(1, 3), "2 classes"),
        (
            lambda: trace_steps(Network.mlp([2, 2]), loss_named("hinge", 2), SGD(), 2, [np.array([], dtype=int)]),
            "empty",
        ),
        (lambda: Network.mlp([2, 2]).initialise(0, "zero"), "'zero'"),
        (lambda: Dataset.of([[1.0, np.nan]], [0]), "row 0, column 1"),
        (lambda: Dataset.of([[1.0], [np.inf]], [0, 1]), "row 1, column 0"),
        (lambda: Dataset.of([["a"], ["b"]], [0, 1]), "table of numbers"),
        (lambda: Dataset.of([[1.0], [2.0]], [0, 5], (0, 1)), "labels 5 are not among the classes"),
        (lambda: Dataset.of([[1.0], [2.0]], [0, 0]), "two classes"),
        (lambda: Dataset.of([[1.0], [2.0]], [0]), "2 rows"),
        (lambda: Dataset.of(np.zeros((0, 2)), []), "table"),
    ],
)
def test_bad_input_is_one_sentence(call: Any, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)
