"""Grids, parameter packing and tensor-map facts: what a launch computes before the driver."""

import ctypes
import struct
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.unit.runtime.fake_driver import install
from tiledsl import dtypes
from tiledsl.codegen.c_launcher import source_text
from tiledsl.codegen.module import GridParam
from tiledsl.codegen.module import GridSpec
from tiledsl.codegen.module import KernelModule
from tiledsl.codegen.module import PointerParam
from tiledsl.codegen.module import ScalarParam
from tiledsl.codegen.module import ShapeParam
from tiledsl.codegen.module import StrideParam
from tiledsl.codegen.module import TensorMapParam
from tiledsl.errors import InternalError
from tiledsl.errors import LaunchError
from tiledsl.runtime import driver
from tiledsl.runtime import launcher
from tiledsl.runtime import params as params_module
from tiledsl.runtime.launcher import check_user_grid
from tiledsl.runtime.launcher import launch_grid
from tiledsl.runtime.params import Packer
from tiledsl.runtime.tensor_map import map_facts
from tiledsl.target import HOPPER

PERSISTENT = GridSpec("persistent")
PAIRS = GridSpec("persistent", cluster_axis=0, cluster_size=2)
SPLIT = GridSpec("persistent", split_k=4, cluster_size=4)


@pytest.mark.parametrize(
    ("spec", "grid", "resident", "cluster", "want"),
    [
        (GridSpec(), (3, 4, 5), 132, 1, (3, 4, 5)),
        (GridSpec(), (3, 0, 5), 132, 1, None),
        (GridSpec(split_k=4), (3, 4, 5), 132, 4, (12, 4, 5)),
        (GridSpec(), (4, 3, 1), 132, 2, (4, 3, 1)),
        (PERSISTENT, (100, 1, 1), 132, 1, (100, 1, 1)),
        (PERSISTENT, (100, 100, 2), 132, 1, (132, 1, 1)),
        (PERSISTENT, (0, 1, 1), 132, 1, None),
        (PERSISTENT, (2**31 - 1, 2**31 - 1, 9), 132, 1, (132, 1, 1)),
        (PAIRS, (3, 5, 1), 66, 2, (20, 1, 1)),
        (PAIRS, (30, 50, 1), 66, 2, (132, 1, 1)),
        (GridSpec("persistent", cluster_axis=1, cluster_size=2), (3, 5, 1), 66, 2, (18, 1, 1)),
        (SPLIT, (3, 5, 1), 33, 4, (60, 1, 1)),
        (SPLIT, (3, 50, 1), 32, 4, (128, 1, 1)),
        (GridSpec("persistent", split_k=4), (3, 1, 1), 33, 4, (12, 1, 1)),
        (PERSISTENT, (5, 1, 1), 0, 1, (1, 1, 1)),
    ],
)
def test_launch_grid(spec, grid, resident, cluster, want):
    found = launch_grid(spec, grid, resident_clusters=resident, cluster_size=cluster)
    assert found == want


@pytest.mark.parametrize(
    ("grid", "cluster", "text"),
    [
        ((1, 65536, 1), 1, "axis 1 needs 65536 CTAs, at most 65535"),
        ((3, 1, 1), 2, "3 CTAs on axis 0 do not fill clusters of 2"),
    ],
)
def test_impossible_grids(grid, cluster, text):
    with pytest.raises(LaunchError, match=text):
        launch_grid(GridSpec(), grid, resident_clusters=132, cluster_size=cluster)


def test_user_grid():
    assert check_user_grid((4,)) == (4, 1, 1)
    assert check_user_grid((4, np.int64(5))) == (4, 5, 1)
    for bad in ((), (1, 1, 1, 1), (-1,), (2**31,)):
        with pytest.raises(LaunchError, match="grid"):
            check_user_grid(bad)


def pack(params, args, grid=(7, 8, 9)):
    packer = Packer(tuple(params))
    frame = packer.frame()
    packer.pack(frame, args, grid)
    return packer, frame


def test_tensor_facts():
    x = torch.zeros(6, 4).t()
    params = [
        PointerParam("x", "x", dtypes.float32),
        GridParam("gy", 1),
        ShapeParam("M", "x", 0),
        StrideParam("s", "x", 1),
    ]
    packer, frame = pack(params, {"x": x})
    assert packer.offsets == (0, 8, 16, 24)
    assert struct.unpack("<Qi4xqq", frame.bytes_at(0, 32)) == (x.data_ptr(), 8, 4, 4)
    assert packer.source.count("data_ptr") == 1


def test_addresses_are_the_first_words_of_the_buffer():
    x, y = torch.zeros(4), torch.zeros(4)
    params = [
        ScalarParam("n", "n", dtypes.int32),
        PointerParam("x", "x", dtypes.float32),
        ScalarParam("flag", "flag", dtypes.int1),
        PointerParam("y", "y", dtypes.float32),
    ]
    packer, frame = pack(params, {"n": 5, "x": x, "flag": True, "y": y})
    assert packer.offsets == (16, 0, 20, 8)
    assert struct.unpack("<QQi?", frame.bytes_at(0, 21)) == (x.data_ptr(), y.data_ptr(), 5, True)
    assert list(frame.pointers) == [frame.start + offset for offset in packer.offsets]


