"""Modules of PyTorch that train otherwise than what they would be taken for are refused."""

from __future__ import annotations

from typing import Any

import pytest

import mibp_cert as mc
from mibp_cert.errors import UserError


def _frozen(torch: Any) -> Any:
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    module[0].weight.requires_grad_(False)
    return module


def _shared(torch: Any) -> Any:
    twice = torch.nn.Linear(2, 2)
    return torch.nn.Sequential(twice, torch.nn.ReLU(), twice)


def _tied(torch: Any) -> Any:
    one, two = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    two.weight = one.weight
    return torch.nn.Sequential(one, torch.nn.ReLU(), two)


def _pruned(torch: Any) -> Any:
    import torch.nn.utils.prune as prune

    module = torch.nn.Sequential(torch.nn.Linear(2, 2))
    prune.l1_unstructured(module[0], "weight", amount=1)
    return module


def _spectral(torch: Any) -> Any:
    return torch.nn.Sequential(torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(2, 2)))


def _own_forward(torch: Any) -> Any:
    class Doubled(torch.nn.Linear):
        def forward(self, x: Any) -> Any:
            return 2 * super().forward(x)

    return torch.nn.Sequential(Doubled(2, 2))


def _own_sequence(torch: Any) -> Any:
    class Residual(torch.nn.Sequential):
        def forward(self, x: Any) -> Any:
            return x + super().forward(x)

    return torch.nn.Sequential(Residual(torch.nn.Linear(2, 2)))


def _hooked(torch: Any) -> Any:
    module = torch.nn.Sequential(torch.nn.Linear(2, 2))
    module[0].register_forward_hook(lambda m, i, o: 2 * o)
    return module


def _hooked_outside(torch: Any) -> Any:
    module = torch.nn.Sequential(torch.nn.Linear(2, 2))
    module.register_forward_pre_hook(lambda m, i: (2 * i[0],))
    return module


def _hooked_gradient(torch: Any) -> Any:
    module = torch.nn.Sequential(torch.nn.Linear(2, 2))
    module[0].weight.register_hook(lambda g: 0 * g)
    return module


def _own_instance_forward(torch: Any) -> Any:
    module = torch.nn.Sequential(torch.nn.Linear(2, 2))
    module[0].forward = lambda x: 2 * x
    return module


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (_frozen, r"Module 0, Linear\(.*is frozen \(requires_grad=False; as features of a fitted model"),
        (_shared, "Module 2, Linear.*is used twice"),
        (_tied, "Module 2, Linear.*shares its weight with another module"),
        (_pruned, "Module 0, Linear.*pruned|hook|parametri"),
        (_spectral, "Module 0, .*parametri"),
        (_own_forward, "Module 0, Doubled.*no counterpart"),
        (_own_sequence, "Residual.*no counterpart"),
        (_hooked, "Module 0, Linear.*has hooks"),
        (_hooked_outside, "Sequential.*has hooks"),
        (_hooked_gradient, "Module 0, Linear.*has hooks"),
        (_own_instance_forward, "Module 0, Linear.*forward of its own"),
    ],
)
def test_a_torch_module_that_trains_otherwise_is_refused(torch: Any, make: Any, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        mc.from_torch(make(torch))
    assert str(caught.value).endswith(".")


def test_a_softplus_of_pytorch_that_overflows_is_refused(torch: Any) -> None:
    for threshold in (20.0, 1000.0):
        with pytest.raises(UserError, match="softplus"):
            mc.from_torch(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Softplus(threshold=threshold)))
    assert (
        mc.from_torch(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Softplus(threshold=40.0))).network.logits == 2
    )
