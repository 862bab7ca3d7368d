"""What there is to choose from, by name, for the help: the registries themselves take a second to load, with all that they need.

Nothing is decided here: every entry is held against the registry that it is called after (`tests/test_startup.py`).
"""

NAMES: dict[str, tuple[str, ...]] = {
    "usual:ACTIVATIONS": ("relu", "leaky-relu", "sigmoid", "tanh", "softplus"),
    "cli.ensembles:LEARNERS": ("tree", "forest", "boosting", "logistic", "certified"),
    "config:NETWORK": ("network",),
    "data:NAMES": ("two-moons", "iris", "iris2", "breast-cancer", "digits", "diabetes", "npha"),
    "engines:DEFAULT": ("relational",),
    "engines:ENGINES": ("interval", "crown", "mibp", "relational", "meet"),
    "engines:PREDICTIONS": ("interval", "crown", "exact", "relational", "meet"),
    "ensembles.flips:FLIPS": ("both", "features", "labels"),
    "ensembles.rows:BASES": ("content", "features", "key", "row"),
    "fitted:FEATURE_KINDS": ("tanh", "fourier"),
    "fitted:FITTED": ("dual", "lp", "mibp"),
    "fitted:MODELS": ("logistic", "ridge", "squared-hinge", "huber"),
    "nets.plan:SCHEDULES": ("constant", "step:every:factor", "exponential:factor", "cosine"),
    "nets:LOSSES": ("hinge", "squared-hinge", "cross-entropy", "squared-error", "huber"),
    "studies.reproduce:FIT_MODELS": ("logistic", "squared-hinge"),
    "studies.reproduce:Options.engines": ("interval", "crown", "relational", "mibp"),
    "studies.reproduce:Options.runs": ("reproduce-runs",),
    "studies.reproduce:TABLES": ("two-moons", "iris2", "iris", "breast-cancer", "npha", "npha-beyond-majority"),
    "studies.reproduce:TIMINGS": ("branches", "width", "depth", "runtime"),
}
"""By `module:name` within this package."""


def listed(registry: str, between: str = ", ") -> str:
    """The names of a registry, as a sentence lists them.

    >>> listed("fitted:FEATURE_KINDS", " or ")
    'tanh or fourier'
    """
    return between.join(NAMES[registry])
