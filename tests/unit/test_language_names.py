"""The names that kernels written for Triton use are there."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

import tiledsl as triton
import tiledsl.language as tl
from tiledsl.frontend.scope import PYTHON_BUILTINS
from tiledsl.ir.builtin import method_names
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType
from tiledsl.language.extra import libdevice

LANGUAGE = """
PropagateNan abs add advance arange argmax argmin associative_scan assume atomic_add atomic_and
atomic_cas atomic_max atomic_min atomic_or atomic_xchg atomic_xor bfloat16 bitonic_merge broadcast
broadcast_to cast cat cdiv ceil clamp constexpr core.CONSTEXPR_0 core.arange core.dtype core.extra cos
cumprod cumsum debug_barrier device_assert
device_print div_rn dot dot_scaled dtype erf exp exp2 expand_dims extra.cuda.gdc_launch_dependents
extra.cuda.gdc_wait extra.cuda.globaltimer extra.cuda.num_threads extra.cuda.num_warps
extra.cuda.smid fdiv flip float16 float32 float64 float8e4b15 float8e4b8 float8e4nv float8e5
float8e5b16 floor fma full gather get_int_dtype histogram inline_asm_elementwise int1 int16 int32
int64 int8 interleave join load load_tensor_descriptor log log2 make_block_ptr
make_tensor_descriptor map_elementwise math.log1p max max_constancy max_contiguous maximum min
minimum mul multiple_of num_programs permute philox pointer_type program_id rand rand4x randint
randint4x randn randn4x range ravel reduce reduce_or reshape rsqrt sigmoid sin softmax sort split
sqrt sqrt_rn squeeze standard._log2 static_assert static_print static_range store
store_tensor_descriptor sub sum swizzle2d tensor topk trans uint16 uint32 uint64 uint8
uint_to_uniform_float umulhi unsqueeze view where xor_sum zeros zeros_like
"""

LIBDEVICE = """
acos add_rn atan atan2 copysign div_rn erf exp exp2 fast_cosf fast_expf fast_log2f fast_logf
fast_sinf fast_tanhf finitef int2float_rn isfinited isinf isnan log log1p mul_rn nearbyint pow rint
round rsqrt sqrt tan tanh
"""

METHODS = """
abs advance argmax broadcast_to cast cumsum exp expand_dims floor gather histogram logical_and
logical_or max min permute reshape split store sum to trans
"""

HOST = """
Config JITFunction TensorDescriptor autotune cdiv constexpr constexpr_function heuristics jit
language next_power_of_2 set_allocator testing.Benchmark testing.do_bench testing.perf_report tools.tensor_descriptor.TensorDescriptor
"""


def has(root: object, path: str) -> bool:
    try:
        functools.reduce(getattr, path.split("."), root)
    except AttributeError:
        return False
    return True


@pytest.mark.parametrize(
    ("root", "names"),
    [(tl, LANGUAGE), (libdevice, LIBDEVICE), (triton, HOST)],
    ids=["tl", "libdevice", "host"],
)
def test_names(root: object, names: str) -> None:
    assert [name for name in names.split() if not has(root, name)] == []


@triton.jit
def through_core(x, FIRST: tl.constexpr = tl.core.CONSTEXPR_0):
    at = tl.core.arange(0, 8)
    tl.core.store(x + at, tl.core.where(at == FIRST, 5, at).to(tl.core.int32))


def test_kernels_reach_the_language_through_core() -> None:
    x = torch.zeros(8, dtype=torch.int32)
    through_core[(1,)](x)
    assert x.tolist() == [5, 1, 2, 3, 4, 5, 6, 7]


def test_python_functions() -> None:
    used = "float int isinstance len max min pow range abs bool print sum tuple zip enumerate"
    assert set(used.split()) <= set(PYTHON_BUILTINS)


def test_dtypes_answer_on_the_host() -> None:
    names = ("is_bf16", "is_fp16", "is_fp32", "is_fp64")
    kinds = (tl.bfloat16, tl.float16, tl.float32, tl.float64)
    assert all(
        getattr(d, n)() == (i == j) for i, n in enumerate(names) for j, d in enumerate(kinds)
    )


def test_methods() -> None:
    methods = {*method_names(TileType((8,), tl.float32)), *method_names(ScalarType(tl.float32))}
    missing = set(METHODS.split()) - methods - {"advance", "store"}
    assert missing == set()


@triton.jit
def foreign(x):
    tl.store(x, tl.zeros([], tl.float8e4b8))


def test_formats_of_other_hardware_are_names_only() -> None:
    with pytest.raises(triton.TileError, match=r"tl\.float8e4b8 is a format of other hardware"):
        foreign[(1,)](torch.zeros(1))


def test_what_host_code_asks_of_the_driver() -> None:
    from tiledsl.runtime import driver

    target = driver.active.get_current_target()
    assert target.backend == "cuda"
    assert target.arch >= 90
    assert triton.constexpr_function(has) is has
    if not torch.cuda.is_available():
        assert driver.active.get_active_torch_device() == torch.device("cpu")
        assert driver.active.utils.get_device_properties(None)["multiprocessor_count"] == 132


def test_numbers_of_numpy() -> None:
    powers = [triton.next_power_of_2(np.int64(n)) for n in (0, 1, 3, 1000)]
    assert powers == [1, 1, 4, 1024]
    assert all(type(n) is int for n in powers)
    assert type(triton.cdiv(np.int64(7), np.int32(2))) is int
    x, out = torch.randn(100), torch.empty(100)
    _scaled[(2,)](x, out, np.int64(100), BLOCK=np.int32(64))
    torch.testing.assert_close(out, 3 * x)
    y = torch.zeros(8)
    for given in ((np.int8(100), np.float32(0.5)), [np.int8(100), np.float32(0.5)]):
        _sized[(1,)](y, given)
        assert y.tolist() == [200.0, 0.5, 7.0, 400.0, *[0.0] * 4]


_NESTED = [(1, np.int32(2)), np.int8(4)]


@triton.jit
def _sized(y, L: tl.constexpr):
    tl.store(y, L[0] * 2)
    tl.store(y + 1, L[1])
    tl.store(y + 2, _NESTED[0][0] + _NESTED[0][1] + _NESTED[1])
    count = 0
    for _ in tl.static_range(L[0] * 4):
        count += 1
    tl.store(y + 3, count)


def test_classes_of_descriptors() -> None:
    x = torch.randn(16, 16)
    out = torch.zeros(4)
    _asks[(1,)](triton.TensorDescriptor.from_tensor(x, [16, 16]), x, out)
    assert out.tolist() == [1.0, 1.0, 0.0, 0.0]


@triton.jit
def _asks(host, x, out):
    made = tl.make_tensor_descriptor(x, [16, 16], [16, 1], [16, 16])
    tl.store(out, 1.0 if isinstance(host, tl.tensor_descriptor) else 0.0)
    tl.store(out + 1, 1.0 if isinstance(made, tl.tensor_descriptor) else 0.0)
    tl.store(out + 2, 1.0 if isinstance(x, tl.tensor_descriptor) else 0.0)


_SCALE = np.int64(3)


@triton.jit
def _scaled(x, o, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o + i, tl.load(x + i, mask=i < n) * _SCALE, mask=i < n)


def test_constants_on_the_host() -> None:
    three = tl.constexpr(3)
    assert (three + 1, 10 - three, three * three, -three) == (4, 7, 9, -3)
    assert (-7 // tl.constexpr(2), three % 2, three / 2, 2**three) == (-4, 1, 1.5, 8)
    assert isinstance(three + 1, tl.constexpr)
    assert [three < 4, three >= 4, three > 2] == [True, False, True]
    assert (tl.float16.primitive_bitwidth, tl.int32.is_floating()) == (16, False)
