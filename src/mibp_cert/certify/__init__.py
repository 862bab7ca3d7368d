"""Certified training and certified prediction."""

from mibp_cert.certify.attack import Attack, AttackSettings
from mibp_cert.certify.bounds import METHODS, Inputs
from mibp_cert.certify.loop import ENGINES, Callbacks, certify_training, load_run, resume_run
from mibp_cert.certify.predict import ABSTAIN, Predictions, Ranges, predict
from mibp_cert.certify.run import SELECTIONS, CertifiedRun, EpochRecord, Selection, Training
