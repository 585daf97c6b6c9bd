"""Pointers that are blocks of tensors: what is recognised, with which tensors, and why the rest is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tiledsl.language as tl
from tests.pointer_kernels import matmul
from tiledsl.frontend.lower_ast import lower_function
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.passes.manager import run_passes
from tiledsl.ir.specs import PointerSpec
from tiledsl.ir.specs import ScalarSpec
from tiledsl.ir.specs import TensorView
from tiledsl.ir.verifier import verify
from tiledsl.lowering import TILE_PASSES
from tiledsl.ws.blocks import Blocks
from tiledsl.ws.blocks import block_accesses

P, N16, N1, ONE = (
    PointerSpec(tl.float16),
    ScalarSpec(tl.int32, 16),
    ScalarSpec(tl.int32),
    ScalarSpec(tl.int32, value=1),
)
BLOCKS = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 8}
NAMES = (
    "M",
    "N",
    "K",
    "stride_am",
    "stride_ak",
    "stride_bk",
    "stride_bn",
    "stride_cm",
    "stride_cn",
)


def specs(**changes: Any) -> dict[str, Any]:
    plain = dict.fromkeys(NAMES, N16) | dict.fromkeys(("stride_ak", "stride_bn", "stride_cn"), ONE)
    return {"a_ptr": P, "b_ptr": P, "c_ptr": P, **plain, **changes}


def blocked(
    fn: Callable[..., Any], given: dict[str, Any], **constants: int
) -> tuple[TileGraph, Blocks]:
    graph = lower_function(fn, given, constants)
    run_passes(graph, TILE_PASSES)
    made = block_accesses(graph)
    run_passes(graph, TILE_PASSES)
    verify(graph)
    return graph, made


def opcodes(graph: TileGraph) -> list[str]:
    wanted = ("memory.load", "memory.store", "pointer.load", "pointer.store")
    return [op.opcode for op in graph.walk() if op.opcode in wanted]


def test_matmul() -> None:
    graph, made = blocked(matmul.fn, specs(), **BLOCKS)
    f16 = tl.float16
    assert made.views == [
        TensorView("a_ptr_view", "a_ptr", f16, ("M", "K"), ("stride_am", 1)),
        TensorView("b_ptr_view", "b_ptr", f16, ("K", "N"), ("stride_bk", 1)),
        TensorView("c_ptr_view", "c_ptr", f16, ("M", "N"), ("stride_cm", 1)),
    ]
    assert made.notes == []
    assert opcodes(graph) == ["memory.load", "memory.load", "memory.store"]
    assert [str(a.type) for a in graph.args[-3:]] == ["tensor<2xf16, inner=1, tma=1, align=16>"] * 3


def test_transposed_operands() -> None:
    changes = {"stride_am": ONE, "stride_ak": N16, "stride_bk": ONE, "stride_bn": N16}
    _, made = blocked(matmul.fn, specs(**changes), **BLOCKS)
    assert [v.strides for v in made.views] == [(1, "stride_ak"), (1, "stride_bn"), ("stride_cm", 1)]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"a_ptr": PointerSpec(tl.float16, 8)}, "not aligned to 16 bytes"),
        ({"stride_bk": N1}, "the stride 'stride_bk' is not known to be a multiple of 16 bytes"),
        ({"stride_bk": ScalarSpec(tl.int32, 4)}, "the stride 'stride_bk' is not known"),
        ({"stride_ak": N16}, "no dimension has stride 1"),
    ],
)
def test_what_no_tensor_map_loads_stays(changes: dict[str, Any], reason: str) -> None:
    graph, made = blocked(matmul.fn, specs(**changes), **BLOCKS)
    assert made.views == []
    assert reason in made.notes[0]
    assert "pointer_kernels.py" in made.notes[0]
    assert opcodes(graph) == ["pointer.load", "pointer.load", "pointer.store"]


def test_stores_need_no_tensor_map() -> None:
    graph, made = blocked(matmul.fn, specs(stride_cm=N1), **BLOCKS)
    assert opcodes(graph) == ["memory.load", "memory.load", "memory.store"]
    assert [str(a.type) for a in graph.args[-1:]] == ["tensor<2xf16, inner=1, tma=0, align=16>"]
    assert len(made.views) == 3


# ---------------------------------------------------------------------- other forms
def product(a, b, c, M, N, K, sa, sb, sc, sz, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, n, z = tl.program_id(0) * BM, tl.program_id(1) * BN, tl.program_id(2)
    rm, rn, rk = m + tl.arange(0, BM), n + tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        x = tl.load(
            a + z * sz + rm[:, None] * sa + (k + rk)[None, :],
            mask=(rm[:, None] < M) & ((k + rk)[None, :] < K),
        )
        y = tl.load(
            b + (k + rk)[:, None] * sb + rn[None, :],
            mask=(k + rk[:, None] < K) & (rn < N)[None, :],
            other=0.0,
        )
        acc = tl.dot(x, y, acc)
    tl.store(
        c + z * sz + rm[:, None] * sc + rn[None, :], acc, mask=(rm[:, None] < M) & (rn[None, :] < N)
    )


def given(**changes: Any) -> dict[str, Any]:
    return (
        dict.fromkeys("abc", P)
        | dict.fromkeys(("M", "N", "K", "sa", "sb", "sc", "sz"), N16)
        | changes
    )


TILE = {"BM": 64, "BN": 64, "BK": 64}


def test_indexes_with_loop_variables_and_batches() -> None:
    graph, made = blocked(product, given(), **TILE)
    assert [(v.shape, v.strides) for v in made.views] == [
        ((None, "M", "K"), ("sz", "sa", 1)),
        (("K", "N"), ("sb", 1)),
        ((None, "M", "N"), ("sz", "sc", 1)),
    ]
    loads = [op for op in graph.walk() if op.opcode == "memory.load"]
    assert loads[0].squeeze == (0,)  # type: ignore[attr-defined]
    assert loads[0].block_shape == (1, 64, 64)  # type: ignore[attr-defined]


def stacked(a, b, c, G, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Matrices that lie one after the other: rows count over all of them, masks within one."""
    m, n, z = tl.program_id(0) * BM, tl.program_id(1) * BN, tl.program_id(2)
    rm, rn, rk = m + tl.arange(0, BM), n + tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        x_mask = (rm[:, None] < M) & ((k + rk)[None, :] < K)
        x = tl.load(a + (z * M + rm)[:, None] * K + (k + rk)[None, :], mask=x_mask, other=0.0)
        y_mask = ((k + rk)[:, None] < K) & (rn[None, :] < 96)
        y = tl.load(
            b + (z * K + k + rk)[:, None] * N + (z % 2 * 96 + rn)[None, :], mask=y_mask, other=0.0
        )
        acc = tl.dot(x, y, acc)
    row = z * M + rm
    tl.store(
        c + row[:, None] * N + rn[None, :], acc, mask=(row[:, None] < G * M) & (rn[None, :] < N)
    )