def test_pointers_reach_the_values():
    params = [ScalarParam("flag", "flag", dtypes.int1), ScalarParam("n", "n", dtypes.int32)]
    packer, frame = pack(params, {"flag": True, "n": 5})
    assert frame.start % 64 == 0
    assert list(frame.pointers) == [frame.start + offset for offset in packer.offsets]
    assert frame.address == ctypes.addressof(frame.pointers)


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_scalar_bytes(dtype):
    value = 1.5 if dtype.is_float else 1
    _, frame = pack([ScalarParam("v", "v", dtype)], {"v": value})
    assert frame.bytes_at(0, dtype.bytes) == np.asarray(value, dtype.numpy).tobytes()


@pytest.mark.parametrize(
    ("dtype", "value", "want"),
    [
        (dtypes.float32, 1e300, float("inf")),
        (dtypes.float32, -1e39, -float("inf")),
        (dtypes.float32, 3.4028235e38, np.finfo(np.float32).max),
        (dtypes.float8e5, 1e6, 57344.0),
        (dtypes.float8e4nv, -1e6, -448.0),
    ],
    ids=str,
)
def test_numbers_beyond_the_range(dtype, value, want):
    _, frame = pack([ScalarParam("v", "v", dtype)], {"v": value})
    assert frame.bytes_at(0, dtype.bytes) == np.asarray(want, dtype.numpy).tobytes()


def test_none_pointer_is_null():
    _, frame = pack([PointerParam("x", "x", dtypes.float32)], {"x": None})
    assert frame.bytes_at(0, 8) == bytes(8)


def test_no_parameters():
    _, frame = pack([], {})
    assert frame.address == 0


@pytest.mark.parametrize(
    ("param", "args", "text"),
    [
        (PointerParam("x", "x", dtypes.float32), {}, "argument x is missing"),
        (
            PointerParam("x", "x", dtypes.float32),
            {"x": 3},
            "argument x: expected a tensor, got int",
        ),
        (ScalarParam("n", "n", dtypes.int32), {"n": 2**31}, "argument n: .* does not fit i32"),
        (ScalarParam("n", "n", dtypes.int32), {"n": 1.5}, "argument n: 1.5 does not fit i32"),
        (ScalarParam("n", "n", dtypes.float32), {"n": "a"}, "argument n: 'a' does not fit f32"),
        (ScalarParam("n", "n", dtypes.bfloat16), {"n": "a"}, "argument n: 'a' does not fit bf16"),
    ],
)
def test_packing_errors(param, args, text):
    with pytest.raises(LaunchError, match=text):
        pack([param], args)


def test_tensor_map_in_the_buffer(monkeypatch):
    calls = []

    def fake_encoder(param):
        def make(*key):
            calls.append((param.name, *key))
            return b"m" * 128

        return make

    monkeypatch.setattr(params_module, "encoder", fake_encoder)
    x = torch.zeros(8, 64, dtype=torch.float16)
    tensor_map = TensorMapParam("map", "x", dtypes.float16, (1, 0), (64, 8))
    packer, frame = pack([GridParam("g", 0), tensor_map], {"x": x})
    assert packer.offsets == (0, 64)
    assert frame.bytes_at(64, 128) == b"m" * 128
    assert calls == [("map", x.data_ptr(), (8, 64), (64, 1))]


def map_param(dims=(1, 0), box=(64, 8), dtype=dtypes.float16, **kwargs):
    return TensorMapParam("map", "x", dtype, dims, box, **kwargs)


def test_map_facts():
    facts = map_facts(map_param(), 4096, (100, 200), (256, 1))
    assert (facts.extents, facts.pitches_bytes, facts.box) == ((200, 100), (512,), (64, 8))


def test_map_facts_any_order():
    param = map_param(dims=(2, 0, 1), box=(64, 1, 8))
    facts = map_facts(param, 0, (4, 8, 64), (64, 256, 1))
    assert (facts.extents, facts.pitches_bytes) == ((64, 4, 8), (128, 512))


def test_map_facts_extent_one():
    assert map_facts(map_param(), 0, (1, 60), (7, 1)).pitches_bytes == (128,)
    assert map_facts(map_param(), 0, (9, 1), (8, 5)).pitches_bytes == (16,)
    assert map_facts(map_param((0,), (64,)), 0, (60,), (1,)).pitches_bytes == ()


def test_map_of_rows_in_fours():
    param = map_param(dims=(1, 0, 0), box=(64, 2, 16))
    facts = map_facts(param, 0, (12, 64), (80, 1))
    assert (facts.extents, facts.pitches_bytes) == ((64, 4, 3), (160, 640))
    with pytest.raises(LaunchError, match="dimension 0 has extent 10, no multiple of 4"):
        map_facts(param, 0, (10, 64), (80, 1))


