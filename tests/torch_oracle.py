"""The same training by PyTorch: its layers, losses, optimiser and schedules, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from mibp_cert.nets import AvgPool2d, Conv2d, Cosine, Flatten, LeakyReLU, Linear, Network, ReLU, Sigmoid, Softplus, Tanh


def model(torch: Any, network: Network, theta: Any) -> Any:
    """The network as a `torch.nn.Sequential` with the parameters `theta`."""
    tensors = network.layout.unflatten(np.asarray(theta))
    layers: list[Any] = [] if len(network.shapes[0]) == 1 else [torch.nn.Unflatten(1, network.shapes[0])]
    for i, layer in enumerate(network.layers):
        match layer:
            case Linear():
                made = torch.nn.Linear(layer.inputs, layer.outputs, layer.bias)
            case Conv2d():
                sizes = (layer.channels, layer.filters, layer.kernel, layer.stride, layer.padding)
                made = torch.nn.Conv2d(*sizes, bias=layer.bias)
            case ReLU():
                made = torch.nn.ReLU()
            case LeakyReLU():
                made = torch.nn.LeakyReLU(layer.slope)
            case Sigmoid():
                made = torch.nn.Sigmoid()
            case Tanh():
                made = torch.nn.Tanh()
            case Softplus():
                made = torch.nn.Softplus(threshold=40.0)
            case Cosine():
                made = _cosine(torch)
            case Flatten():
                made = torch.nn.Flatten()
            case AvgPool2d():
                made = torch.nn.AvgPool2d(layer.kernel, layer.stride)
            case _:
                raise AssertionError(layer)
        made = made.double()
        with torch.no_grad():
            for name in layer.parameter_shapes():
                getattr(made, name).copy_(torch.tensor(np.array(tensors[f"{i}.{name}"])))
        layers.append(made)
    return torch.nn.Sequential(*layers)


def _cosine(torch: Any) -> Any:
    class Cos(torch.nn.Module):  # type: ignore[misc]
        def forward(self, a: Any) -> Any:
            return torch.cos(a)

    return Cos()


def loss_of(torch: Any, name: str, out: Any, y: Any) -> Any:
    """Mean loss for one-hot labels (or targets) `y`, in PyTorch's own functions where it has them."""
    functional = torch.nn.functional
    single = out.shape[1] == 1
    sign = 2 * y[:, -1] - 1
    match name:
        case "hinge" | "squared-hinge":
            power = 1 if name == "hinge" else 2
            if single:
                return (torch.clamp(1 - sign * out[:, 0], min=0) ** power).mean()
            own = (out * y).sum(1, keepdim=True)
            return ((torch.clamp(1 - own + out, min=0) ** power) * (1 - y)).sum(1).mean()
        case "cross-entropy" if single:
            return functional.binary_cross_entropy_with_logits(out[:, 0], y[:, 1])
        case "cross-entropy":
            return functional.cross_entropy(out, y.argmax(1))
        case "huber":
            return functional.huber_loss(out, y, reduction="sum") / len(y)
        case "squared-error":
            return functional.mse_loss(out, y, reduction="sum") / len(y)
    raise AssertionError(name)


def train(
    torch: Any, network: Network, loss: str, optimiser: Any, rates: Any, theta: Any, x: Any, y: Any, plan: Any
) -> Any:
    """Parameters after one step per batch of the plan, at the listed learning rates."""
    net = model(torch, network, theta)
    x, y = torch.tensor(np.array(x)), torch.tensor(np.array(y))
    sgd = torch.optim.SGD(net.parameters(), lr=1.0, momentum=optimiser.momentum, weight_decay=optimiser.weight_decay)
    for rows, rate in zip(plan, rates, strict=True):
        sgd.param_groups[0]["lr"] = rate
        sgd.zero_grad()
        loss_of(torch, loss, net(x[rows]), y[rows]).backward()
        if optimiser.clip is not None:
            torch.nn.utils.clip_grad_value_(net.parameters(), optimiser.clip)
        sgd.step()
    return np.concatenate([p.detach().numpy().ravel() for p in net.parameters()])
