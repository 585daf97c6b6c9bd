"""How modules of tiledsl import each other, read from the source text.

errors, dtypes, target <- ir <- {frontend, ws, codegen} <- runtime <- compiler <- public modules.
An import inside a function or under TYPE_CHECKING counts like any other.
"""

from __future__ import annotations

import ast
import graphlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "tiledsl"

LAYERS = {
    "errors": 0,
    "dtypes": 0,
    "target": 0,
    "ir": 1,
    "frontend": 2,
    "ws": 2,
    "codegen": 2,
    "runtime": 3,
    "compiled": 4,
    "compiler": 4,
    "lowering": 4,
    "single": 4,
    "specialised": 4,
    "spills": 4,
}
SIBLINGS = frozenset({"frontend", "ws", "codegen"})
PUBLIC_LAYER = 5  # language.py and any other module beside compiler.py
TOP_LAYER = 6  # tiledsl/__init__.py

FILES = sorted(PACKAGE.rglob("*.py"))


def part_of(module: str) -> str:
    """`tiledsl.ir.ops.mma` -> `ir`; `tiledsl` -> the empty string."""
    return module.partition(".")[2].partition(".")[0]


def layer(part: str) -> int:
    return LAYERS.get(part, PUBLIC_LAYER) if part else TOP_LAYER


def is_module(dotted: str) -> bool:
    path = PACKAGE.parent.joinpath(*dotted.split("."))
    return path.with_suffix(".py").exists() or path.is_dir()


def imported_modules(tree: ast.AST) -> list[tuple[int, str]]:
    """(line, module) of every import of tiledsl; `from tiledsl import errors` names a module."""
    out: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            out += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            base = node.module or ""
            for alias in node.names:
                full = f"{base}.{alias.name}"
                is_ours = base.split(".")[0] == "tiledsl"
                out.append((node.lineno, full if is_ours and is_module(full) else base))
    return [(line, name) for line, name in out if name.split(".")[0] == "tiledsl"]


def violations(source: str, part: str) -> list[str]:
    """What the rule says against a module of `part` with this text."""
    out: list[str] = []
    for line, module in imported_modules(ast.parse(source)):
        target = part_of(module)
        if target == part:
            continue
        if {target, part} <= SIBLINGS:
            out.append(f"line {line}: {part} imports its sibling {target} ({module})")
        elif layer(target) > layer(part):
            out.append(f"line {line}: {part} imports {target or 'the package'} above it ({module})")
    return out


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_downwards(path: Path) -> None:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    part = "" if parts == ("__init__",) else parts[0]
    found = violations(path.read_text(encoding="utf-8"), part)
    assert not found, "\n".join(found)


def test_errors_imports_nothing_of_ours() -> None:
    tree = ast.parse((PACKAGE / "errors.py").read_text(encoding="utf-8"))
    assert imported_modules(tree) == []


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("from tiledsl.ws.roles import Role", "codegen"),
        ("import tiledsl.frontend.scope", "ws"),
        ("from tiledsl import runtime", "ir"),
        ("from tiledsl.language import load", "ir"),
        ("import tiledsl", "runtime"),
        ("def f():\n    from tiledsl.compiler import compile", "runtime"),
        ("if TYPE_CHECKING:\n    from tiledsl.ir.op import Op", "errors"),
    ],
)
def test_the_rule_finds_upward_and_sibling_imports(source: str, part: str) -> None:
    assert len(violations(source, part)) == 1


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("from tiledsl.ir.op import Op\nfrom tiledsl import errors", "ws"),
        ("from tiledsl.codegen.module import KernelModule", "runtime"),
        ("from tiledsl.compiler import compile\nfrom tiledsl import language", ""),
        ("import numpy\nimport tiledsl_other", "errors"),
    ],
)
def test_the_rule_allows_downward_imports(source: str, part: str) -> None:
    assert violations(source, part) == []


def dotted(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {dotted(path): ast.parse(path.read_text(encoding="utf-8")) for path in FILES}


def borrowed(tree: ast.AST) -> list[str]:
    """Private names that a module imports from another one."""
    return [
        f"line {node.lineno}: {node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tiledsl"
        for alias in node.names
        if re.match(r"_(?!_)", alias.name) and not is_module(f"{node.module}.{alias.name}")
    ]


def test_private_names_stay_in_their_module() -> None:
    found = {name: borrowed(tree) for name, tree in MODULES.items()}
    assert not {name: names for name, names in found.items() if names}


def test_modules_do_not_import_each_other() -> None:
    """Whatever is imported when a module is; what a function or a type checker imports is not."""
    graph = {
        name: {m for node in tree.body for _, m in imported_modules(ast.Module([node], []))
               if isinstance(node, ast.Import | ast.ImportFrom) and m != name}
        for name, tree in MODULES.items()
    }  # fmt: skip
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_private_imports_are_found() -> None:
    assert borrowed(ast.parse("from tiledsl.ws.check import _run")) == [
        "line 1: tiledsl.ws.check._run"
    ]
    assert borrowed(ast.parse("from tiledsl.ws.check import run\nfrom ast import _x")) == []
