"""Specs and signatures of arguments, TMA legality."""

import numpy as np
import pytest
import torch

from tiledsl import dtypes
from tiledsl.errors import LaunchError
from tiledsl.ir.specs import NoneSpec
from tiledsl.ir.specs import PointerSpec
from tiledsl.ir.specs import ScalarSpec
from tiledsl.ir.specs import TensorSpec
from tiledsl.ir.specs import spec
from tiledsl.ir.specs import spec_of
from tiledsl.ir.specs import tma_legal
from tiledsl.runtime.signature import FROM_TORCH
from tiledsl.runtime.signature import TO_TORCH
from tiledsl.runtime.signature import Device
from tiledsl.runtime.signature import scalar_spec
from tiledsl.runtime.signature import signature
from tiledsl.runtime.signature import tensor_spec
from tiledsl.runtime.signature import to_dtype


def meta(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device="meta")


def test_contiguous():
    assert tensor_spec("a", meta(128, 256)) == TensorSpec(dtypes.bfloat16, 2, 1, True, "", True, 16)


def test_transposed():
    found = tensor_spec("a", meta(128, 256).t())
    assert (found.inner_dim, found.tma, found.pitch_128) == (0, True, True)


@pytest.mark.parametrize(
    ("shape", "strides", "itemsize", "ptr", "inner", "reason"),
    [
        ((8, 64), (64, 1), 2, 0, 1, ""),
        ((8, 60), (60, 1), 2, 0, None, "not a multiple of 16"),
        ((8, 64), (64, 1), 2, 8, None, "aligned to 8 bytes"),
        ((8, 64), (64, 1), 2, 2, None, "aligned to 2 bytes"),
        ((8, 64), (128, 2), 2, 0, None, "no dimension has stride 1"),
        ((8, 64), (0, 1), 2, 0, None, "expanded"),
        ((1, 64), (0, 1), 2, 0, 1, ""),
        ((1, 64), (7, 1), 2, 0, 1, ""),
        ((64, 1), (1, 1), 2, 0, 0, ""),
        ((64, 1), (8, 5), 2, 0, None, "extent 1"),
        ((64, 1), (7, 5), 2, 0, None, "extent 1"),
        ((1, 1), (1, 1), 2, 0, None, "extent 1"),
        ((1, 1), (3, 5), 2, 0, None, "extent 1"),
        ((1,), (3,), 2, 0, None, "extent 1"),
        ((1, 64), (64, 1), 2, 0, 1, ""),
        ((100,), (1,), 2, 0, 0, ""),
        ((100,), (2,), 2, 0, None, "no dimension has stride 1"),
        ((), (), 2, 0, None, "rank 0"),
        ((2,) * 6, (32, 16, 8, 4, 2, 1), 4, 0, None, "rank 6"),
        ((0, 64), (64, 1), 2, 0, None, "no elements"),
        ((8, 64), (1 << 39, 1), 2, 0, None, "2**40"),
        ((8, (1 << 32) + 1), (1 << 34, 1), 1, 0, None, "over 2**32"),
        ((4, 8, 64), (64, 256, 1), 2, 0, 2, ""),
    ],
)
def test_tma_legal(shape, strides, itemsize, ptr, inner, reason):
    found, why = tma_legal(ptr, shape, strides, itemsize)
    assert found == inner
    assert reason in why
    assert bool(why) == (inner is None)


@pytest.mark.parametrize(
    ("shape", "strides", "pitch_128"),
    [((8, 64), (64, 1), True), ((8, 32), (32, 1), False), ((1, 32), (32, 1), True)],
)
def test_pitch_128(shape, strides, pitch_128):
    assert spec_of(dtypes.float16, shape, strides).pitch_128 is pitch_128


@pytest.mark.parametrize(
    ("dtype", "shape", "fours"),
    [
        (dtypes.float8e4nv, (3, 8, 64), True),
        (dtypes.float8e4nv, (4, 6, 64), False),
        (dtypes.float8e4nv, (64,), False),
        (dtypes.float16, (8, 64), False),
    ],
)
def test_rows_in_fours(dtype, shape, fours):
    assert spec_of(dtype, shape).fours is fours


def test_pitch_128_needs_an_inner_dim():
    assert not spec_of(dtypes.float16, (8, 64), (256, 2)).pitch_128


@pytest.mark.parametrize(("skip", "align"), [(0, 16), (1, 2), (2, 4), (4, 8), (8, 16)])
def test_alignment(skip, align):
    found = tensor_spec("a", meta(1024)[skip:])
    assert found.align_bytes == align
    assert found.tma is (align == 16)


def test_real_tensor_alignment():
    base = torch.zeros(64, dtype=torch.float32)
    assert tensor_spec("a", base).align_bytes == 16
    assert tensor_spec("a", base[1:]).align_bytes == 4


