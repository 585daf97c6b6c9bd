"""Compiled templates on disk: where Python writes bytecode, and never trusted when damaged."""

from __future__ import annotations

import sys

import pytest

from tiledsl import dtypes
from tiledsl.codegen import environment as module
from tiledsl.codegen.wgmma import render_wgmma
from tiledsl.codegen.wgmma import wgmma_shape


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    module.environment.cache_clear()
    yield tmp_path
    module.environment.cache_clear()


def rendered() -> str:
    shape = wgmma_shape(
        *[dtypes.float32, dtypes.bfloat16, dtypes.bfloat16],
        8,
        a_in_regs=False,
        trans_a=False,
        trans_b=False,
    )
    return render_wgmma([shape])


def files(folder):
    return list(folder.rglob("*.bin"))


def test_a_template_is_compiled_once(folder, monkeypatch):
    text = rendered()
    assert len(files(folder)) == 1
    module.environment.cache_clear()
    compiler = type(module.environment())
    monkeypatch.setattr(compiler, "_generate", lambda *_, **__: pytest.fail("compiled again"))
    assert rendered() == text


@pytest.mark.parametrize("damage", [b"", b"j2", b"\0" * 64, None], ids=str)
def test_damaged_files_are_made_again(folder, damage):
    text = rendered()
    (path,) = files(folder)
    good = path.read_bytes()
    path.write_bytes(good[: len(good) // 2] if damage is None else damage)
    module.environment.cache_clear()
    assert rendered() == text
    assert path.read_bytes() == good


def test_no_bytecode_where_python_writes_none(folder, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    rendered()
    assert files(folder) == []