def test_a_c_launcher_cuts_rows_into_fours():
    param = map_param(dims=(1, 0, 0), box=(64, 2, 16))
    text = source_text(KernelModule("k", "", (), (param,), 128), b"", "k")
    assert "(unsigned long long)(x->shape[1]), 4, (unsigned long long)(x->shape[0]) / 4}" in text
    assert "(unsigned long long)(x->stride[0]) * 2, (unsigned long long)(x->stride[0]) * 8" in text
    assert "if ((unsigned long long)(x->shape[0]) % 4 != 0) return 1;" in text


def test_extents_that_are_products(monkeypatch):
    """Of arguments, none of them below 1 in an extent, and of numbers."""
    calls = []
    made = lambda param: lambda *facts: calls.append(facts) or b"m" * 128  # noqa: E731
    monkeypatch.setattr(params_module, "encoder", made)
    param = map_param(shape=("2*a*b", 64), strides=("a*b", 1))
    pack([param], {"x": torch.zeros(8), "a": 3, "b": 5})
    pack([param], {"x": torch.zeros(8), "a": 0, "b": 5})
    assert [facts[1:] for facts in calls] == [((30, 64), (15, 1)), ((10, 64), (0, 1))]
    text = source_text(KernelModule("k", "", (), (param,), 128), b"", "k")
    assert "(unsigned long long)(2*a*b)" in text
    assert "(unsigned long long)(a*b) * 2" in text
    assert "CUdeviceptr x, long long a, long long b" in text


@pytest.mark.parametrize(
    ("ptr", "shape", "strides", "text"),
    [
        (8, (8, 64), (64, 1), "not 16-byte aligned"),
        (0, (8, 64), (60, 1), "120 bytes, not a multiple of 16"),
        (0, (8, 64), (1, 8), "dimension 1 has stride 8, not 1"),
        (0, (8, 64), (0, 1), "expanded"),
        (0, (0, 64), (64, 1), "no elements"),
        (0, (8, 2**33), (2**34, 1), "over 2"),
    ],
)
def test_map_refuses_tensors(ptr, shape, strides, text):
    with pytest.raises(LaunchError, match=r"argument x: .*" + text):
        map_facts(map_param(), ptr, shape, strides)


@pytest.mark.parametrize(
    "param",
    [
        map_param(box=(128, 8)),
        map_param(box=(64, 512)),
        map_param(box=(4, 8)),
        map_param(box=(64,)),
        map_param(dims=(0, 0)),
        map_param(dims=(0,)),
        map_param(swizzle_bytes=256),
        map_param(l2_promotion_bytes=1),
    ],
)
def test_map_refuses_parameters(param):
    with pytest.raises(InternalError, match="tensor map map of argument x"):
        map_facts(param, 0, (8, 64), (64, 1))


@pytest.mark.skipif(torch.cuda.is_available(), reason="tests a machine without a GPU")
def test_no_gpu_is_a_clear_error():
    with pytest.raises(LaunchError, match="torch sees no CUDA device") as caught:
        driver.current_device()
    assert "interpreter" in (caught.value.hint or "")


def test_other_gpus_are_refused(monkeypatch):
    monkeypatch.setattr(driver, "device_name", lambda _: "GPU")
    for have, text in (((8, 0), "8.0, older than 9.0"), ((10, 0), "10.0, newer than 9.0")):
        monkeypatch.setattr(driver, "compute_capability", lambda _, have=have: have)
        with pytest.raises(LaunchError, match=text):
            driver.require_target(0)
    monkeypatch.setattr(driver, "compute_capability", lambda _: (9, 0))
    driver.require_target(0)


@pytest.mark.parametrize(
    ("spread", "gathered", "want", "policies"),
    [
        (62, 66, 66, [True]),  # Clusters of 4, two CTAs on an SM: eight SMs would be empty.
        (60, 60, 60, [True, False]),  # No more of them: spread as before.
        (66, 66, 66, []),
        (70, 70, 66, []),  # The plan's CTAs on an SM are the limit.
    ],
)
def test_clusters_share_sms_where_more_are_resident(monkeypatch, spread, gathered, want, policies):
    found = []
    install(monkeypatch)
    monkeypatch.setattr(driver, "gather_clusters", lambda _, *, on: found.append(on))
    active = lambda *_: gathered if found and found[-1] else spread  # noqa: E731
    monkeypatch.setattr(driver, "max_active_clusters", active)
    monkeypatch.setattr(launcher, "call_of", lambda function: function)
    grid = GridSpec("persistent", cluster_axis=0, cluster_size=4, ctas_per_sm=2)
    module = KernelModule("kernel", "", (), (), 512, 65536, 4, grid)
    loaded = launcher.Loaded(module, SimpleNamespace(cubin=b""), HOPPER, 0)
    assert loaded.resident_clusters == want
    assert found == policies
