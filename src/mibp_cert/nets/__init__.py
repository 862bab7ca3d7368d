"""Networks, losses and optimisers: forward, backward and update in graph operations."""

from mibp_cert.nets.layers import Layer, Linear, ReLU
from mibp_cert.nets.losses import BinaryHinge, Loss, MarginHinge, loss_named
from mibp_cert.nets.network import Layout, Network
from mibp_cert.nets.optim import SGD
from mibp_cert.nets.step import Step, trace_steps

__all__ = [
    "SGD",
    "BinaryHinge",
    "Layer",
    "Layout",
    "Linear",
    "Loss",
    "MarginHinge",
    "Network",
    "ReLU",
    "Step",
    "loss_named",
    "trace_steps",
]
