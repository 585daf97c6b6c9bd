"""Golden cases of the IR: one file per case, see the folders beside this file.

roundtrip/, ops/*/*.tir: a graph that verifies and prints as it stands.  invalid/: a graph, `// ----`, the error.
passes/: `// pass: name{option = 1}`, a graph, `// ----`, the graph after the pass; a case whose name ends in
`_unchanged` shows what the pass leaves alone.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Golden
from tiledsl.errors import TileError
from tiledsl.ir.parser import parse_graph
from tiledsl.ir.passes.manager import passes
from tiledsl.ir.passes.manager import run_passes
from tiledsl.ir.printer import print_graph
from tiledsl.ir.verifier import verify

HERE = Path(__file__).parent
CUT = "// ----\n"
PASS = "// pass: "

ROUNDTRIP = sorted([*HERE.glob("roundtrip/**/*.tir"), *HERE.glob("ops/**/*.tir")])
INVALID = sorted(HERE.glob("invalid/**/*.tir"))
PASSES = sorted(HERE.glob("passes/**/*.tir"))


def name(path: Path) -> str:
    return str(path.relative_to(HERE).with_suffix(""))


def header(text: str) -> str:
    """The comment lines at the top."""
    lines = text.splitlines(keepends=True)
    count = next((i for i, line in enumerate(lines) if not line.startswith("//")), len(lines))
    return "".join(lines[:count])


@pytest.mark.parametrize("path", ROUNDTRIP, ids=name)
def test_roundtrip(path: Path, golden: Golden) -> None:
    text = path.read_text(encoding="utf-8")
    graph = parse_graph(text)
    verify(graph)
    golden(header(text) + print_graph(graph), path)


@pytest.mark.parametrize("path", INVALID, ids=name)
def test_invalid(path: Path, golden: Golden) -> None:
    text = path.read_text(encoding="utf-8").partition(CUT)[0]
    with pytest.raises(TileError) as caught:
        verify(parse_graph(text))
    golden(f"{text}{CUT}{caught.value}\n", path)


@pytest.mark.parametrize("path", PASSES, ids=name)
def test_pass(path: Path, golden: Golden) -> None:
    text = path.read_text(encoding="utf-8").partition(CUT)[0]
    calls = [line.removeprefix(PASS) for line in text.splitlines() if line.startswith(PASS)]
    graph = parse_graph(text)
    before = print_graph(graph)
    run_passes(graph, calls, check=2)
    after = print_graph(graph)
    assert (before == after) == path.stem.endswith("_unchanged")
    golden(f"{header(text)}{before}{CUT}{after}", path)


@pytest.mark.parametrize("pass_name", sorted(passes()))
def test_every_pass_has_a_case_and_a_twin(pass_name: str) -> None:
    stems = [path.stem for path in (HERE / "passes" / pass_name).glob("*.tir")]
    assert any(stem.endswith("_unchanged") for stem in stems)
    assert any(not stem.endswith("_unchanged") for stem in stems)
