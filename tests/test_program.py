"""Programs: what an objective reaches, scaling, affine ranges."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from mibp_cert.solvers import Affine, ProgramBuilder


def _chain() -> ProgramBuilder:
    """a, b free; c = a + b; d = 2c; e = b; q = a·b; a data row ties f to a."""
    builder = ProgramBuilder()
    a, b, c, d, e, q, f = (int(i) for i in builder.add_variables(7))

    def row(terms: dict[int, float], low: float, high: float, owner: int) -> None:
        builder.add_rows(
            sparse.csr_matrix((list(terms.values()), ([0] * len(terms), list(terms))), shape=(1, 7)), low, high, owner
        )

    row({c: 1.0, a: -1.0, b: -1.0}, 0.0, 0.0, c)
    row({d: 1.0, c: -2.0}, 0.0, 0.0, d)
    row({e: 1.0, b: -1.0}, 0.0, 0.0, e)
    row({a: 4.0, f: 2.0}, -1.0, 1.0, -1)
    builder.add_triples(np.array([q]), np.array([a]), np.array([b]))
    return builder


def test_cut_follows_definitions_data_rows_and_products() -> None:
    program = _chain().finish()
    for needed, reached, rows in (
        ([0], [0, 6], 1),  # a is tied to f by a row that nobody owns
        ([1], [1], 0),
        ([4], [1, 4], 1),
        ([3], [0, 1, 2, 3, 6], 3),
        ([5], [0, 1, 5, 6], 1),
    ):
        part, numbers = program.cut(np.array(needed))
        assert numbers.tolist() == reached
        assert part.rows == rows
        assert len(part.triples) == (1 if 5 in reached else 0)


def test_cut_renumbers_rows_and_triples() -> None:
    program = _chain().finish()
    part, numbers = program.cut(np.array([5]))
    q, a, b = part.triples[0].tolist()
    assert (numbers[q], numbers[a], numbers[b]) == (5, 0, 1)
    v = np.array([0.25, 0.5, 0.125, 0.75])
    np.testing.assert_allclose(part.matrix @ v, [v[0] + 0.5 * v[3]])


def test_rows_are_scaled_by_their_largest_coefficient() -> None:
    program = _chain().finish()
    assert abs(program.matrix).max() == 1.0
    np.testing.assert_allclose(program.row_upper[3], 0.25)


def test_affine_range_contains_all_points_and_is_attained() -> None:
    rng = np.random.default_rng(0)
    builder = ProgramBuilder()
    low, high = np.array([0.0, -1.0, 2.0]), np.array([1.0, -1.0, 2.5])
    box = Affine.box(builder, low, high)
    assert builder.variables == 2  # the second element has no width
    gate = builder.add_variables(1, 0.0, 1.0, integer=True)
    linear = sparse.csr_matrix(np.array([[1.0, -2.0, 3.0]]))
    affine = Affine(np.array([10.0]), linear, np.array([0.5]))
    bottom, top = affine.range(builder)
    values = [10 + e - 2 * f + 3 * g for e in (-1, 1) for f in (-1, 1) for g in (0, 1)]
    np.testing.assert_allclose([bottom[0], top[0]], [min(values) - 0.5, max(values) + 0.5], atol=1e-10)
    assert bottom[0] <= min(values) - 0.5
    assert gate.tolist() == [2]
    for _ in range(20):
        v = rng.uniform(-1, 1, 2)
        point = box.centre + box.linear.toarray() @ v
        assert ((point >= low - 1e-12) & (point <= high + 1e-12)).all()
