"""Pointers in the frontend: arithmetic, types, casts, blocks, and the errors of their misuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tiledsl.dtypes import pointer_to
from tiledsl.errors import NameUnresolved
from tiledsl.errors import TileError
from tiledsl.errors import TypeMismatch
from tiledsl.frontend.lower_ast import lower_function
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.printer import print_graph
from tiledsl.ir.specs import NoneSpec
from tiledsl.ir.specs import PointerSpec
from tiledsl.ir.specs import ScalarSpec

P, N = PointerSpec(tl.float32), ScalarSpec(tl.int32)


def graph_of(fn: Any, **specs: Any) -> TileGraph:
    names = fn.__code__.co_varnames[: fn.__code__.co_argcount]
    given = {n: specs.get(n, P if n.endswith("p") else N) for n in names}
    return lower_function(fn, given, {})


def opcodes(graph: TileGraph) -> list[str]:
    return [op.opcode for op in graph.walk()]


# ---------------------------------------------------------------------- offsets
def test_products_in_offsets_have_64_bits() -> None:
    def kernel(p, n, s):
        rows = tl.program_id(0) * 64 + tl.arange(0, 64)
        tl.store(p + rows * s, 1.0, mask=rows < n)

    graph = graph_of(kernel)
    add = next(op for op in graph.walk() if op.opcode == "pointer.add")
    product = add.operands[1].defining_op
    assert product is not None
    assert str(product.result.type) == "tile<64xi64>"
    assert product.opcode == "elementwise.mul"
    mask = next(op for op in graph.walk() if op.opcode == "elementwise.compare")
    assert str(mask.operands[0].type) == "tile<64xi32>", "masks are ordinary int32 arithmetic"


def test_casts_after_the_fact_are_moved_forward() -> None:
    def kernel(p, n):
        tl.store(p + (tl.program_id(0) * n).to(tl.int64), 1.0)

    text = print_graph(graph_of(kernel), locations=False)
    product = next(line for line in text.splitlines() if "pointer.add" in line)
    wide = product.split("(")[1].split(",")[1].strip(" )")
    assert f"{wide} : i64 = elementwise.mul" in text


def test_unsigned_offsets_are_extended_with_zeros() -> None:
    def kernel(p, n: tl.uint32):
        tl.store(p + n, 1.0)

    graph = graph_of(kernel, n=ScalarSpec(tl.int64))
    cast = next(op for op in graph.walk() if op.opcode == "pointer.add").operands[1].defining_op
    assert cast is not None
    assert str(cast.operands[0].type) == "u32"


@pytest.mark.parametrize("symbol", ["*", "/", "%", "&"])
def test_other_arithmetic_is_refused(symbol: str) -> None:
    names = {"tl": tl}
    text = f"def kernel(p, n):\n    tl.store(p {symbol} n, 1.0)\n"
    with pytest.raises(TypeMismatch, match="pointers take"):
        graph_of(compiled(text, names))


def compiled(text: str, names: dict[str, Any]) -> Any:
    import linecache

    file = f"pointers_{abs(hash(text))}.py"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), names)
    return names["kernel"]


ERRORS = {
    "tl.store(p + 1.5, 1.0)": "a pointer moves by an integer",
    "tl.store(p + tl.zeros((4,), tl.float32), 1.0)": "hint: offsets are of an integer dtype",
    "tl.store(p + p, 1.0)": "two pointers cannot be added",
    "tl.store(p - p, 1.0)": "pointers take",
    "tl.store(n - p, 1.0)": "pointers take",
    "tl.load(n)": "expected a pointer",
    "tl.load(p, other=0.0)": "`other` is given without a mask",
    "tl.store(p, tl.arange(0, 4))": "the pointer is a single one",
    "tl.load(p, mask=tl.arange(0, 4) < n)": "the pointer is a single one",
    "tl.store(p + tl.arange(0, 4), tl.zeros((8,), tl.float32))": "do not broadcast",
    "tl.load(p, cache_modifier='.xx')": "cache_modifier '.xx' is none of .ca",
    "tl.store(p, 1.0, cache_modifier='.ca')": "cache_modifier '.ca' is none of .wb",
    "tl.load(p, eviction_policy='first')": "eviction_policy 'first' is none of",
    "tl.load(p, boundary_check=(0,))": "go with block pointers only",
    "tl.atomic_add(p, 1.0, sem='strong')": "sem 'strong' is none of relaxed",
    "tl.atomic_add(p, 1.0, scope='grid')": "scope 'grid' is none of cta",
    "tl.atomic_and(p, 1.0)": "has no bits to combine",
    "tl.atomic_cas(p.to(tl.pointer_type(tl.int8)), 1, 1)": "too narrow",
    "p.load(0, 4)": "annotate the parameter",
    "-p": "expected a number",
    "tl.make_block_ptr(p, (n, n), (n,), (0, 0), (4, 4), (1, 0))": "expected 2 integers, got 1",
    "tl.make_block_ptr(n, (n,), (1,), (0,), (4,), (0,))": "base must be a pointer",
    "tl.load(tl.make_block_ptr(p, (n,), (1,), (0,), (4,), (0,)), mask=True)": "no mask or other",
    "tl.load(tl.make_block_ptr(p, (n,), (1,), (0,), (4,), (0,)), boundary_check=(1,))": "boundary_check must be in",
    "tl.load(tl.make_block_ptr(p, (n,), (1,), (0,), (4,), (0,)), padding_option='inf')": "none of zero, nan",
    "tl.make_tensor_descriptor(p, [n], [1], [4]).gather(n, 0)": "has rank 1, expected 2",
    "tl.multiple_of(n, 0)": "values must be positive",
    "tl.device_print(n)": "prefix must be a string",
}  # fmt: skip


READS = "tl.load(p + i) reads them"
ARGUMENT = "read it with tl.load(p)"
AS_NUMBERS = {
    "tl.store(p, p)": ARGUMENT,
    "tl.store(w, p)": ARGUMENT,
    "tl.store(w + i, p + i)": READS,
    "tl.store(p + i, tl.where(i < n, p + i, 0))": READS,
    "tl.store(p + i, tl.where(p + i, 1.0, 0.0))": READS,
    "tl.store(p + i, tl.maximum(p + i, 0))": READS,
    "tl.store(p + i, tl.maximum(p + i, p + i))": READS,
    "tl.store(p + i, tl.clamp(p + i, 0, 1))": READS,
    "tl.store(p + i, tl.full((64,), p, tl.float32))": ARGUMENT,
    "tl.store(p + i, 1.0, mask=p + i)": READS,
    "tl.load(p + i, mask=i < n, other=p + i)": READS,
    "tl.atomic_add(p, p)": ARGUMENT,
    "tl.atomic_cas(w, p, 3)": ARGUMENT,
    "p.to(tl.int32)": "addresses have 64 bits",
    "(p + i).to(tl.float64, bitcast=True)": READS,
    "1.0 if p + n else 2.0": "tl.load(p + n) reads it",
    "not (p + n)": "tl.load(p + n) reads it",
    "p + n and n": "tl.load(p + n) reads it",
    "p > 0": ARGUMENT,
    "p + i == 0": READS,
    "n < p": ARGUMENT,
    "tl.cdiv(p, 4)": ARGUMENT,
    "tl.exp(p)": ARGUMENT,
    "tl.exp(p + i)": READS,
    "tl.sigmoid(p + i)": READS,
    "tl.math.atan2(p + i, p + i)": READS,
    "tl.fma(p + i, p + i, p + i)": READS,
    "tl.sum(p)": ARGUMENT,
    "tl.sum(p + i)": READS,
    "tl.argmax(p + i, 0)": READS,
    "tl.cumsum(p + i)": READS,
    "tl.sort(p + i)": READS,
    "tl.softmax(p + i)": READS,
    "tl.histogram(p + i, 64)": READS,
    "tl.device_assert(p)": ARGUMENT,
    "abs(p)": ARGUMENT,
    "tl.max(p + i[:, None] * n + (i[None, :] + 1))": "tl.load(p + i[:, None] * n + (i[None, :] + 1))",
    "p + p": ARGUMENT,
    "p if n > 3 else 0": ARGUMENT,
    "w if n > 3 else p": "pointers of one dtype are expected",
    "tl.load(p).to(tl.pointer_type(tl.float32))": "an integer becomes a pointer",
    "p.shape[0]": "annotate the parameter: `p: tl.Tensor`",
    "a, b = p.shape": "annotate the parameter: `p: tl.Tensor`",
    "p[i]": "tl.load(p + i) reads what lies there",
    "p[i, i]": "tl.load(p + offsets)",
    "p[i] = 1.0": "tl.store(p + i, value)",
    "p[i] += 1.0": "tl.store(p + i, value)",
}  # fmt: skip


@pytest.mark.parametrize("statement", AS_NUMBERS)
def test_pointers_are_no_numbers(statement: str) -> None:
    text = f"def kernel(p, w, n):\n    i = tl.arange(0, 64)\n    {statement}\n"
    with pytest.raises(TileError) as caught:
        graph_of(compiled(text, {"tl": tl}), w=PointerSpec(tl.int64))
    assert AS_NUMBERS[statement] in str(caught.value)
    assert "^" in str(caught.value)


def test_a_pointer_argument_as_condition_says_whether_it_was_given() -> None:
    def kernel(p, n, bias_ptr):
        value = 1.0 if bias_ptr else 2.0
        if bias_ptr:
            value += 4.0
        if not bias_ptr:
            value += 8.0
        if bias_ptr and n > 0:
            value += 16.0
        tl.store(bias_ptr or p, value)

    given, absent = (graph_of(kernel, bias_ptr=spec) for spec in (P, NoneSpec()))
    stored = [op.operands[0] for g in (given, absent) for op in g.walk() if "store" in op.opcode]
    assert [v.name for v in stored] == ["bias_ptr", "p"]
    assert opcodes(given).count("control.if") == 1
    assert "control.if" not in opcodes(absent)


@pytest.mark.parametrize("word", ["if", "while"])
def test_pointers_are_no_conditions(word: str) -> None:
    text = f"def kernel(p, n):\n    {word} p + n:\n        n += 1\n"
    with pytest.raises(TypeMismatch, match=f"the condition of `{word}` must be a number"):
        graph_of(compiled(text, {"tl": tl}))


def test_a_pointer_and_a_number_do_not_meet_after_an_if() -> None:
    text = "def kernel(p, n):\n    q = p\n    if n > 3:\n        q = 0\n    tl.store(q, 1.0)\n"
    with pytest.raises(TypeMismatch, match="'q' has two types"):
        graph_of(compiled(text, {"tl": tl}))


AS_POINTERS = (
    "tl.store(tl.where(i < n, p + i, q + i), 1.0)",
    "tl.store(p if n > 3 else q, 1.0)",
    "tl.store(w + i, (p + i).to(tl.int64))",
    "tl.store(w, p.to(tl.uint64, bitcast=True))",
    "tl.store(w, p.to(tl.int1))",
    "tl.store(tl.load(w + i).to(tl.pointer_type(tl.float32)), 1.0)",
    "tl.store(p.to(tl.pointer_type(tl.int8)) + i, 1)",
    "tl.store(w.to(tl.pointer_type(tl.pointer_type(tl.float32))), p)",
    "tl.store(w, p.to(tl.int64) - q.to(tl.int64))",
    "tl.store(w + i, p + i == q + i)",
    "tl.store(w, p != w)",
    "tl.store(w, p is not None)",
    "tl.store(tl.broadcast_to((p + i)[:, None], (64, 64)), 1.0)",
    "tl.store(tl.trans(tl.reshape(p + i, (8, 8))), 1.0)",
    "tl.store(tl.gather(p + i, i, 0), 1.0)",
    "tl.store(tl.flip(tl.cat(p + i, q + i)), 1.0)",
    "tl.store(tl.split(tl.join(p + i, q + i))[0], 1.0)",
    "tl.store(tl.split(tl.join(p, q))[0], 1.0)",
    "tl.store(tl.multiple_of(tl.full((64,), p, p.dtype), 16), 1.0)",
    "tl.device_print('p', p)",
)


@pytest.mark.parametrize("statement", AS_POINTERS)
def test_pointers_are_moved_chosen_and_cast(statement: str) -> None:
    text = f"def kernel(p, q, w, n):\n    i = tl.arange(0, 64)\n    {statement}\n"
    graph_of(compiled(text, {"tl": tl}), q=P, w=PointerSpec(tl.int64))


@pytest.mark.parametrize("statement", ERRORS)
def test_errors(statement: str) -> None:
    with pytest.raises(TileError) as caught:
        graph_of(compiled(f"def kernel(p, n):\n    {statement}\n", {"tl": tl}))
    assert ERRORS[statement] in str(caught.value)
    assert "^" in str(caught.value)


# ---------------------------------------------------------------------- types
def test_types_of_pointers() -> None:
    def kernel(p, i, n, q):
        tl.static_assert(p.dtype.element_ty == tl.float32)
        tl.static_assert(p.type.element_ty == tl.float32)
        tl.static_assert(p.dtype.is_ptr())
        tl.static_assert(not n.dtype.is_ptr())
        tl.static_assert((p + tl.arange(0, 4)).dtype == tl.pointer_type(tl.float32))
        tl.static_assert((p + tl.arange(0, 4)).type.scalar.element_ty == tl.float32)
        tl.static_assert((p + tl.arange(0, 4)).type.is_block())
        tl.static_assert(i.dtype.element_ty is tl.int64)
        tl.static_assert(q is None)
        tl.static_assert(tl.load(i).to(tl.pointer_type(tl.int8)).dtype.element_ty == tl.int8)
        x = tl.arange(0, 8).to(p.dtype.element_ty)
        tl.store(p + tl.arange(0, 8), x)

    graph_of(kernel, i=PointerSpec(tl.int64), q=NoneSpec())


def test_pointer_types_print_and_compare() -> None:
    assert str(pointer_to(tl.float16)) == "ptr<f16>"
    assert repr(tl.pointer_type(tl.int32)) == "tl.pointer_type(tl.int32)"
    assert tl.pointer_type(tl.int32) == pointer_to(tl.int32) != pointer_to(tl.uint32)


def test_the_value_of_a_constexpr_may_be_a_dtype() -> None:
    def kernel(p):
        DT: tl.constexpr = p.dtype.element_ty
        tl.static_assert(DT.value == tl.float16)
        tl.static_assert(DT.value.is_fp16())
        tl.static_assert(p.dtype.element_ty.value == DT)

    graph_of(kernel, p=PointerSpec(tl.float16))


def test_block_pointers_have_the_type_of_their_base() -> None:
    def kernel(p):
        block = tl.make_block_ptr(p, (16,), (1,), (0,), (8,), (0,))
        tl.static_assert(block.dtype.element_ty == tl.float16)
        tl.static_assert(block.type.element_ty == tl.float16)
        tl.static_assert(block.type.is_ptr())
        tl.store(block, tl.zeros((8,), tl.float32).to(block.type.element_ty))

    graph_of(kernel, p=PointerSpec(tl.float16))


def test_an_error_about_a_block_pointer_calls_it_so() -> None:
    def kernel(p):
        tl.make_block_ptr(p, (16,), (1,), (0,), (8,), (0,)).colour  # noqa: B018

    with pytest.raises(NameUnresolved, match="a BlockPointer has no attribute 'colour'"):
        graph_of(kernel, p=PointerSpec(tl.float16))


def test_annotations_fix_scalars_and_leave_pointers() -> None:
    def kernel(p: tl.pointer_type(tl.float32), n: tl.int64, s: tl.float32):  # type: ignore[valid-type]
        tl.static_assert(p.dtype.element_ty == tl.float16)
        tl.static_assert(n.dtype == tl.int64)
        tl.static_assert(s.dtype == tl.float32)

    graph_of(kernel, p=PointerSpec(tl.float16), s=ScalarSpec(tl.int32))


def test_ones_are_known() -> None:
    def kernel(p, n):
        if n == 1:
            tl.store(p, 1.0)

    graph = graph_of(kernel, n=ScalarSpec(tl.int32, value=1))
    from tiledsl.ir.passes.manager import run_passes

    run_passes(graph, ("canonicalize", "dce"))
    assert "control.if" not in opcodes(graph)


# ---------------------------------------------------------------------- pointers as values
@tiledsl.jit
def choose(p, q, out, flag, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    if flag > 0:
        src = p + BLOCK
    else:
        src = q - 1
    picked = tl.where(offs % 2 == 0, src + offs, p + offs)
    tl.store(out + offs, tl.load(picked))
    same = (src + 1 == q).to(tl.float32)
    tl.store(out + BLOCK, same)


@pytest.mark.parametrize("flag", [0, 1])
def test_choice_between_pointers(flag: int) -> None:
    p, q, out = torch.arange(20.0), torch.arange(100.0, 120.0), torch.zeros(9)
    choose[1](p, q[1:], out, flag, 8)
    src = p[8:16] if flag else q[:8]
    want = torch.where(torch.arange(8) % 2 == 0, src, p[:8])
    assert torch.equal(out[:8], want)
    assert out[8] == (0 if flag else 1)


@tiledsl.jit
def round_trip(p, out, BLOCK: tl.constexpr):
    address = p.to(tl.int64) + 4 * tl.arange(0, BLOCK)
    tl.store(out + tl.arange(0, BLOCK), tl.load(address.to(tl.pointer_type(tl.float32))))


def test_addresses_as_integers() -> None:
    p, out = torch.arange(8.0), torch.zeros(8)
    round_trip[1](p, out, 8)
    assert torch.equal(p, out)


@tiledsl.jit
def bools(p, out, n):
    offs = tl.arange(0, 8)
    x = tl.load(p + offs, mask=offs < n, other=True)
    tl.store(out + offs, x)
    tl.store(p, 256)


def test_bools_are_bytes() -> None:
    p, out = torch.tensor([True, False] * 4), torch.zeros(8, dtype=torch.bool)
    bools[1](p, out, 6)
    assert out.tolist() == [True, False] * 3 + [True, True]
    assert p[0]


@tiledsl.jit
def padded(p, out, n, BLOCK: tl.constexpr):
    block = tl.make_block_ptr(p, (n,), (1,), (-2,), (BLOCK,), (0,))
    x = tl.load(tl.advance(block, (1,)), boundary_check=(0,), padding_option="nan")
    tl.store(out + tl.arange(0, BLOCK), x)


def test_blocks_pad_with_nan() -> None:
    p, out = torch.arange(5.0), torch.zeros(8)
    padded[1](p, out, 5, 8)
    np.testing.assert_array_equal(out.numpy(), [np.nan, 0, 1, 2, 3, 4, np.nan, np.nan])


@tiledsl.jit
def rows(p, idx, out, M, N, BM: tl.constexpr, BN: tl.constexpr):
    desc = tl.make_tensor_descriptor(p, [M, N], [N, 1], [1, BN])
    at = tl.load(idx + tl.arange(0, BM))
    x = desc.gather(at, 2)
    tl.static_assert(x.shape == (BM, BN))
    tl.static_assert(desc.block_shape == (1, BN))
    to = tl.make_tensor_descriptor(out, [BM, N], [N, 1], [1, BN])
    to.scatter(x, tl.arange(0, BM), 0)


def test_gather_and_scatter_of_descriptors() -> None:
    p, idx, out = torch.arange(30.0).reshape(5, 6), torch.tensor([4, 0, 7, 1]), torch.zeros(4, 6)
    rows[1](p, idx, out, 5, 6, 4, 6)
    want = torch.zeros(4, 6)
    want[[0, 1, 3], :4] = p[[4, 0, 1], 2:]
    assert torch.equal(out, want)


@tiledsl.jit
def swizzled(out, n, m, g: tl.constexpr):
    i, j = tl.program_id(0), tl.program_id(1)
    a, b = tl.swizzle2d(i, j, n, m, g)
    tl.store(out + a * m + b, i * m + j)


def test_swizzle2d_is_a_permutation_by_groups() -> None:
    out = torch.full((5, 4), -1, dtype=torch.int32)
    swizzled[(5, 4)](out, 5, 4, 2)
    assert out.tolist() == [
        [0, 2, 4, 6],
        [1, 3, 5, 7],
        [8, 10, 12, 14],
        [9, 11, 13, 15],
        [16, 17, 18, 19],
    ]
