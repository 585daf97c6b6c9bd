"""Hand-written machine graphs on the GPU: every elementwise op against its own semantics, blocks, layouts, GEMMs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch

from tests.unit.codegen import elementwise_graphs as eg
from tests.unit.codegen import layout_graphs as lg
from tests.unit.codegen import machine_graphs as mg
from tiledsl import dtypes as dt
from tiledsl.codegen.kernel import emit_kernel
from tiledsl.dtypes import DType
from tiledsl.ir.graph import TileGraph
from tiledsl.runtime.launcher import Launcher
from tiledsl.runtime.nvrtc import compile_module

pytestmark = pytest.mark.gpu

TORCH = {
    "i1": torch.bool, "i8": torch.int8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64, "u8": torch.uint8,
    "u16": torch.uint16, "u32": torch.uint32, "u64": torch.uint64, "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2, "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64,
}  # fmt: skip
# Relative errors of ops that are not exact; in units of the dtype's last place.
ULPS = {
    "div": 2, "exp": 2, "exp2": 2, "log": 2, "log2": 2, "rsqrt": 2, "sin": 4, "cos": 4, "tanh": 4, "erf": 4, "fma": 0,
}  # fmt: skip
LOOSE = ("mul", "add", "sub")


def run(
    graph: TileGraph, args: Mapping[str, torch.Tensor], grid: tuple[int, int, int] = (1, 1, 1)
) -> None:
    """Compiles and launches on the current device."""
    module = emit_kernel(graph)
    compiled = compile_module(module)
    assert not compiled.serialized, compiled.log
    Launcher(module, compiled).launch(
        args, grid, torch.cuda.current_device(), torch.cuda.current_stream().cuda_stream
    )
    torch.cuda.synchronize()


def to_torch(array: np.ndarray, dtype: DType) -> torch.Tensor:
    """A device tensor with an array's bits."""
    bits = np.ascontiguousarray(array).view(f"u{array.itemsize}")
    return torch.from_numpy(bits.copy()).view(TORCH[dtype.name]).cuda()


def to_numpy(tensor: torch.Tensor, dtype: DType) -> np.ndarray:
    """A tensor's bits as a numpy array."""
    return tensor.cpu().contiguous().view(torch.uint8).numpy().view(dtype.numpy)


