"""Networks, losses and optimisers: forward, backward and update in graph operations."""

from mibp_cert.nets.layers import (
    Activation,
    AvgPool2d,
    Conv2d,
    Cosine,
    Flatten,
    Layer,
    LeakyReLU,
    Linear,
    ReLU,
    Sigmoid,
    Softplus,
    Tanh,
)
from mibp_cert.nets.losses import LOSSES, Loss, loss_named
from mibp_cert.nets.network import Layout, Network
from mibp_cert.nets.plan import (
    SGD,
    GraphStep,
    Plan,
    Step,
    Training,
    batch_plan,
    effective_batch_size,
    learning_rates,
    run_steps,
    steps_per_epoch,
    trace_steps,
)

LAYERS: tuple[type[Layer], ...] = (
    Linear,
    Conv2d,
    AvgPool2d,
    Flatten,
    ReLU,
    LeakyReLU,
    Sigmoid,
    Tanh,
    Softplus,
    Cosine,
)
"""Every layer there is."""
