"""Programmatic dependent launch: what the kernel says, and what the launch asks for."""

from __future__ import annotations

import re
import struct

import pytest
import torch
from cuda.bindings import driver as cuda

import tiledsl.language as tl
from tests.unit.runtime import fake_driver
from tests.unit.runtime.manifest_kernels import matmul
from tests.unit.runtime.manifest_kernels import scale
from tiledsl.runtime.frame import Frame
from tiledsl.runtime.frame import Setup

M = 4096


def tiles(meta):
    return tl.cdiv(M, meta["BM"]), tl.cdiv(M, meta["BN"])


@pytest.fixture(scope="module")
def made():
    operands = [torch.empty(M, M, device="meta", dtype=torch.bfloat16) for _ in range(3)]
    return matmul.compile(*operands, grid=tiles)


def test_a_specialised_kernel_waits_after_its_set_up_and_before_global_memory(made):
    assert made.module.pdl
    body = made.module.source.partition('extern "C"')[2]
    before, wait, after = body.partition("grid_dependency_wait();")
    assert wait
    assert "grid_dependency_wait" not in after
    assert re.search(r"grid_launch_dependents\(\);\s*(tdsl::)?$", before)
    assert "mbarrier_init" in before
    assert not re.search(r"tma_load|tma_store|bulk", before)
    assert "griddepcontrol.wait" in made.module.standalone


def test_the_configuration_is_what_the_driver_reads():
    frame = Frame(24, (0, 8), Setup(384, 1024, pdl=True))
    frame.aim((4, 5, 6), 9)
    config = cuda.CUlaunchConfig(frame.start + frame.head)
    assert (config.gridDimX, config.gridDimY, config.gridDimZ) == (4, 5, 6)
    assert (config.blockDimX, config.blockDimY, config.blockDimZ) == (384, 1, 1)
    assert (config.sharedMemBytes, int(config.hStream), config.numAttrs) == (1024, 9, 1)
    (address,) = struct.unpack("<Q", frame.bytes_at(frame.head + 40, 8))
    attribute = cuda.CUlaunchAttribute(address)
    name = "CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION"
    assert attribute.id == getattr(cuda.CUlaunchAttributeID, name)
    assert attribute.value.programmaticStreamSerializationAllowed == 1


def test_a_single_role_waits_before_global_memory():
    x = torch.empty(64, device="meta")
    body = scale.compile(x, x, 64, 64, grid=(1,)).module.source.partition('extern "C"')[2]
    before, wait, after = body.partition("grid_dependency_wait();")
    assert wait
    assert "grid_dependency_wait" not in after
    assert not re.search(r"(load|store)_lanes", before.partition("---- main")[2])
    assert re.search(r"load", after)


def test_only_the_last_ctas_of_a_plain_grid_let_the_next_kernel_start():
    x = torch.empty(64, device="meta")
    made = scale.compile(x, x, 64, 64, grid=(1,)).module
    (last,) = re.findall(r"grid_launch_dependents_by_last<(\d+)>\(\);", made.source)
    assert int(last) == 8 * 132
    assert "griddepcontrol.launch_dependents" in made.standalone


def test_all_ctas_do_that_have_more_to_move_than_it_takes_to_start_them():
    x = torch.empty(8192, device="meta")
    made = scale.compile(x, x, 8192, 4096, grid=(2,)).module
    assert "grid_launch_dependents();" in made.source


def test_kernels_that_wait_are_launched_so(monkeypatch):
    fake = fake_driver.install(monkeypatch)
    matmul.forget()
    scale.forget()
    a, b, c = (torch.zeros(512, 512, dtype=torch.bfloat16) for _ in range(3))
    matmul[lambda m: (tl.cdiv(512, m["BM"]), tl.cdiv(512, m["BN"]))](a, b, c)
    matmul.bind(a, b, c, grid=lambda m: (tl.cdiv(512, m["BM"]), tl.cdiv(512, m["BN"])))()
    x = torch.zeros(64)
    scale[(1,)](x, x, 64, 64)
    assert [launch.early for launch in fake.launches] == [True, True, True]
    matmul.forget()
