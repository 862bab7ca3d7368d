"""PyTorch at the edge: start from a user's module and its weights, and hand the clean model back.

Nothing here is imported by the rest of the package, and PyTorch itself only when a function is called.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mibp_cert.certify import CertifiedRun
from mibp_cert.errors import UserError
from mibp_cert.nets import AvgPool2d, Conv2d, Flatten, Layer, LeakyReLU, Linear, Network, ReLU, Sigmoid, Tanh
from mibp_cert.options import Start

Shape = tuple[int, int, int]


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise UserError("This needs PyTorch: pip install 'mibp-cert[torch]'.") from None
    return torch


def from_torch(module: Any, shape: Shape | None = None) -> Start:
    """The network and the initial parameters of an `nn.Sequential`; `shape` (channels, height, width) where it takes images.

    Weights become float64. A module without a counterpart, or one that would be trained otherwise than its layers say (frozen or
    shared parameters, hooks, parametrisations, a forward of its own), is refused and named with its place.
    """
    nn = _torch().nn
    if type(module) is not nn.Sequential:
        raise UserError(f"from_torch takes an nn.Sequential, got {type(module).__name__}; put the layers into one.")
    parts = _flat(module, nn)
    _check_plain(parts)
    layers: list[Layer] = []
    tensors: list[NDArray[np.float64]] = []
    for place, part in enumerate(parts):
        if type(part) is nn.Identity:
            continue
        layers.append(_layer(place, part, nn))
        # PyTorch and this package keep weight and bias in the same order and shape.
        tensors += [p.detach().cpu().double().numpy().ravel() for p in part.parameters()]
    if not any(layer.parameter_shapes() for layer in layers):
        raise UserError("The module has no layer with parameters: there is nothing to train.")
    network = Network(tuple(layers), _input_shape(layers, shape))
    return Start(network, np.concatenate(tensors))


def to_torch(run: CertifiedRun) -> Any:
    """The clean model (trained on the data as handed in) as an `nn.Sequential` in float64.

    It takes encoded features, as `run.data` holds them; images as (rows, channels, height, width).
    """
    run.check_reached()
    torch = _torch()
    nn, made = torch.nn, []
    for layer in run.network.layers:
        match layer:
            case Linear():
                made.append(nn.Linear(layer.inputs, layer.outputs, bias=layer.bias))
            case Conv2d():
                made.append(
                    nn.Conv2d(layer.channels, layer.filters, layer.kernel, layer.stride, layer.padding, bias=layer.bias)
                )
            case AvgPool2d():
                made.append(nn.AvgPool2d(layer.kernel, layer.stride))
            case Flatten():
                made.append(nn.Flatten())
            case LeakyReLU():
                made.append(nn.LeakyReLU(layer.slope))
            case ReLU() | Sigmoid() | Tanh():
                made.append(getattr(nn, type(layer).__name__)())
            case _:
                raise UserError(f"PyTorch has no counterpart of the layer {layer}.")
    module = nn.Sequential(*made).double()
    theta = torch.from_numpy(np.array(run.theta))
    nn.utils.vector_to_parameters(theta, module.parameters())
    return module


def _flat(module: Any, nn: Any) -> list[Any]:
    """The modules of nested sequences, in order; the sequences themselves must do nothing else."""
    if _own_ways(module):
        raise UserError(f"The {type(module).__name__} {_own_ways(module)}; from_torch takes plain sequences only.")
    return [inner for part in module for inner in (_flat(part, nn) if type(part) is nn.Sequential else [part])]


def _own_ways(module: Any) -> str:
    """What makes a module compute or train otherwise than its type says; empty if nothing does."""
    hooks = [name for name, found in vars(module).items() if name.endswith("_hooks") and found]
    # State dictionaries are written and read without touching what is computed.
    if [name for name in hooks if "state_dict" not in name]:
        return "has hooks"
    if "forward" in vars(module):
        return "has a forward of its own"
    return ""


def _check_plain(parts: list[Any]) -> None:
    """Refuse modules whose parameters are not trained as those of independent, plain layers."""
    modules: set[int] = set()
    owners: set[int] = set()
    for place, part in enumerate(parts):
        parameters = dict(part.named_parameters())
        why = _own_ways(part)
        if hasattr(part, "parametrizations") or any(name.endswith("_orig") for name in parameters):
            why = "has a parametrisation (such as spectral_norm or pruning)"
        elif parameters and id(part) in modules:
            why = "is used twice"
        for name, tensor in parameters.items():
            if why:
                break
            if not tensor.requires_grad:
                why = "is frozen (requires_grad=False)"
            elif getattr(tensor, "_backward_hooks", None):
                why = "has hooks on its gradients"
            elif tensor.data_ptr() in owners:
                why = f"shares its {name} with another module"
        if why:
            raise UserError(
                f"Module {place}, {_said(part)}, {why}, so that PyTorch would train it otherwise: hand in plain layers."
            )
        modules.add(id(part))
        owners.update(tensor.data_ptr() for tensor in parameters.values())


def _said(part: Any) -> str:
    """The module in one line."""
    return " ".join(str(part).split())


def _layer(place: int, part: Any, nn: Any) -> Layer:
    def refuse(why: str) -> UserError:
        known = "Linear, Conv2d, AvgPool2d, Flatten, ReLU, LeakyReLU, Sigmoid, Tanh"
        return UserError(f"Module {place}, {_said(part)}, {why}; supported are {known}.")

    supported = (nn.Linear, nn.Conv2d, nn.AvgPool2d, nn.Flatten, nn.LeakyReLU, nn.ReLU, nn.Sigmoid, nn.Tanh)
    if type(part) not in supported:  # a subclass may compute anything
        raise refuse("has no counterpart")
    match part:
        case nn.Linear():
            return Linear(part.in_features, part.out_features, part.bias is not None)
        case nn.Conv2d():
            if part.groups != 1 or part.dilation != (1, 1) or part.padding_mode != "zeros":
                raise refuse("has groups, dilation or a padding mode")
            kernel, stride = (_square(value, refuse) for value in (part.kernel_size, part.stride))
            if isinstance(part.padding, str):
                raise refuse("names its padding by a word: give a number")
            padding = _square(part.padding, refuse)
            return Conv2d(part.in_channels, part.out_channels, kernel, stride, padding, part.bias is not None)
        case nn.AvgPool2d():
            if _square(part.padding, refuse) or part.ceil_mode or part.divisor_override:
                raise refuse("has padding, ceil_mode or a divisor")
            return AvgPool2d(_square(part.kernel_size, refuse), _square(part.stride, refuse))
        case nn.Flatten():
            if part.start_dim != 1 or part.end_dim != -1:
                raise refuse("flattens some dimensions only")
            return Flatten()
        case nn.LeakyReLU():
            return LeakyReLU(float(part.negative_slope))
        case nn.ReLU() | nn.Sigmoid() | nn.Tanh():
            plain: dict[str, Layer] = {"ReLU": ReLU(), "Sigmoid": Sigmoid(), "Tanh": Tanh()}
            return plain[type(part).__name__]
    raise refuse("has no counterpart")


def _square(value: Any, refuse: Any) -> int:
    sides = value if isinstance(value, tuple) else (value, value)
    if sides[0] != sides[1]:
        raise refuse("is not square")
    return int(sides[0])


def _input_shape(layers: list[Layer], shape: Shape | None) -> int | Shape:
    first = layers[0]
    if isinstance(first, Linear):
        return first.inputs
    if shape is None:
        raise UserError(
            "The module takes images: name the shape of one, from_torch(module, (channels, height, width))."
        )
    return shape
