"""What every op owes: a docstring, types, semantics, a round-trip golden, an invalid case, a macro that emits it.

The files are found by name: `tile.splat` has tests/golden/ops/tile/splat.tir, a case tests/golden/invalid/tile/splat.tir
or splat_*.tir, and the macro `tile_splat` in templates/ops/tile.cu.j2. An op may state why it has no semantics
(`semantics_waiver`) or no macro (`macro_waiver`), as a class attribute.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from tiledsl.codegen.registry import context_function
from tiledsl.errors import CodegenError
from tiledsl.ir.op import Level
from tiledsl.ir.op import Op
from tiledsl.ir.op import registry

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
TEMPLATES = ROOT / "templates" / "ops"
OPS = registry()

# Control flow runs in the interpreter itself.
INTERPRETED = "control"


def family(opcode: str) -> str:
    return opcode.partition(".")[0]


def overrides(cls: type[Op], method: str) -> bool:
    return getattr(cls, method) is not getattr(Op, method)


def has_golden(opcode: str) -> bool:
    path = GOLDEN / "ops" / (opcode.replace(".", "/") + ".tir")
    return path.exists() and f"{opcode}(" in path.read_text(encoding="utf-8")


def has_invalid_case(opcode: str) -> bool:
    name = opcode.split(".")[1]
    files = [*(GOLDEN / "invalid" / family(opcode)).glob("*.tir")]
    files = [f for f in files if f.stem == name or f.stem.startswith(f"{name}_")]
    return any(f"{opcode}(" in f.read_text(encoding="utf-8") for f in files)


def emits(cls: type[Op]) -> bool:
    """Whether the op may stand in a machine graph and its context function gives a macro something to render."""
    if not cls.levels & Level.MACHINE or getattr(cls, "macro_waiver", ""):
        return False
    try:
        return inspect.signature(context_function(cls.opcode)).return_annotation != "None"
    except CodegenError:
        return True


def has_macro(opcode: str) -> bool:
    path = TEMPLATES / f"{family(opcode)}.cu.j2"
    wanted = rf"macro {opcode.replace('.', '_')}\w*\("
    return path.exists() and bool(re.search(wanted, path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("opcode", sorted(OPS))
def test_declaration(opcode: str) -> None:
    cls = OPS[opcode]
    assert re.fullmatch(r"[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*", opcode)
    assert cls.__module__.rsplit(".", 1)[1].startswith(family(opcode)), (
        "the family names the module"
    )
    assert cls.__dict__.get("__doc__"), "no docstring"
    assert overrides(cls, "infer_types"), "no type inference"


@pytest.mark.parametrize("opcode", sorted(OPS))
def test_semantics(opcode: str) -> None:
    cls = OPS[opcode]
    waiver = getattr(cls, "semantics_waiver", "")
    if family(opcode) == INTERPRETED or waiver or not cls.levels & Level.TILE:
        return
    assert overrides(cls, "evaluate") or overrides(cls, "execute")


@pytest.mark.parametrize("opcode", sorted(OPS))
def test_round_trip_golden(opcode: str) -> None:
    assert has_golden(opcode), f"write tests/golden/ops/{opcode.replace('.', '/')}.tir"


@pytest.mark.parametrize("opcode", sorted(OPS))
def test_invalid_case(opcode: str) -> None:
    assert has_invalid_case(opcode), f"write tests/golden/invalid/{opcode.replace('.', '/')}.tir"


@pytest.mark.parametrize("opcode", sorted(o for o in OPS if emits(OPS[o])))
def test_macro(opcode: str) -> None:
    assert has_macro(opcode), f"write {opcode.replace('.', '_')} in templates/ops/{family(opcode)}"


def test_golden_files_belong_to_ops() -> None:
    names = {
        p.relative_to(GOLDEN / "ops").with_suffix("").as_posix()
        for p in GOLDEN.glob("ops/**/*.tir")
    }
    assert {n.replace("/", ".") for n in names} <= set(OPS)
