"""A hash of a set of datasets: what a run directory remembers of the threat it was made for."""

from __future__ import annotations

import hashlib
from dataclasses import fields

import numpy as np

from mibp_cert.sets.base import ThreatSet
from mibp_cert.solvers.program import ProgramBuilder


def digest_of(members: ThreatSet) -> str:
    """Hash of the hull and, where the threat's record in words does not determine the set (rules), of its program."""
    hull = members.hull()
    parts = [getattr(hull, f.name) for f in fields(hull)]
    if not members.described:
        builder = ProgramBuilder()
        builder.bilinear = members.bilinear
        cells = members.constraints(builder, np.arange(len(members.clean), dtype=np.intp))
        program = builder.finish()
        for affine in cells:
            parts += [affine.centre, affine.slack, affine.linear.data, affine.linear.indices, affine.linear.indptr]
        matrix = program.matrix
        parts += [program.lower, program.upper, program.integer, matrix.data, matrix.indices, matrix.indptr]
        parts += [program.row_lower, program.row_upper, program.triples]
    return hashlib.sha256(b"|".join(np.ascontiguousarray(part).tobytes() for part in parts)).hexdigest()
