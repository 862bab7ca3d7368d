"""What may be wrong with the training data."""

from mibp_cert.threats.base import Block, BoxBlock, Hull, Noise, Threat, ThreatSet
from mibp_cert.threats.linf import LInf, LInfSet

__all__ = ["Block", "BoxBlock", "Hull", "LInf", "LInfSet", "Noise", "Threat", "ThreatSet"]