def test_bounds_that_count_less_than_the_index() -> None:
    """What an index counts beside what its mask bounds is a dimension of its own."""
    numbers = dict.fromkeys(("G", "M", "N", "K"), N16)
    graph, made = blocked(stacked, dict.fromkeys("abc", P) | numbers, **TILE)
    assert made.notes == []
    assert [(v.shape, v.strides) for v in made.views] == [
        ((None, "M", "K"), ("M*K", "K", 1)),
        ((None, None, "K", 96), ("N*K", 96, "N", 1)),
        (("G*M", "N"), ("N", 1)),
    ]
    loads = [op for op in graph.walk() if op.opcode == "memory.load"]
    assert loads[1].block_shape == (1, 1, 64, 64)  # type: ignore[attr-defined]


def test_products_of_strides_are_aligned_by_one_factor() -> None:
    numbers = {"G": N1, "M": N1, "N": N16, "K": N1}
    _, made = blocked(stacked, dict.fromkeys("abc", P) | numbers, **TILE)
    assert "the stride 'M * K' is not known to be a multiple of 16 bytes" in made.notes[0]
    graph, made = blocked(stacked, dict.fromkeys("abc", P) | numbers | {"K": N16}, **TILE)
    assert made.notes == []
    assert all("tma=1" in str(a.type) for a in graph.args[-3:])


