"""Editing a graph keeps its use lists; the verifier finds graphs that were edited behind its back."""

from __future__ import annotations

import pytest

from tests.unit.ir.harness import graph_of
from tests.unit.ir.harness import tensor_arg
from tiledsl.dtypes import float32
from tiledsl.dtypes import int32
from tiledsl.errors import InternalError
from tiledsl.errors import TileError
from tiledsl.errors import VerifyError
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.graph import Use
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.elementwise import Add
from tiledsl.ir.ops.elementwise import Constant
from tiledsl.ir.ops.elementwise import Mul
from tiledsl.ir.ops.elementwise import Neg
from tiledsl.ir.printer import print_graph
from tiledsl.ir.types import ScalarType
from tiledsl.ir.verifier import verify

BODY = """
  %a : i32 = elementwise.constant() {value = 2, dtype = i32}
  %b : i32 = elementwise.mul(%a, %a)
  control.for(%a, %n, %a, [])
  body(%k : i32) {
    %c : i32 = elementwise.add(%k, %b)
    %t : tile<8xf32> = memory.load(%x, [%c]) {block_shape = (8,)}
    memory.store(%x, [%k], %t) {block_shape = (8,)}
  }
"""


@pytest.fixture
def graph() -> TileGraph:
    return graph_of(BODY, tensor_arg("x", float32), "%n : i32")


def find(graph: TileGraph, opcode: str) -> Op:
    return next(op for op in graph.walk() if op.opcode == opcode)


def test_users_are_in_order_and_count_each_operand(graph: TileGraph) -> None:
    a, b, loop = graph.body.ops
    assert isinstance(loop, For)
    assert graph.users(a.result) == [Use(b, 0), Use(b, 1), Use(loop, 0), Use(loop, 2)]
    assert [u.op.opcode for u in graph.users(loop.iv)] == ["elementwise.add", "memory.store"]
    assert graph.has_uses(find(graph, "memory.load").results[0])
    assert graph.num_ops == len(list(graph.walk())) == 6


def test_topological_order_puts_definitions_first(graph: TileGraph) -> None:
    order = graph.topological()
    for op in order:
        for value in op.operands:
            if value.defining_op is not None:
                assert order.index(value.defining_op) < order.index(op)


def test_replace_uses_with_exceptions(graph: TileGraph) -> None:
    a, b, loop = graph.body.ops
    n = graph.args[1]
    assert graph.replace_uses(a.result, n, keep=[loop]) == 2
    assert b.operands == (n, n)
    assert loop.operands[0] is a.result
    verify(graph)


def test_replace_op_keeps_the_name(graph: TileGraph) -> None:
    a, b, _ = graph.body.ops
    new = Add(a.result, a.result)
    graph.replace_op(b, new)
    verify(graph)
    assert new.result.name == "b"
    assert [u.op.opcode for u in graph.users(new.result)] == ["elementwise.add"]
    assert b.parent is None


def test_erase_refuses_what_is_used(graph: TileGraph) -> None:
    with pytest.raises(InternalError, match="is used"):
        graph.erase(graph.body.ops[0])


def test_erase_takes_regions_along(graph: TileGraph) -> None:
    a, b, loop = graph.body.ops
    graph.erase(loop)
    graph.erase(b)
    verify(graph)
    assert graph.num_ops == 1
    assert not graph.has_uses(a.result)


def test_move_before_crosses_regions(graph: TileGraph) -> None:
    _, b, loop = graph.body.ops
    add = find(graph, "elementwise.add")
    graph.set_operand(add, 0, b.result)
    graph.move_before(loop, add)
    verify(graph)
    assert graph.body.ops[2] is add
    assert graph.enclosing(add) == []
    assert graph.enclosing(find(graph, "memory.load")) == [loop]


def test_supersede_hands_regions_over(graph: TileGraph) -> None:
    a, _, loop = graph.body.ops
    assert isinstance(loop, For)
    zero = Constant(0, int32)
    graph.insert_before(loop, zero)
    new = For(zero.result, loop.upper, loop.step, (), 1, body=loop.body)
    graph.supersede(loop, new, {})
    verify(graph)
    assert new.body.parent is new
    assert [u.op for u in graph.users(a.result)][-1] is new


