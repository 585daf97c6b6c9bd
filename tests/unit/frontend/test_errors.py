"""One golden file per mistake: the source of a kernel, a rule, the full text of the error."""

from __future__ import annotations

import linecache
import math
from pathlib import Path

import pytest
import torch

import tiledsl.language as tl
from tiledsl.dtypes import bfloat16
from tiledsl.dtypes import float32
from tiledsl.dtypes import int32
from tiledsl.errors import TileError
from tiledsl.frontend.lower_ast import lower_function
from tiledsl.frontend.specialize import signature_of
from tiledsl.ir.specs import PointerSpec
from tiledsl.ir.specs import ScalarSpec
from tiledsl.ir.specs import spec

CASES = sorted((Path(__file__).parents[2] / "golden" / "errors").glob("*.txt"))
RULE = "# ----\n"

# Arguments by the parameter's name.
SPECS = {
    **{name: spec(bfloat16, 2) for name in "abc"},
    "v": spec(float32, 1),
    "n": ScalarSpec(int32),
    "s": ScalarSpec(float32),
    "p": PointerSpec(float32),
}
CONSTANTS = {"BM": 64, "BLOCK": 64}


def error_of(source: str, file: str) -> TileError:
    """The error that lowering `kernel` of a source text raises."""
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    scope: dict[str, object] = {"tl": tl, "torch": torch, "math": math}
    exec(compile(source, file, "exec"), scope)
    kernel = scope["kernel"]
    names = signature_of(kernel).names
    specs = {n: SPECS[n] for n in names if n in SPECS}
    constants = {n: CONSTANTS[n] for n in names if n in CONSTANTS}
    with pytest.raises(TileError) as caught:
        lower_function(kernel, specs, constants)
    return caught.value


@pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem)
def test_error_text(path: Path, golden) -> None:
    source = path.read_text(encoding="utf-8").partition(RULE)[0]
    error = error_of(source, f"{path.stem}.py")
    assert error.loc is not None
    golden(f"{source}{RULE}{type(error).__name__}\n{error}\n", path)


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 40


def test_a_run_stops_at_twenty_errors() -> None:
    lines = "".join(f"    x{i} = unknown{i}\n" for i in range(30))
    error = error_of(f"def kernel(v):\n{lines}", "many.py")
    also = [n for n in error.notes if n.message.startswith("also: ")]
    assert len(also) == 19
    assert error.notes[-1].message == "only the first 20 errors are shown"


def test_text_is_the_same_with_the_error_pickled() -> None:
    import pickle

    error = error_of("def kernel(v):\n    x = unknown\n", "pickled.py")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
