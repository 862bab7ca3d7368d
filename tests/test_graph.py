"""The graph: shapes, traversal, freezing."""

from __future__ import annotations

import pickle
from fractions import Fraction

import numpy as np
import pytest

from conftest import small_data, small_step
from mibp_cert.errors import UnsupportedOperation
from mibp_cert.graph import GraphBuilder, check_support, parse_spec
from mibp_cert.graph.interpret import TABLE as CONCRETE
from mibp_cert.nets import run_steps


def test_aligned_product_and_sum_equal_einsum() -> None:
    rng = np.random.default_rng(0)
    sizes = {"b": 3, "i": 4, "o": 5, "c": 2}
    for text in ("bi,oi->bo", "bo,bi->oi", "bo,oi->bi", "bi,bi->bi", "bc,bc->bc"):
        spec = parse_spec(text)
        a = rng.normal(size=[sizes[c] for c in spec.left])
        b = rng.normal(size=[sizes[c] for c in spec.right])
        product = spec.align(a, spec.left) * spec.align(b, spec.right)
        np.testing.assert_allclose(product.sum(axis=spec.contracted), np.einsum(text, a, b), atol=1e-14)


def test_contraction_of_unequal_sizes_is_refused() -> None:
    g = GraphBuilder()
    a, b = g.input("a", (2, 3)), g.input("b", (4, 5))
    with pytest.raises(ValueError, match="axis 'i'"):
        g.contract("bi,oi->bo", a, b)


def test_unused_nodes_are_dropped_and_inputs_kept() -> None:
    g = GraphBuilder()
    a, _ = g.input("a", (2,)), g.input("unused", (7,))
    g.relu(a)
    graph = g.finish({"out": g.scale(a, 2.0)})
    assert [node.op for node in graph.nodes] == ["input", "input", "scale"]
    assert set(graph.inputs) == {"a", "unused"}


def test_a_step_survives_pickling() -> None:
    data = small_data(np.random.default_rng(1))
    network, step = small_step(data, [3, 2])
    theta = network.initialise(0)
    copy = pickle.loads(pickle.dumps(step))
    before = step.train(theta, data.x, data.one_hot)
    np.testing.assert_array_equal(before, copy.train(theta, data.x, data.one_hot))


def test_missing_rule_names_operation_layer_and_engine() -> None:
    data = small_data(np.random.default_rng(1))
    _, step = small_step(data, [3, 2])
    table = {op: rule for op, rule in CONCRETE.items() if op != "relu"}
    with pytest.raises(UnsupportedOperation, match=r"'toy'.*'relu'.*layer 1 \(ReLU\)"):
        check_support(step.graph, table, "toy")


def test_two_steps_in_one_graph_equal_two_graphs() -> None:
    rng = np.random.default_rng(2)
    data = small_data(rng, rows=7)
    batches = [np.array([0, 2, 4]), np.array([1, 2, 6])]
    network, both = small_step(data, [4, 2], batches=batches)
    theta = network.initialise(3)
    assert both.rows.tolist() == [0, 1, 2, 4, 6]
    together = run_steps([both], theta, data.x, data.one_hot)
    apart = run_steps([small_step(data, [4, 2], batches=[b])[1] for b in batches], theta, data.x, data.one_hot)
    np.testing.assert_array_equal(together, apart)


def test_factors_are_exact_rationals() -> None:
    g = GraphBuilder()
    a = g.input("a", (1,))
    graph = g.finish({"out": g.scale(a, Fraction(1, 3))})
    assert graph.nodes[-1].attribute.value == Fraction(1, 3)


def test_concrete_broadcasts_over_leading_axes() -> None:
    rng = np.random.default_rng(5)
    data = small_data(rng)
    network, step = small_step(data, [3, 2], batches=[np.array([0, 1, 2]), np.array([3, 4])])
    thetas = np.stack([network.initialise(s) for s in range(4)])
    x = data.x + 0.1 * rng.normal(size=(4, *data.x.shape))
    together = run_steps([step], thetas, x, np.broadcast_to(data.one_hot, (4, *data.one_hot.shape)))
    for i in range(4):
        np.testing.assert_allclose(together[i], run_steps([step], thetas[i], x[i], data.one_hot), rtol=0, atol=1e-15)
