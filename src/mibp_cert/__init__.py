"""MIBP-Cert: proven bounds on what wrong training data can do to a model.

>>> import mibp_cert as mc
>>> run = mc.certify_training(
...     mc.Network.mlp([2, 4, 2]), mc.two_moons(0), mc.LInf(0.01), mc.Training(epochs=2), engine="interval"
... )
>>> run.bounds.contains(run.theta)
True
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mibp_cert.certify import AttackSettings, Callbacks, CertifiedRun, Predictions, Ranges, Selection
    from mibp_cert.certify.columns import ColumnRecord, column_records
    from mibp_cert.check import check_certificate
    from mibp_cert.data import Column, Dataset, Recipe, Split, two_moons
    from mibp_cert.doors import certify_fit, certify_training
    from mibp_cert.engines import Box, RelationalSettings, SolverSettings
    from mibp_cert.engines.relational import RelationalSet
    from mibp_cert.ensembles import BaggedClassifier, FlipBaggedClassifier, PartitionedClassifier, quantile_bins
    from mibp_cert.errors import Diverged, MibpCertError, SolverUnavailable, SoundnessError, UserError
    from mibp_cert.estimator import CertifiedClassifier, CertifiedLogisticRegression, CertifiedRegressor, CertifiedRidge
    from mibp_cert.fitted import Explanation, Fitted, FrozenLayers, RandomFeatures
    from mibp_cert.nets import Network, Training
    from mibp_cert.nets.layers import (
        AvgPool2d,
        Conv2d,
        Cosine,
        Flatten,
        LeakyReLU,
        Linear,
        ReLU,
        Sigmoid,
        Softplus,
        Tanh,
    )
    from mibp_cert.questions.collective import Flips, collective
    from mibp_cert.questions.explain import explain
    from mibp_cert.questions.properties import Verdict, fair, holds, monotone
    from mibp_cert.report.html import html_report
    from mibp_cert.store import load_run, resume_run
    from mibp_cert.store.certificate import certificate_of
    from mibp_cert.store.verify import AuditSettings, verify
    from mibp_cert.studies.blame import Blame, blame
    from mibp_cert.studies.compare import compare
    from mibp_cert.studies.parts import LossByPart, loss_by_part
    from mibp_cert.studies.tolerance import Family, Tolerance, tolerance
    from mibp_cert.threats import (
        L1,
        L2,
        Added,
        AnyCategory,
        Arbitrary,
        Budget,
        Confusable,
        Exchanged,
        LabelFlips,
        LInf,
        Missing,
        Monotone,
        Nothing,
        Removed,
        Rounded,
        Rules,
        Shift,
        TargetNoise,
        Threat,
        column,
        in_words,
        label_is,
        threat_from_json,
    )
    from mibp_cert.torch import features_from_torch, from_torch, to_torch

_HOMES = {
    "certify": "AttackSettings Callbacks CertifiedRun Predictions Ranges Selection",
    "certify.columns": "ColumnRecord column_records",
    "data": "Column Dataset Recipe Split two_moons",
    "doors": "certify_fit certify_training",
    "ensembles": "BaggedClassifier FlipBaggedClassifier PartitionedClassifier quantile_bins",
    "engines": "Box RelationalSettings SolverSettings",
    "engines.relational": "RelationalSet",
    "errors": "Diverged MibpCertError SolverUnavailable SoundnessError UserError",
    "estimator": "CertifiedClassifier CertifiedLogisticRegression CertifiedRegressor CertifiedRidge",
    "fitted": "Explanation Fitted FrozenLayers RandomFeatures",
    "nets": "Network Training",
    "nets.layers": "AvgPool2d Conv2d Cosine Flatten LeakyReLU Linear ReLU Sigmoid Softplus Tanh",
    "questions.collective": "Flips collective",
    "questions.explain": "explain",
    "questions.properties": "Verdict fair holds monotone",
    "report.html": "html_report",
    "check": "check_certificate",
    "store": "load_run resume_run",
    "store.certificate": "certificate_of",
    "store.verify": "AuditSettings verify",
    "studies.blame": "Blame blame",
    "studies.compare": "compare",
    "studies.parts": "LossByPart loss_by_part",
    "studies.tolerance": "Family Tolerance tolerance",
    "threats": "Added AnyCategory Arbitrary Budget Confusable Exchanged L1 L2 LInf LabelFlips Missing Monotone Nothing "
    "Removed Rounded Rules Shift TargetNoise Threat column in_words label_is threat_from_json",
    "torch": "features_from_torch from_torch to_torch",
}
"""Where public names live. A module is loaded when its first name is used: with all that they need, that takes a second."""
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

if not TYPE_CHECKING:  # a type checker knows the names from the imports above, and no others

    def __getattr__(name: str) -> Any:
        if name in _HOME_OF:
            globals()[name] = found = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
            return found
        if not name.startswith("_") and find_spec(f"{__name__}.{name}"):
            return import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "L1",
    "L2",
    "Added",
    "AnyCategory",
    "Arbitrary",
    "AttackSettings",
    "AuditSettings",
    "AvgPool2d",
    "BaggedClassifier",
    "Blame",
    "Box",
    "Budget",
    "Callbacks",
    "CertifiedClassifier",
    "CertifiedLogisticRegression",
    "CertifiedRegressor",
    "CertifiedRidge",
    "CertifiedRun",
    "Column",
    "ColumnRecord",
    "Confusable",
    "Conv2d",
    "Cosine",
    "Dataset",
    "Diverged",
    "Exchanged",
    "Explanation",
    "Family",
    "Fitted",
    "Flatten",
    "FlipBaggedClassifier",
    "Flips",
    "FrozenLayers",
    "LInf",
    "LabelFlips",
    "LeakyReLU",
    "Linear",
    "LossByPart",
    "MibpCertError",
    "Missing",
    "Monotone",
    "Network",
    "Nothing",
    "PartitionedClassifier",
    "Predictions",
    "RandomFeatures",
    "Ranges",
    "ReLU",
    "Recipe",
    "RelationalSet",
    "RelationalSettings",
    "Removed",
    "Rounded",
    "Rules",
    "Selection",
    "Shift",
    "Sigmoid",
    "Softplus",
    "SolverSettings",
    "SolverUnavailable",
    "SoundnessError",
    "Split",
    "Tanh",
    "TargetNoise",
    "Threat",
    "Tolerance",
    "Training",
    "UserError",
    "Verdict",
    "blame",
    "certificate_of",
    "certify_fit",
    "certify_training",
    "check_certificate",
    "collective",
    "column",
    "column_records",
    "compare",
    "explain",
    "fair",
    "features_from_torch",
    "from_torch",
    "holds",
    "html_report",
    "in_words",
    "label_is",
    "load_run",
    "loss_by_part",
    "monotone",
    "quantile_bins",
    "resume_run",
    "threat_from_json",
    "to_torch",
    "tolerance",
    "two_moons",
    "verify",
]
