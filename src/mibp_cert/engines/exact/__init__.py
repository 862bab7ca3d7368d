"""The paper's method: a step as a mixed-integer bilinear program, solved for every parameter."""

from mibp_cert.engines.exact.engine import MibpEngine
