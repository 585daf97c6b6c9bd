"""Where sources come from: files, indented definitions, exec, notebooks; and what happens without one."""

from __future__ import annotations

import ast
import linecache

import numpy as np
import pytest

import tiledsl.language as tl
from tiledsl.errors import NameUnresolved
from tiledsl.errors import SyntaxNotSupported
from tiledsl.frontend.liveness import assigned
from tiledsl.frontend.liveness import liveness_of
from tiledsl.frontend.source import plain_function
from tiledsl.frontend.source import source_of


def decorate(*_: object, **__: object):
    return lambda fn: fn


@decorate(
    "several",
    lines=2,
)
def decorated(v: tl.Tensor):
    v.store(0, undefined_here)  # noqa: F821


class Holder:
    @staticmethod
    def kernel(v: tl.Tensor):
        """A docstring
        whose text is indented less than the code."""
        # a comment further left is no matter
        v.store(
            0,
      1.0)  # fmt: skip


def from_text(text: str, file: str, *, cached: bool = True):
    """The function `kernel` of a source text, as exec or a notebook cell defines it."""
    if cached:
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    scope: dict[str, object] = {"tl": tl}
    exec(compile(text, file, "exec"), scope)
    return scope["kernel"]


def test_lines_are_those_of_the_file(lower) -> None:
    with pytest.raises(NameUnresolved) as caught:
        lower(decorated, np.zeros(1))
    loc = caught.value.loc
    assert loc is not None
    assert loc.file == __file__
    assert loc.text == "    v.store(0, undefined_here)  # noqa: F821"
    assert loc.text[loc.col : loc.end_col] == "undefined_here"


def test_indented_definitions(run) -> None:
    out = np.zeros(1)
    run(Holder.kernel, out)
    assert out[0] == 1
    source = source_of(Holder.kernel)
    (node,) = [n for n in ast.walk(source.node) if isinstance(n, ast.Call)]
    loc = source.loc(node)
    assert loc.text[loc.col : loc.end_col] == "v.store("


def test_the_ast_is_made_once() -> None:
    assert source_of(decorated) is source_of(decorated)
    assert liveness_of(source_of(decorated)) is liveness_of(source_of(decorated))


@pytest.mark.parametrize("file", ["<ipython-input-3-abc>", "/tmp/ipykernel_1/123.py", "generated"])
def test_text_in_linecache(run, file: str) -> None:
    kernel = from_text("x = 1\ndef kernel(v: tl.Tensor):\n    v.store(0, 2.0)\n", file)
    out = np.zeros(1)
    run(kernel, out)
    assert out[0] == 2
    assert source_of(kernel).node.lineno == 2


def test_no_text(lower) -> None:
    kernel = from_text("def kernel(v):\n    v.store(0, 2.0)\n", "<nowhere>", cached=False)
    with pytest.raises(
        SyntaxNotSupported, match="the source of 'kernel' is not available"
    ) as caught:
        lower(kernel, np.zeros(1))
    assert "linecache" in (caught.value.hint or "")


def test_text_that_has_changed(lower) -> None:
    kernel = from_text("def kernel(v):\n    v.store(0, 2.0)\n", "changed.py")
    linecache.cache["changed.py"] = (9, None, ["def other(): pass\n"], "changed.py")
    with pytest.raises(SyntaxNotSupported, match="has changed"):
        lower(kernel, np.zeros(1))


def test_what_is_no_function(lower) -> None:
    with pytest.raises(SyntaxNotSupported, match="lambda"):
        lower(lambda v: v.store(0, 1), np.zeros(1))
    with pytest.raises(SyntaxNotSupported, match="not a Python function"):
        source_of(len)
    assert plain_function(3) is None


def test_columns_count_characters() -> None:
    kernel = from_text('def kernel(v):\n    "é"; x = "ü"; v.store(0, 1)\n', "columns.py")
    source = source_of(kernel)
    (node,) = [n for n in ast.walk(source.node) if isinstance(n, ast.Call)]
    loc = source.loc(node)
    assert loc.text[loc.col : loc.end_col] == "v.store(0, 1)"


# ---------------------------------------------------------------------- liveness
def flow(v, n):
    a = 1
    b = 2
    for i in range(n):
        c = a + i
        if c > n:
            b = c
        else:
            d = c  # noqa: F841
        a = c
    while b < n:
        b += 1
        e = b  # noqa: F841
    v.store(0, b)


def by_kind(kind: type) -> ast.stmt:
    return next(n for n in ast.walk(source_of(flow).node) if isinstance(n, kind))


def test_liveness() -> None:
    found = liveness_of(source_of(flow))
    loop, branch, while_ = by_kind(ast.For), by_kind(ast.If), by_kind(ast.While)
    assert assigned(loop.body) == ("c", "b", "d", "a")
    assert found.exposed[loop] & {"a", "b", "c", "d"} == {"a"}
    assert found.carried(loop) & {"a", "b", "c", "d"} == {"a", "b"}
    assert found.after[branch] & {"b", "d"} == {"b"}
    assert found.carried(while_) & {"a", "b", "e"} == {"b"}
    assert found.after[while_] == {"b", "v"}
