"""Programmatic dependent launch: what the kernel says, and what the launch asks for."""

from __future__ import annotations

import re

import pytest
import torch
from cuda.bindings import driver as cuda

import tiledsl.language as tl
from tests.unit.runtime import fake_driver
from tests.unit.runtime.manifest_kernels import matmul
from tests.unit.runtime.manifest_kernels import scale
from tiledsl.runtime import driver

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


def test_the_launch_asks_for_it(made, monkeypatch):
    monkeypatch.setattr(driver, "bindings", lambda: cuda)
    config = driver.launch_config((4, 1, 1), 384, 1024, [driver.pdl_attribute()])
    assert config.numAttrs == 1
    (attribute,) = config.attrs
    name = "CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION"
    assert attribute.id == getattr(cuda.CUlaunchAttributeID, name)
    assert attribute.value.programmaticStreamSerializationAllowed == 1


def test_only_kernels_that_wait_are_launched_so(monkeypatch):
    fake = fake_driver.install(monkeypatch)
    asked = []
    config = driver.launch_config
    monkeypatch.setattr(driver, "launch_config", lambda *a: asked.append(a[3]) or config(*a))
    monkeypatch.setattr(driver, "pdl_attribute", lambda: "early")
    matmul.forget()
    scale.forget()
    a, b, c = (torch.zeros(512, 512, dtype=torch.bfloat16) for _ in range(3))
    matmul[lambda m: (tl.cdiv(512, m["BM"]), tl.cdiv(512, m["BN"]))](a, b, c)
    matmul.bind(a, b, c, grid=lambda m: (tl.cdiv(512, m["BM"]), tl.cdiv(512, m["BN"])))()
    assert asked == [["early"]] * 2
    x = torch.zeros(64)
    scale[(1,)](x, x, 64, 64)
    assert len(asked) == 2
    assert len(fake.launches) == 3
    matmul.forget()
