"""The pass manager: lists, options, checks, dumps, notes on errors; and the speed of the pipeline."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.unit.ir.harness import graph_of
from tests.unit.ir.harness import tensor_arg
from tiledsl.dtypes import float32
from tiledsl.errors import InternalError
from tiledsl.errors import SourceLoc
from tiledsl.errors import TileError
from tiledsl.errors import TypeMismatch
from tiledsl.errors import VerifyError
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Level
from tiledsl.ir.passes import manager
from tiledsl.ir.passes.manager import PassCall
from tiledsl.ir.passes.manager import PassReport
from tiledsl.ir.passes.manager import parse_pass
from tiledsl.ir.passes.manager import register_pass
from tiledsl.ir.passes.manager import run_passes
from tiledsl.target import Target

LOC = SourceLoc("k.py", 3)


@pytest.fixture(autouse=True)
def test_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registers passes for the duration of a test."""
    monkeypatch.setattr(manager, "_PASSES", dict(manager.passes()))

    @register_pass("test-options", consumes=Level.TILE, produces=Level.TILE)
    def options(graph: TileGraph, target: Target, *, depth: int = 1, name: str = "") -> PassReport:
        return PassReport("test-options", depth, (name,))

    @register_pass("test-error", consumes=Level.ALL, produces=Level.ALL)
    def error(graph: TileGraph, target: Target) -> PassReport:
        raise TypeMismatch("no good", LOC)

    @register_pass("test-bug", consumes=Level.ALL, produces=Level.ALL)
    def bug(graph: TileGraph, target: Target) -> PassReport:
        raise KeyError("lost")

    @register_pass("test-break", consumes=Level.ALL, produces=Level.ALL)
    def break_(graph: TileGraph, target: Target) -> PassReport:
        graph.body.ops[0].parent = None
        return PassReport("test-break", changes=1)

    @register_pass("test-level", consumes=Level.TILE, produces=Level.MACHINE)
    def level(graph: TileGraph, target: Target, *, forget: bool = False) -> PassReport:
        graph.level = Level.TILE if forget else Level.MACHINE
        return PassReport("test-level")


@pytest.fixture
def graph() -> TileGraph:
    return graph_of("%p : i32 = program.id() {axis = 0}", "%n : i32")


def test_options_are_parsed_and_passed(graph: TileGraph) -> None:
    call = parse_pass(" test-options{depth=3, name='a, b'} ")
    assert call == PassCall("test-options", (("depth", 3), ("name", "a, b")))
    assert parse_pass(str(call)) == call
    assert str(parse_pass("cse")) == "cse"
    (report,) = run_passes(graph, [call])
    assert (report.changes, report.details) == (3, ("a, b",))
    assert report.seconds > 0
    assert str(report).startswith("test-options: 3 changes, ")


def test_an_unknown_option_or_pass_is_an_error(graph: TileGraph) -> None:
    with pytest.raises(InternalError, match=r"pass cse\{depth = 3\} failed: TypeError"):
        run_passes(graph, ["cse{depth=3}"])
    with pytest.raises(
        TileError,
        match=r"no pass is named 'csee'[\s\S]*hint: passes: canonicalize, cheap-exponentials, count-steps, cse",
    ):
        run_passes(graph, ["csee"])
    with pytest.raises(TileError, match="expected a pass name"):
        run_passes(graph, ["cse(3)"])


def test_errors_name_the_pass(graph: TileGraph) -> None:
    with pytest.raises(TypeMismatch) as caught:
        run_passes(graph, ["cse", "test-error"])
    assert str(caught.value) == "k.py:3:1: error: no good\nnote: while running pass test-error"
    with pytest.raises(InternalError, match=r"pass test-bug failed: KeyError: 'lost'[\s\S]*report"):
        run_passes(graph, ["test-bug"])


def test_the_graph_is_verified_after_each_pass(graph: TileGraph) -> None:
    with pytest.raises(VerifyError, match=r"parent[\s\S]*checked after pass test-break"):
        run_passes(graph, ["test-break"], check=1)
    with pytest.raises(VerifyError, match="checked before the first pass"):
        run_passes(graph, ["cse"], check=1)
    run_passes(graph, ["test-break"], check=0)