def test_spec_by_hand():
    assert spec(dtypes.float16, 2, pitch_128=True) == tensor_spec(
        "a", meta(128, 128, dtype=torch.float16)
    )
    assert spec(dtypes.float16, 0).tma_reason == "rank 0 is outside 1..5"
    assert not spec(dtypes.float16, 2, inner_dim=None).tma
    assert "8 bytes" in spec(dtypes.float16, 2, align_bytes=8).tma_reason
    assert spec(dtypes.float16, 2, tma=False).tma_reason
    assert spec(dtypes.float16, 3, inner_dim=0).inner_dim == 0


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (1, "i32"),
        (-(2**31), "i32"),
        (2**31 - 2**16 - 1, "i32"),
        (2**31 - 2**16, "i64"),
        (2**31, "i64"),
        (-(2**31) - 1, "i64"),
        (2**63, "u64"),
        (1.5, "f32"),
        (True, "i1"),
        (np.int64(3), "i32"),
        (np.float32(3), "f32"),
        (np.float64(3), "f32"),
        (np.bool_(1), "i1"),
    ],
)
def test_scalars(value, dtype):
    found = scalar_spec("n", value)
    assert isinstance(found, ScalarSpec)
    assert found.dtype == dtypes.BY_NAME[dtype]


def test_none_and_others():
    assert scalar_spec("n", None) == NoneSpec()
    with pytest.raises(LaunchError, match=r"argument n: .*got str") as caught:
        scalar_spec("n", "text")
    assert "constexpr" in (caught.value.hint or "")
    with pytest.raises(LaunchError, match="does not fit 64 bits"):
        scalar_spec("n", 2**64)


def test_signature():
    args = {"a": torch.zeros(4, 8), "n": 3, "b": None}
    found, device = signature(args)
    assert device == Device("cpu")
    assert found.names == ("a", "n", "b")
    assert found["n"] == ScalarSpec(dtypes.int32, sign=1)
    again, _ = signature({"a": torch.ones(8, 8), "n": 5, "b": None})
    assert again == found
    assert hash(again) == hash(found)
    other, _ = signature({**args, "a": torch.zeros(8, 4).t()})
    assert other != found


def test_no_tensors():
    assert signature({"n": 1})[1] is None


def test_devices_differ():
    with pytest.raises(LaunchError, match="argument b is on meta but argument a is on cpu"):
        signature({"a": torch.zeros(1), "b": meta(1)})


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float8_e4m3fnuz])
def test_unsupported_dtype(dtype):
    with pytest.raises(LaunchError, match=rf"argument x: dtype {dtype} is not supported"):
        tensor_spec("x", meta(4, dtype=dtype))


def test_sparse_is_refused():
    with pytest.raises(LaunchError, match="expected a strided tensor"):
        tensor_spec("x", torch.eye(2).to_sparse())


def test_dtype_tables_are_inverse():
    assert set(FROM_TORCH.values()) == set(dtypes.ALL)
    for ours, theirs in TO_TORCH.items():
        assert FROM_TORCH[theirs] == ours
        assert ours.bytes == theirs.itemsize
        assert to_dtype(theirs) == to_dtype(ours.name) == to_dtype(ours.user_name) == ours
    assert to_dtype(object()) is None


class Wrapped:
    """Stands for memory without being a tensor."""

    dtype = "float16"
    shape = (4, 8)

    def data_ptr(self):
        return 32


def test_other_objects_with_a_pointer():
    assert tensor_spec("x", Wrapped()) == spec_of(dtypes.float16, (4, 8))
    found, device = signature({"x": Wrapped()})
    assert found["x"].rank == 2
    assert device == Device("cuda", 0)


@pytest.mark.parametrize(
    ("value", "divisible", "known", "sign"),
    [
        (0, 16, 0, -1),
        (1, 1, 1, 1),
        (7, 1, 0, 1),
        (12, 4, 0, 1),
        (-24, 8, 0, -1),
        (2**40, 16, 0, 1),
    ],
)
def test_integers_are_known_by_their_divisors(value, divisible, known, sign):
    found = scalar_spec("n", value)
    assert isinstance(found, ScalarSpec)
    assert (found.divisible, found.value, found.sign) == (divisible, known, sign)
    plain, _ = signature({"n": value}, plain=("n",))
    assert plain["n"] == ScalarSpec(found.dtype)


def test_pointers_are_known_by_dtype_and_alignment():
    x = torch.zeros(10, 10)
    first, _ = signature({"x": x}, pointers=("x",))
    second, _ = signature({"x": torch.zeros(7)}, pointers=("x",))
    assert first == second
    assert first["x"] == PointerSpec(dtypes.float32, 16)
    shifted, _ = signature({"x": x.view(-1)[1:]}, pointers=("x",))
    assert shifted["x"] == PointerSpec(dtypes.float32, 4)
