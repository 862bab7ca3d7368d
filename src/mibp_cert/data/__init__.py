"""Data sets, splits and batch plans."""

from mibp_cert.data.batches import batch_plan, effective_batch_size, steps_per_epoch
from mibp_cert.data.builtin import NAMES, breast_cancer, diabetes, digits, iris, iris2, load, npha, two_moons
from mibp_cert.data.dataset import Dataset, Split
from mibp_cert.data.table import Column, Recipe

__all__ = [
    "NAMES",
    "Column",
    "Dataset",
    "Recipe",
    "Split",
    "batch_plan",
    "breast_cancer",
    "diabetes",
    "digits",
    "effective_batch_size",
    "iris",
    "iris2",
    "load",
    "npha",
    "steps_per_epoch",
    "two_moons",
]
