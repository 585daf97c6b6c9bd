"""Recording, warming up, freezing and bundling, with a driver that records launches."""

from __future__ import annotations

import json
import sys

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tests.unit.runtime import fake_driver
from tests.unit.runtime.manifest_kernels import matmul
from tests.unit.runtime.manifest_kernels import scale
from tiledsl import hooks
from tiledsl import inspection
from tiledsl.__main__ import main
from tiledsl.errors import LaunchError
from tiledsl.manifest import Manifest
from tiledsl.runtime.programs import PROGRAMS

N = 256


def tiles(meta):
    return tl.cdiv(N, meta["BM"]), tl.cdiv(N, meta["BN"])


@pytest.fixture
def fake(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEDSL_CACHE_DIR", str(tmp_path / "cache"))
    matmul.forget()
    scale.forget()
    yield fake_driver.install(monkeypatch)
    tiledsl.freeze("off")
    PROGRAMS.forget()


def launch(n=N):
    x, o = torch.zeros(n), torch.zeros(n)
    scale[(2,)](x, o, n, 128)
    a, b, c = (torch.zeros(n, n, dtype=torch.float16) for _ in range(3))
    matmul[tiles](a, b, c)


def origins():
    return [item.origin for kernel in (scale, matmul) for item in kernel.history]


def no_compile(monkeypatch):
    def refuse(*_):
        pytest.fail("compiled")

    monkeypatch.setattr(inspection, "compile_program", refuse)


def test_record_warm_up_and_launch_without_a_compile(fake, tmp_path, monkeypatch):
    path = tmp_path / "runs" / "manifest.json"
    with tiledsl.record(path):
        launch()
        launch()
    launch(2 * N)  # after the recording
    entries = json.loads(path.read_text())["programs"]
    assert [e["kernel"].rpartition(":")[2] for e in entries] == ["scale", "matmul"]
    monkeypatch.setenv("TILEDSL_CACHE_DIR", str(tmp_path / "other"))
    assert [o.state for o in tiledsl.warmup(path)] == ["compiled", "compiled"]
    assert [o.state for o in tiledsl.warmup(path, workers=1)] == ["present", "present"]
    sources = [next(iter(k._programs.values())).module for k in (scale, matmul)]
    for kernel in (scale, matmul):
        kernel.forget()
    tiledsl.freeze("error")
    launch()
    assert origins() == ["disk", "disk"]
    assert [next(iter(k._programs.values())).module for k in (scale, matmul)] == sources


def test_frozen_compiles_are_refused_and_named(fake):
    x, o = torch.zeros(N), torch.zeros(N)
    scale[(2,)](x, o, N, 128)
    tiledsl.freeze("error")
    scale[(2,)](x, o, N, 128)
    with pytest.raises(LaunchError, match=r"kernel scale needs a compile.*BLOCK: 128 -> 64"):
        scale[(2,)](x, o, N, 64)
    with pytest.raises(LaunchError, match="the first of the kernel"):
        matmul[tiles](*(torch.zeros(N, N, dtype=torch.float16) for _ in range(3)))
    tiledsl.freeze("warn")
    with pytest.warns(UserWarning, match="n: scalar<i32, multiple of 16> -> scalar<i32>"):
        scale[(2,)](x, o, N - 1, 128)
    with pytest.raises(LaunchError, match="none of error, warn, off"):
        tiledsl.freeze("always")


def test_a_frozen_kernel_takes_new_extents(fake):
    launch()
    tiledsl.freeze("error")
    a, b, c = (torch.zeros(2 * N, 2 * N, dtype=torch.float16) for _ in range(3))
    matmul[lambda meta: (tl.cdiv(2 * N, meta["BM"]), tl.cdiv(2 * N, meta["BN"]))](a, b, c)
    assert [item.origin for item in matmul.history] == ["compiled", "reused"]
    with pytest.raises(LaunchError, match="b: tensor"):
        matmul[tiles](a, b.t(), c)


def test_the_cache_shows_certificates(fake, monkeypatch, capsys):
    launch()
    monkeypatch.setattr(sys, "argv", ["tiledsl", "cache", "list", "--certificates"])
    assert main() == 0
    out = capsys.readouterr().out
    assert "    proved for all trip counts and interleavings" in out
    assert "proved ordering: every write of a slot" in out
    monkeypatch.setattr(sys, "argv", ["tiledsl", "cache", "list"])
    assert main() == 0
    assert "proved" not in capsys.readouterr().out


def test_bundle_loads_without_a_cache_or_nvrtc(fake, tmp_path, monkeypatch, capsys):
    with tiledsl.record() as recording:
        launch()
    file = tiledsl.bundle(recording.stop(), tmp_path / "kernels.tdsl")
    monkeypatch.setenv("TILEDSL_CACHE_DIR", "off")
    for kernel in (scale, matmul):
        kernel.forget()
    no_compile(monkeypatch)
    assert tiledsl.load_bundle(file) == 2
    tiledsl.freeze("error")
    launch()
    assert origins() == ["bundle", "bundle"]
    program = next(iter(matmul._programs.values()))
    assert program.certificate
    assert program.certificate.splitlines()[0] in program.report
    monkeypatch.setattr(
        sys, "argv", ["tiledsl", "cache", "list", "--certificates", "--bundle", str(file)]
    )
    assert main() == 0
    out = capsys.readouterr().out
    assert all(line.strip() in out for line in program.certificate.splitlines())
    assert "no roles, nothing to prove" in out
    assert len(fake.launches) == 4


def test_bad_files(fake, tmp_path):
    path = tmp_path / "x"
    for text in ("", "{}", '{"format": 7, "programs": []}', "[1]"):
        path.write_text(text)
        with pytest.raises(LaunchError, match="manifest"):
            tiledsl.warmup(path)
    with pytest.raises(LaunchError, match="cannot be read"):
        tiledsl.load_bundle(path)
    with tiledsl.record() as recording:
        x = torch.zeros(N)
        scale[(2,)](x, x, N, 128, tl.float16)
    file = tiledsl.bundle(recording.stop(), tmp_path / "b")
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(LaunchError, match="checksum"):
        tiledsl.load_bundle(file)
    lost = Manifest([{**recording.manifest.entries[0], "kernel": "no_such_module:k"}])
    (outcome,) = tiledsl.warmup(lost)
    assert outcome.state.startswith("failed: kernel no_such_module:k cannot be found")
    with pytest.raises(LaunchError, match="cannot be found"):
        tiledsl.bundle(lost, tmp_path / "c")


def test_recorders_end_with_their_block(fake):
    before = list(hooks.STATE.recorders)
    with pytest.raises(ZeroDivisionError), tiledsl.record():
        raise ZeroDivisionError
    assert hooks.STATE.recorders == before
