"""PyTorch at the edge: start from a user's module and its weights, and hand the clean model back.

Nothing else in the package uses this, and PyTorch itself is imported only when a function is called.
"""

from __future__ import annotations

from dataclasses import astuple
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mibp_cert.certify import CertifiedRun
from mibp_cert.doors import Start
from mibp_cert.errors import UserError
from mibp_cert.fitted import FrozenLayers
from mibp_cert.nets import AvgPool2d, Conv2d, Flatten, Layer, LeakyReLU, Linear, Network, ReLU, Sigmoid, Softplus, Tanh

Shape = tuple[int, int, int]
COUNTERPARTS: dict[Any, tuple[str, ...]] = {
    Linear: ("in_features", "out_features", "bias"),
    Conv2d: ("in_channels", "out_channels", "kernel_size", "stride", "padding", "bias"),
    AvgPool2d: ("kernel_size", "stride"),
    Flatten: (),
    ReLU: (),
    LeakyReLU: ("negative_slope",),
    Sigmoid: (),
    Tanh: (),
    Softplus: (),
}
"""Layers whose PyTorch module has the same name, and what it calls their fields, in their order."""
THRESHOLD = 40.0
"""Above its threshold PyTorch's softplus is the identity; from here on, the two cannot be told apart in float64."""
LARGEST = 700.0
"""Below a larger threshold PyTorch's softplus overflows."""


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
    return Start(*_read(_parts(module, "from_torch"), shape, frozen=False))


def features_from_torch(module: Any, shape: Shape | None = None) -> FrozenLayers:
    """The frozen leading layers of an `nn.Sequential` (`requires_grad=False`) as features of a fitted model: a body that nothing
    trains any more, with a convex head.

    Behind them the module may have one `nn.Linear` that is not frozen: the head. It is fitted anew, to its minimum, and its
    weights are not read. Layers are read and refused as by `from_torch`; where they draw or remember anything (dropout, batch
    normalisation), there is no counterpart.
    """
    nn, parts = _torch().nn, _parts(module, "features_from_torch")
    trained = [any(p.requires_grad for p in part.parameters()) for part in parts]
    count = trained.index(True) if any(trained) else len(parts)
    if count == 0:
        raise UserError(
            "The module has no frozen leading layers; freeze those that are features: body.requires_grad_(False)."
        )
    if [type(part) for part in parts[count:]] not in ([], [nn.Linear]):
        said = " ".join(str(parts[count]).split())
        raise UserError(
            f"Behind the frozen layers comes module {count}, {said}, which is not frozen and not the last one: what is fitted is "
            "one nn.Linear at the end, so freeze all before it."
        )
    return FrozenLayers(*_read(parts[:count], shape, frozen=True))


def _parts(module: Any, door: str) -> list[Any]:
    """The modules of a sequence, in order."""
    nn = _torch().nn
    if type(module) is not nn.Sequential:
        raise UserError(f"{door} takes an nn.Sequential, got {type(module).__name__}; put the layers into one.")
    return _flat(module, nn, door)


def _read(parts: list[Any], shape: Shape | None, *, frozen: bool) -> tuple[Network, NDArray[np.float64]]:
    """Modules as a network, and their parameters."""
    nn = _torch().nn
    layers: list[Layer] = []
    tensors: list[NDArray[np.float64]] = []
    seen: set[int] = set()
    for place, part in enumerate(parts):
        try:
            _check_plain(part, seen, frozen=frozen)
            layers += [] if type(part) is nn.Identity else [_layer(part, nn)]
        except _Refused as why:
            said, known = " ".join(str(part).split()), ", ".join(kind.__name__ for kind in COUNTERPARTS)
            raise UserError(
                f"Module {place}, {said}, {why}; hand in plain layers that PyTorch trains as they stand, of the kinds {known}."
            ) from None
        seen |= {id(part), *(tensor.data_ptr() for tensor in part.parameters())}
        # PyTorch and this package keep weight and bias in the same order and shape.
        tensors += [p.detach().cpu().double().numpy().ravel() for p in part.parameters()]
    if not tensors:
        raise UserError(
            f"The module has no layer with parameters: there is nothing to {'freeze' if frozen else 'train'}."
        )
    takes = layers[0].inputs if isinstance(layers[0], Linear) else shape
    if takes is None:
        raise UserError(
            f"The module takes images: name the shape of one, {'features_' if frozen else ''}from_torch(module, (channels, "
            "height, width))."
        )
    return Network(tuple(layers), takes), np.concatenate(tensors)


class Estimator(Protocol):
    """What was fitted, with the run behind it."""

    run_: CertifiedRun


