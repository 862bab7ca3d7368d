"""Votes of learners that each saw a share of the rows: what they certify, for any learner and for rows that may be anything."""

from mibp_cert.ensembles.bagging import BaggedClassifier
from mibp_cert.ensembles.base import Ensemble
from mibp_cert.ensembles.bins import quantile_bins
from mibp_cert.ensembles.flips import FlipBaggedClassifier
from mibp_cert.ensembles.partitions import PartitionedClassifier
