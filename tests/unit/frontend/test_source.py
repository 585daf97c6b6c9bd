"""Where sources come from: files, indented definitions, exec, notebooks; and what happens without one."""

from __future__ import annotations

import ast
import linecache

import numpy as np
import pytest

import tiledsl.language as tl
from tiledsl.errors import NameUnresolved
from tiledsl.errors import SyntaxNotSupported
from tiledsl.frontend import liveness
from tiledsl.frontend import source
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


# fmt: off
def plain_text(
    v,
    n=(1,
       2),
):
    """A docstring."""
    x = n
# a comment at the margin

    # and one that is not
    def inner():
        return x
    return inner
# after it


def ragged_text(v):
    x = """
text at the margin: reads like the end of the function
"""
    return (x,
v)
# fmt: on


def test_the_end_of_a_function_is_found_without_its_tokens(monkeypatch) -> None:
    asked = []
    getblock = source.inspect.getblock
    monkeypatch.setattr(source.inspect, "getblock", lambda x: asked.append(1) or getblock(x))
    for function in (plain_text, decorated, Holder.kernel, test_liveness):
        source._cache.pop(function, None)
        found = source_of(function)
        lines = linecache.getlines(function.__code__.co_filename)[found.first_line - 1 :]
        assert not asked
        assert "".join(found.lines).rstrip() == "".join(getblock(lines)).rstrip()
        assert all(node.lineno >= found.first_line for node in found.node.body)
    source._cache.pop(ragged_text, None)
    assert len(source_of(ragged_text).lines) == 6
    assert asked


def test_each_expression_is_searched_for_reads_once(monkeypatch) -> None:
    def nested(a, b, n):
        for i in range(n):
            for j in range(i):
                for k in range(j):
                    a = a + b * k
        return a

    searched = []
    reads = liveness.reads
    monkeypatch.setattr(liveness, "reads", lambda node: searched.append(node) or reads(node))
    liveness_of(source_of(nested))
    expressions = [node for node in searched if not isinstance(node, ast.expr_context)]
    assert len(expressions) == len(set(map(id, expressions)))