def test_by_default_a_graph_is_verified_at_both_ends(
    graph: TileGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TILEDSL_CHECK")
    with pytest.raises(
        VerifyError, match=r"parent[\s\S]*checked after the last pass; TILEDSL_CHECK=1"
    ):
        run_passes(graph, ["test-break", "test-options"])
    with pytest.raises(VerifyError, match="checked before the first pass"):
        run_passes(graph, ["cse"])


@pytest.mark.parametrize(("asked", "count"), [(None, 2), ("1", 5), ("0", 0)])
def test_how_often_a_graph_is_verified(
    graph: TileGraph, monkeypatch: pytest.MonkeyPatch, asked: str | None, count: int
) -> None:
    seen: list[TileGraph] = []
    monkeypatch.setattr(manager, "verify", lambda graph, target: seen.append(graph))
    monkeypatch.delenv("TILEDSL_CHECK")
    if asked is not None:
        monkeypatch.setenv("TILEDSL_CHECK", asked)
    run_passes(graph, ["test-options"] * 4)
    assert len(seen) == count


def test_levels_are_checked(graph: TileGraph) -> None:
    with pytest.raises(InternalError, match="left the graph at level TILE"):
        run_passes(graph, ["test-level{forget=True}"])
    run_passes(graph, ["test-level", "cse"])
    with pytest.raises(InternalError, match="pass test-level: the graph is at level MACHINE"):
        run_passes(graph, ["test-level"])


def test_dump_and_stop_after(graph: TileGraph, tmp_path: Path) -> None:
    run = ["canonicalize", "cse", "dce"]
    reports = run_passes(graph, run, dump=tmp_path / "new", stop_after="cse")
    assert [r.name for r in reports] == ["canonicalize", "cse"]
    files = sorted(p.name for p in (tmp_path / "new").iterdir())
    assert files == ["00_input.tir", "01_canonicalize.tir", "02_cse.tir"]
    assert "program.id" in (tmp_path / "new" / "02_cse.tir").read_text()
    with pytest.raises(TileError, match="stop_after: 'licm' is not in the run list"):
        run_passes(graph, run, stop_after="licm")


def test_a_pass_name_belongs_to_one_module() -> None:
    with pytest.raises(InternalError, match="two passes are named 'cse'"):
        register_pass("cse", consumes=Level.ALL, produces=Level.ALL)(
            lambda graph, target: PassReport("cse")
        )


def matmul(unused: int) -> TileGraph:
    """A matmul of 40 ops with some of everything that the passes remove."""
    extra = "\n".join(f"%u{i} : i32 = elementwise.mul(%m, %c{i % 3})" for i in range(unused))
    body = f"""
      %c0 : i32 = elementwise.constant() {{value = 0, dtype = i32}}
      %c1 : i32 = elementwise.constant() {{value = 128, dtype = i32}}
      %c2 : i32 = elementwise.constant() {{value = 64, dtype = i32}}
      %pm : i32 = program.id() {{axis = 0}}
      %pn : i32 = program.id() {{axis = 1}}
      %m : i32 = elementwise.mul(%pm, %c1)
      %n : i32 = elementwise.mul(%pn, %c1)
      {extra}
      %z : f32 = elementwise.constant() {{value = 0.0, dtype = f32}}
      %row : tile<128xf32> = tile.splat(%z) {{shape = (128,)}}
      %wide : tile<1x128xf32> = tile.expand_dims(%row) {{axis = 0}}
      %acc : tile<128x128xf32> = tile.broadcast(%wide) {{shape = (128, 128)}}
      %k : i32 = memory.shape(%x) {{dim = 1}}
      %sum : tile<128x128xf32>, %at : i32 = control.for(%c0, %k, %c2, [%acc, %c0])
      body(%i : i32, %c : tile<128x128xf32>, %j : i32) {{
        %pm2 : i32 = program.id() {{axis = 0}}
        %m2 : i32 = elementwise.mul(%pm2, %c1)
        %i2 : i32 = elementwise.add(%i, %c0)
        %p : tile<128x64xf32> = memory.load(%x, [%m2, %i2]) {{block_shape = (128, 64)}}
        %q : tile<64x128xf32> = memory.load(%y, [%i2, %n]) {{block_shape = (64, 128)}}
        %d : tile<128x128xf32> = mma.dot(%p, %q, %c)
        %next : i32 = elementwise.add(%j, %c2)
        control.yield(%d, %next)
      }}
      %one : f32 = elementwise.constant() {{value = 1.0, dtype = f32}}
      %ones : tile<128x128xf32> = tile.splat(%one) {{shape = (128, 128)}}
      %out : tile<128x128xf32> = elementwise.mul(%sum, %ones)
      memory.store(%y, [%m, %n], %out) {{block_shape = (128, 128)}}
    """
    return graph_of(body, tensor_arg("x", float32, 2), tensor_arg("y", float32, 2))


def test_the_pipeline_on_a_matmul_is_fast() -> None:
    best = 1.0
    for _ in range(5):
        graph = matmul(15)
        assert graph.num_ops >= 40
        start = time.perf_counter()
        run_passes(graph, ["canonicalize", "cse", "licm", "canonicalize", "cse", "dce"], check=0)
        best = min(best, time.perf_counter() - start)
    assert best < 0.005
    loop = next(op for op in graph.walk() if op.is_loop)
    inside = [op.opcode for op in loop.regions[0].ops]
    assert inside == ["memory.load", "memory.load", "mma.dot", "control.yield"]
    assert graph.num_ops == 16