def values(dtype: DType, n: int, seed: int, *, small: bool = False) -> np.ndarray:
    """Random values with the awkward ones in front."""
    rng = np.random.default_rng(seed)
    if dtype.kind == "bool":
        return rng.integers(0, 2, n).astype(np.bool_)
    if dtype.is_int:
        info = np.iinfo(dtype.numpy)
        out = rng.integers(info.min, info.max, n, dtype=dtype.numpy, endpoint=True)
        special = [0, 1, info.max, info.min, 2, 3, dtype.bits - 1, dtype.bits]
        out[:8] = np.array([v if v <= info.max else 0 for v in special], dtype=dtype.numpy)
        if small:
            out[8 : n // 2] %= 40
        return out
    out = (rng.standard_normal(n) * np.exp(rng.uniform(-3, 3, n))).astype(dtype.numpy)
    with np.errstate(all="ignore"):
        special = np.array(
            [
                0.0,
                -0.0,
                1.0,
                -1.0,
                np.inf,
                -np.inf,
                np.nan,
                0.5,
                300.0,
                -300.0,
                1e6,
                -1e6,
                1e-6,
                3e9,
                1e19,
            ]
        )
        out[: len(special)] = special.astype(dtype.numpy)
    return out


@pytest.mark.parametrize("dtype", dt.ALL, ids=str)
def test_elementwise(dtype: DType) -> None:
    """All ops with a first operand of this dtype."""
    failures = [f for case in eg.cases() if case.dtype == dtype and (f := check(case))]
    assert not failures, "\n".join(failures)


def check(case: eg.Case) -> str:
    n = eg.N
    arrays = [values(d, n, i, small=i == 1) for i, d in enumerate(case.operand_dtypes)]
    if len(arrays) > 1:
        arrays[1] = np.roll(arrays[1], 3)
        both = min(64, n // 8)
        arrays[0][n - both :] = (
            arrays[1][n - both :] if arrays[0].dtype == arrays[1].dtype else arrays[0][n - both :]
        )
    args = {
        f"x{i}": to_torch(a, d)
        for i, (a, d) in enumerate(zip(arrays, case.operand_dtypes, strict=True))
    }
    args["out"] = torch.zeros(n * case.out_dtype.bytes, dtype=torch.uint8, device="cuda").view(
        TORCH[case.out_dtype.name]
    )
    run(eg.kernel(case), args)
    got = to_numpy(args["out"], case.out_dtype)
    graph = eg.kernel(case)
    (op,) = [o for o in graph.walk() if o.opcode == case.opcode and o.parent is not graph.body]
    want = np.asarray(op.evaluate(*arrays))
    return compare(case, got, want, arrays)


def compare(case: eg.Case, got: np.ndarray, want: np.ndarray, inputs: list[np.ndarray]) -> str:
    if not case.out_dtype.is_float:
        bad = got != want
    else:
        with np.errstate(all="ignore"):
            g, w = got.astype(np.float64), want.astype(np.float64)
        name = case.opcode.partition(".")[2]
        eps = 2.0**-(case.out_dtype.mantissa_bits)
        tolerance = ULPS.get(name, 0) * eps if case.out_dtype.bits >= 32 else eps * (name in ULPS)
        if dict(case.attributes).get("fast"):
            with np.errstate(all="ignore"):
                tolerance = np.maximum(
                    tolerance, 2e-6 * np.maximum(1, np.abs(inputs[0].astype(np.float64)))
                )
        tiny = 2e-38 if case.out_dtype.bits == 32 else 0.0
        with np.errstate(all="ignore"):
            close = (g == w) | (
                np.abs(g - w) <= np.maximum(tolerance * np.abs(w), tiny * bool(np.any(tolerance)))
            )
        bad = ~(close | (np.isnan(g) & np.isnan(w)))
        if case.out_dtype.is_fp8:  # results saturate, infinities of e5m2 included
            bad &= np.isfinite(w)
        if name == "fma" and case.dtype.bits == 64:  # the reference rounds twice
            a, b, c = (np.abs(x.astype(np.float64)) for x in inputs)
            with np.errstate(all="ignore"):
                bad &= ~(np.abs(g - w) <= 4e-16 * (a * b + c))
        if name in ("sin", "cos"):
            bad &= np.abs(inputs[0].astype(np.float64)) < 1e5
    if not bad.any():
        return ""
    at = int(np.argmax(bad))
    operands = ", ".join(str(a[at]) for a in inputs)
    return f"{case}: {int(bad.sum())} wrong, first ({operands}) -> {got[at]}, expected {want[at]}"


@pytest.mark.parametrize("case", lg.CASES, ids=lambda c: c.name)
def test_layouts(case: lg.Case) -> None:
    """Blocks through registers and shared memory arrive unchanged."""
    case.check(run)


@pytest.mark.parametrize("n", [1000, 1024, 5, 4097])
@pytest.mark.parametrize("offset", [0, 1, 2])
def test_vector_add(n: int, offset: int) -> None:
    """Aligned, unaligned and ragged vectors."""
    x, y, out = (
        torch.randn(n + 8, device="cuda").bfloat16()[offset : offset + n] for _ in range(3)
    )
    run(
        mg.vector_add(align=16 if offset == 0 else 2),
        {"x": x, "y": y, "out": out},
        (-(-n // 1024), 1, 1),
    )
    assert torch.equal(out, x + y)


@pytest.mark.parametrize("MNK", [(64, 64, 64), (128, 128, 64), (64, 192, 128)], ids=str)
def test_single_role_dot(MNK: tuple[int, int, int]) -> None:
    M, N, K = MNK
    a, b = torch.randn(M, K, device="cuda").bfloat16(), torch.randn(K, N, device="cuda").bfloat16()
    c = torch.full((M, N), float("nan"), device="cuda")
    run(mg.single_role_dot(M, N, K), {"a": a, "b": b, "c": c})
    torch.testing.assert_close(c, a.float() @ b.float(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("make", [mg.ping_pong_gemm, mg.cooperative_gemm])
@pytest.mark.parametrize(
    "MNK", [(512, 768, 64), (1000, 1336, 520), (4096, 4096, 512), (256, 512, 8)], ids=str
)
def test_gemm(make: object, MNK: tuple[int, int, int]) -> None:
    M, N, K = MNK
    a, b = torch.randn(M, K, device="cuda").bfloat16(), torch.randn(N, K, device="cuda").bfloat16()
    c = torch.full((M, N), float("nan"), device="cuda").bfloat16()
    tile = (128, 192) if make is mg.ping_pong_gemm else (128, 256)
    run(make(*tile), {"a": a, "b": b, "c": c}, (-(-M // tile[0]), -(-N // tile[1]), 1))
    want = a.float() @ b.float().T
    assert ((c.float() - want).norm() / want.norm()).item() < 3e-3