def test_builder_places_ops_at_its_point() -> None:
    graph = TileGraph("g")
    n = graph.body.add_arg(ScalarType(int32), "n")
    build = Builder(graph)
    last = build.value(Neg(n), "last")
    build.index = 0
    first = build.value(Constant(1, int32), "first")
    second = build.value(Neg(first), "second")
    body = Region()
    body.add_arg(ScalarType(int32), "k")
    with build.at(body):
        build.add(Yield(()))
    build.index = None
    build.add(For(first, second, n, (), body=body))
    verify(graph)
    assert [op.results[0].name for op in graph.body.ops[:3]] == ["first", "second", "last"]
    assert last.defining_op is graph.body.ops[2]


def test_clone_shares_no_op(graph: TileGraph) -> None:
    clone = graph.clone()
    assert print_graph(clone) == print_graph(graph)
    assert not set(clone.walk()) & set(graph.walk())
    graph.erase(graph.body.ops[2])
    verify(clone)
    assert clone.num_ops == 6


class TestVerifierFindsBrokenGraphs:
    def test_use_before_definition(self, graph: TileGraph) -> None:
        a, b = graph.body.ops[:2]
        graph.move_before(a, b)
        with pytest.raises(VerifyError, match=r"elementwise.mul: operand 0 \(%a\) is not defined"):
            verify(graph)

    def test_use_out_of_scope(self, graph: TileGraph) -> None:
        inner = find(graph, "elementwise.add").results[0]
        graph.append(graph.body, Neg(inner))
        with pytest.raises(VerifyError, match="not defined before it in scope"):
            verify(graph)

    def test_operand_changed_without_the_graph(self, graph: TileGraph) -> None:
        graph.body.ops[1].set_operand(0, graph.args[1])
        with pytest.raises(VerifyError, match="use lists do not match"):
            verify(graph)

    def test_op_added_without_the_graph(self, graph: TileGraph) -> None:
        op = Neg(graph.args[1])
        op.parent = graph.body
        graph.body.ops.append(op)
        with pytest.raises(VerifyError, match="use lists do not match"):
            verify(graph)

    def test_op_removed_without_the_graph(self, graph: TileGraph) -> None:
        del graph.body.ops[2]
        with pytest.raises(InternalError, match="holds 6 ops, its regions 2"):
            verify(graph)

    def test_op_in_two_places(self, graph: TileGraph) -> None:
        graph.body.ops.append(graph.body.ops[0])
        with pytest.raises(VerifyError, match="two places"):
            verify(graph)

    def test_wrong_parents(self, graph: TileGraph) -> None:
        graph.body.ops[2].regions[0].parent = None
        with pytest.raises(VerifyError, match="a region's parent"):
            verify(graph)
        graph.body.ops[0].parent = None
        with pytest.raises(VerifyError, match="the op's parent"):
            verify(graph)

    def test_type_that_is_not_inferred(self, graph: TileGraph) -> None:
        graph.set_type(graph.body.ops[1].result, ScalarType(float32))
        with pytest.raises(VerifyError, match="result 0 is f32, expected i32"):
            verify(graph)

    def test_the_text_of_a_broken_graph_shows_what_is_undefined(self, graph: TileGraph) -> None:
        other = Mul(graph.args[1], graph.args[1])
        graph.set_operand(graph.body.ops[1], 0, other.result)
        with pytest.raises(
            TileError, match=r"> +%b_3 : i32 = elementwise.mul\(%v_undefined, %a_2\)"
        ):
            verify(graph)


def test_find_follows_edits_and_walks_for_what_is_there(
    graph: TileGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    walks: list[Region] = []
    walk = Region.walk
    monkeypatch.setattr(Region, "walk", lambda region: walks.append(region) or walk(region))
    (loop,) = graph.find(For)
    assert [op.opcode for op in graph.find(Op)] == [op.opcode for op in graph.walk()]
    walks.clear()
    assert graph.find(Neg) == []
    assert walks == []
    neg = Neg(loop.lower)
    graph.insert_before(loop, neg)
    assert graph.find(Neg) == [neg]
    graph.erase(neg)
    assert graph.find(Neg) == []
    graph.erase(loop)
    assert graph.find(For) == []
    assert graph.find(Add) == []  # was in the loop


def test_a_walk_takes_regions_as_it_finds_them(graph: TileGraph) -> None:
    seen: list[str] = []
    for op in graph.walk():
        seen.append(op.opcode)
        if isinstance(op, For):  # before the walk gets into it
            graph.insert(op.body, 0, Neg(op.lower))
    assert seen[2:5] == ["control.for", "elementwise.neg", "elementwise.add"]
