"""Data sets and their splits: tables, files, and the built-in ones."""

from mibp_cert.data.builtin import NAMES, breast_cancer, diabetes, digits, iris, iris2, load, npha, two_moons
from mibp_cert.data.dataset import Column, Dataset, Origin, Split, Task
from mibp_cert.data.table import Recipe