def declined(change: Callable[[str], str], **specs_: Any) -> str:
    """Why a changed form of `product` is not recognised."""
    import inspect
    import linecache

    text = change(inspect.getsource(product))
    file = f"declined_{abs(hash(text))}.py"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names: dict[str, Any] = {"tl": tl}
    exec(compile(text, file, "exec"), names)
    _, made = blocked(names["product"], given(**specs_), **TILE)
    return made.notes[0] if made.notes else "nothing"


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("other=0.0", "other=1.0", "`other` that is not 0"),
        ("& (rn < N)[None, :]", "& (rn != 3)[None, :]", "the mask is no bound"),
        ("& (rn < N)[None, :]", "& (rn < N - 1)[None, :]", "is no product of numbers and arguments"),
        ("& (rn < N)[None, :]", "& (rn >= 1)[None, :]", "the mask cuts dimension 1 at the low end"),
        ("& (rn < N)[None, :]", "& (rn >= M)[None, :]", "dimension 1 is bounded by no number"),
        ("* sb + rn[None, :]", "* sb + rn[None, :] * sb", "two dimensions have the same stride"),
        ("* sb + rn[None, :]", "* sb + (rn * rn)[None, :]", "two coordinates are multiplied"),
        ("* sb + rn[None, :]", "* sb + (rn // 2)[None, :]", "an index comes from `//`, and is no sum"),
        ("b + (k", "c + (k", "also stores through the pointer it loads from"),
        ("b + (k", "tl.where(rn[None, :] < 5, a, b) + (k", "the pointer is computed by elementwise.select"),
        ("b + (k + rk)[:, None] * sb", "b + ((k + rk) % K)[:, None] * sb", "an index wraps around"),
    ],
)  # fmt: skip
def test_reasons(old: str, new: str, reason: str) -> None:
    assert reason in declined(lambda text: text.replace(old, new))


def test_rows_that_wrap_need_a_masked_store() -> None:
    wrapping = "(n + tl.arange(0, BN)) % N"

    def change(text: str) -> str:
        text = text.replace("n + tl.arange(0, BN), tl", f"{wrapping}, tl").replace(
            "& (rn < N)[None, :]", ""
        )
        return text.replace("mask=(rm[:, None] < M) & (rn[None, :] < N))", "mask=rm[:, None] < M)")

    assert "an index wraps around, and what lies beyond is used" in declined(change)


def test_low_bounds_of_zero_are_part_of_a_block() -> None:
    assert (
        declined(lambda t: t.replace("& (rn < N)[None, :]", "& ((rn < N) & (rn >= 0))[None, :]"))
        == "nothing"
    )


def unmasked(
    a, b, c, N, K, start, sa, sb, sc, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    rm, rn, rk = tl.arange(0, BM), tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a + rm[:, None] * sa + (start + k + rk)[None, :])
        acc = tl.dot(x, tl.load(b + (k + rk)[:, None] * sb + rn[None, :]), acc)
    tl.store(c + rm[:, None] * sc + rn[None, :], acc, mask=rn[None, :] < N)


def without_masks(tile: dict[str, int], **changes: Any) -> tuple[TileGraph, Blocks]:
    numbers = dict.fromkeys(("N", "K", "start", "sa", "sb", "sc"), N16)
    return blocked(unmasked, dict.fromkeys("abc", P) | numbers | changes, **tile)


def test_rows_without_masks_are_cut_where_tiles_are_no_whole_lines() -> None:
    """A tensor map loads lines of 128 bytes: two for a tile of 96 halves, of one a part."""
    graph, made = without_masks({"BM": 64, "BN": 96, "BK": 16})
    assert made.notes == []
    assert [(v.shape, v.strides) for v in made.views] == [
        ((None, None), ("sa", 1)),
        ((None, None, 96), (96, "sb", 1)),
        ((None, "N"), ("sc", 1)),
    ]
    loads = [op for op in graph.walk() if op.opcode == "memory.load"]
    assert [op.block_shape for op in loads] == [(64, 16), (1, 16, 96)]  # type: ignore[attr-defined]
    _, made = without_masks({"BM": 64, "BN": 64, "BK": 64})
    assert [v.shape for v in made.views] == [(None, None), (None, None), (None, "N")]


@pytest.mark.parametrize(
    ("tile", "changes"),
    [
        ({"BM": 64, "BN": 64, "BK": 96}, {"start": N16}),
        ({"BM": 64, "BN": 64, "BK": 80}, {"start": N16}),
    ],
)
def test_rows_without_masks_that_begin_anywhere(
    tile: dict[str, int], changes: dict[str, Any]
) -> None:
    graph, made = without_masks(tile, **changes)
    assert made.views == []
    width = tile["BK"]
    assert f"rows without a mask are loaded in tiles of {2 * width} bytes" in made.notes[0]
    assert f"is not known to begin at a multiple of its {width} elements" in made.notes[0]
    assert "memory.load" not in opcodes(graph)
