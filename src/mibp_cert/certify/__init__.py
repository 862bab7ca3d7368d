"""Certified training and certified prediction: one request, one loop, one run."""

from mibp_cert.certify.attack import AttackSettings
from mibp_cert.certify.loop import Callbacks, certify, clean_figures, clean_models
from mibp_cert.certify.predict import ABSTAIN, Attack, Predictions, Ranges, predict
from mibp_cert.certify.request import SELECTIONS, Request, Selection
from mibp_cert.certify.run import CertifiedRun, EpochRecord