def to_torch(run: CertifiedRun | Estimator) -> Any:
    """The clean model (trained on the data as handed in) of a run or a fitted estimator, as an `nn.Sequential` in float64.

    It takes encoded features, as `run.data` holds them and `estimator.recipe_.apply(table)[0]` makes them; images as (rows,
    channels, height, width).
    """
    if not isinstance(run, CertifiedRun):
        found = getattr(run, "run_", None)
        if not isinstance(found, CertifiedRun):
            raise UserError(
                f"to_torch takes a run or an estimator that is fitted, got {type(run).__name__}; fit it first."
            )
        run = found
    run.check_reached()
    torch = _torch()
    nn, made = torch.nn, []
    layer: Any
    for layer in run.network.layers:
        names = COUNTERPARTS.get(type(layer))
        if names is None:
            raise UserError(f"PyTorch has no counterpart of the layer {layer}.")
        own = {"threshold": THRESHOLD} if isinstance(layer, Softplus) else {}
        made.append(getattr(nn, type(layer).__name__)(**dict(zip(names, astuple(layer), strict=True)), **own))
    module = nn.Sequential(*made).double()
    theta = torch.from_numpy(np.array(run.theta))
    nn.utils.vector_to_parameters(theta, module.parameters())
    return module


def _flat(module: Any, nn: Any, door: str) -> list[Any]:
    """The modules of nested sequences, in order; the sequences themselves must do nothing else."""
    if _own_ways(module):
        raise UserError(f"The {type(module).__name__} {_own_ways(module)}; {door} takes plain sequences only.")
    return [inner for part in module for inner in (_flat(part, nn, door) if type(part) is nn.Sequential else [part])]


def _own_ways(module: Any) -> str:
    """What makes a module compute or train otherwise than its type says; empty if nothing does."""
    # State dictionaries are written and read without touching what is computed.
    if any(found for name, found in vars(module).items() if name.endswith("_hooks") and "state_dict" not in name):
        return "has hooks"
    return "has a forward of its own" if "forward" in vars(module) else ""


class _Refused(Exception):
    """Why a module cannot be taken."""


def _check_plain(part: Any, seen: set[int], *, frozen: bool) -> None:
    """Refuse a module whose parameters are not trained (or frozen) as those of an independent, plain layer; `seen`: where earlier
    modules and their tensors are in memory."""
    parameters, own = dict(part.named_parameters()), _own_ways(part)
    if hasattr(part, "parametrizations") or any(name.endswith("_orig") for name in parameters):
        raise _Refused("has a parametrisation (such as spectral_norm or pruning)")
    if parameters and id(part) in seen:
        raise _Refused("is used twice")
    if own:
        raise _Refused(own)
    for name, tensor in parameters.items():
        if not tensor.requires_grad and not frozen:
            raise _Refused("is frozen (requires_grad=False; as features of a fitted model: features_from_torch)")
        if getattr(tensor, "_backward_hooks", None):
            raise _Refused("has hooks on its gradients")
        if tensor.data_ptr() in seen:
            raise _Refused(f"shares its {name} with another module")


def _layer(part: Any, nn: Any) -> Layer:
    """The counterpart of a module; `_Refused` says why it has none."""
    # By the very type: a subclass may compute anything.
    kind = next((kind for kind in COUNTERPARTS if type(part) is getattr(nn, kind.__name__)), None)
    if kind is None:
        raise _Refused("has no counterpart")
    if kind is Conv2d and (part.groups != 1 or part.dilation != (1, 1) or part.padding_mode != "zeros"):
        raise _Refused("has groups, dilation or a padding mode")
    if kind is AvgPool2d and (_field(part, "padding") or part.ceil_mode or part.divisor_override):
        raise _Refused("has padding, ceil_mode or a divisor")
    if kind is Flatten and (part.start_dim, part.end_dim) != (1, -1):
        raise _Refused("flattens some dimensions only")
    if kind is Softplus and (part.beta != 1 or not THRESHOLD <= part.threshold <= LARGEST):
        raise _Refused(
            f"is no softplus above its threshold, or overflows below it: use nn.Softplus(threshold={THRESHOLD:g})"
        )
    layer: Layer = kind(*(_field(part, name) for name in COUNTERPARTS[kind]))
    return layer


def _field(part: Any, name: str) -> bool | int | float:
    """A setting of a module as a layer takes it: one number for both sides of an image."""
    value = getattr(part, name)
    if name == "bias":
        return value is not None
    if isinstance(value, str):
        raise _Refused("names its padding by a word: give a number")
    side, other = value if isinstance(value, tuple) else (value, value)
    if side != other:
        raise _Refused("is not square")
    return float(side) if name == "negative_slope" else int(side)
