"""The disk cache: files, damage, eviction, many processes, what the key holds, fresh processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from pathlib import Path

import pytest

from tests.scripts import Scripts
from tiledsl.__main__ import main
from tiledsl.runtime import programs
from tiledsl.runtime import store as store_module
from tiledsl.runtime.closure import closure_of
from tiledsl.runtime.closure import value_text
from tiledsl.runtime.store import Damaged
from tiledsl.runtime.store import Record
from tiledsl.runtime.store import Store
from tiledsl.runtime.store import default_folder
from tiledsl.runtime.store import pack_record
from tiledsl.runtime.store import unpack_record

ROOT = Path(__file__).parents[3]
RECORD = Record({"name": "k", "n": 3}, {"z": b"\0cubin" * 100, "a": b"text", "empty": b""})


def test_round_trip(tmp_path):
    cache = Store(tmp_path / "new")
    assert cache.get("cubin", "k") is None
    assert cache.put("cubin", "k", RECORD)
    assert cache.get("cubin", "k") == RECORD
    assert cache.get("program", "k") is None
    assert [p.name for p in cache.files()] == ["cubin-k.tdsl"]
    assert cache.verify() == []
    assert cache.clear() == 1
    assert list(tmp_path.joinpath("new").iterdir()) == []


@pytest.mark.parametrize("how", ["empty", "short", "flipped", "text"])
def test_damage_is_a_miss_with_one_warning(tmp_path, how):
    cache = Store(tmp_path)
    cache.put("cubin", "k", RECORD)
    path = cache.path("cubin", "k")
    data = path.read_bytes()
    path.write_bytes(
        {
            "empty": b"",
            "short": data[:-7],
            "flipped": data[:-3] + bytes([data[-3] ^ 1]) + data[-2:],
            "text": b"hello",
        }[how]
    )
    assert [p for p, _ in cache.verify()] == [path]
    with pytest.warns(UserWarning, match="is damaged") as caught:
        assert cache.get("cubin", "k") is None
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.get("cubin", "k") is None
        assert cache.put("cubin", "k", RECORD)
    assert cache.get("cubin", "k") == RECORD


def test_files_of_another_version_are_misses(tmp_path):
    cache = Store(tmp_path)
    cache.put("cubin", "k", RECORD)
    path = cache.path("cubin", "k")
    path.write_bytes(b"tiledsl cache 0\n" + path.read_bytes()[16:])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.get("cubin", "k") is None


def test_every_cut_is_found():
    data = pack_record(RECORD)
    for size in range(len(data)):
        with pytest.raises(Damaged):
            unpack_record(data[:size])


def test_a_folder_that_cannot_be_written_costs_one_warning(tmp_path):
    file = tmp_path / "file"
    file.write_text("x")
    cache = Store(file / "below")
    with pytest.warns(UserWarning, match="going on without it") as caught:  # noqa: PT031 - one of three calls
        assert not cache.put("cubin", "k", RECORD)
        assert not cache.put("cubin", "l", RECORD)
        assert cache.get("cubin", "k") is None
    assert len(caught) == 1


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    def full(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.warns(UserWarning, match="No space left on device"):
        assert not Store(tmp_path).put("cubin", "k", RECORD)
    assert list(tmp_path.iterdir()) == []


def test_eviction_takes_what_was_used_longest_ago(tmp_path):
    size = len(pack_record(RECORD))
    cache = Store(tmp_path, size * 4 + 10)
    now = time.time()
    for at in range(4):
        cache.put("cubin", str(at), RECORD)
        os.utime(cache.path("cubin", str(at)), (now - 9000 + at, now - 9000 + at))
    assert cache.get("cubin", "0") == RECORD  # used: now the youngest
    cache.put("cubin", "4", RECORD)
    assert [p.stem for p in cache.files()] == ["cubin-0", "cubin-3", "cubin-4"]
    assert not Store(tmp_path, 10).put("cubin", "large", RECORD)


def test_files_of_killed_writers_are_removed_later(tmp_path):
    stale, fresh = tmp_path / ".new-stale", tmp_path / ".new-fresh"
    for path in (stale, fresh):
        path.write_bytes(b"half")
    os.utime(stale, (1, 1))
    Store(tmp_path).put("cubin", "k", RECORD)
    assert not stale.exists()
    assert fresh.exists()


def test_folder_of_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEDSL_CACHE_DIR", str(tmp_path))
    assert default_folder() == tmp_path
    for off in ("", "off", "OFF"):
        monkeypatch.setenv("TILEDSL_CACHE_DIR", off)
        assert default_folder() is None
        assert not store_module.store().put("cubin", "k", RECORD)
    monkeypatch.delenv("TILEDSL_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "tiledsl"


# ---------------------------------------------------------------------- processes
def run(script: str, folder: Path, *args: str, **kwargs):
    env = {
        **os.environ,
        "TILEDSL_CACHE_DIR": str(folder / "cache"),
        "PYTHONPATH": str(ROOT),
        "CUDA_VISIBLE_DEVICES": "",
    }
    path = folder / "script.py"
    if not path.exists() or path.read_text() != script:
        path.write_text(script)
    command = [sys.executable, "-W", "always", str(path), *args]
    return subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **kwargs
    )


# The module alone: it needs nothing else of the package, and torch takes long to import.
WRITERS = """
import importlib.util, sys, time
spec = importlib.util.spec_from_file_location("store_alone", sys.argv[2])
module = sys.modules["store_alone"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
Record, store = module.Record, module.store
me, end = sys.argv[1], time.time() + 2.5
blobs = {"cubin": bytes(range(256)) * 400}
print("ready", flush=True)
while time.time() < end:
    for key in ("a", "b"):
        found = store().get("program", key)
        assert found is None or (found.facts["key"] == key and found.blobs == blobs), found
        assert store().put("program", key, Record({"key": key, "by": me}, blobs))
print("done")
"""


def test_sixteen_processes_write_the_same_entries_and_some_are_killed(tmp_path):
    workers = [run(WRITERS, tmp_path, str(i), store_module.__file__) for i in range(16)]
    for worker in workers[:4]:
        worker.stdout.readline()
        worker.send_signal(signal.SIGKILL)
    texts = [worker.communicate(timeout=120)[0] for worker in workers]
    for worker, text in zip(workers[4:], texts[4:], strict=True):
        assert worker.returncode == 0, text
        assert text.split() == ["ready", "done"]
    cache = Store(tmp_path / "cache")
    assert cache.verify() == []
    assert [p.name for p in cache.files()] == ["program-a.tdsl", "program-b.tdsl"]


KERNEL = textwrap.dedent("""
    import sys
    import warnings
    import torch
    import tiledsl, tiledsl.language as tl
    from tests.unit.runtime import fake_driver
    from tests.unit.runtime.bench_launch import Patch
    fake = fake_driver.install(Patch())
    warnings.simplefilter("always")
    SCALE = 2

    @tiledsl.jit
    def scale(x, o, n, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(o + i, tl.load(x + i, mask=i < n) * SCALE, mask=i < n)

    x, o = torch.zeros(64), torch.zeros(64)
    scale[(1,)](x, o, 64, 64)
    assert len(fake.launches) == 1
    heavy = ("tiledsl.compiler", "networkx", "jinja2", "cuda.bindings.nvrtc", "tiledsl.ir.op",
             "tiledsl.language.names", "tiledsl.ws.plan", "tiledsl.tuner", "tiledsl.manifest")
    loaded = [m for m in heavy if m in sys.modules]
    print(scale.history[0].origin, *loaded)
""")


def test_a_fresh_process_needs_neither_compiler_nor_nvrtc(tmp_path):
    scripts = Scripts("torch")

    def run_kernel(script: str) -> str:
        path = tmp_path / "script.py"
        path.write_text(script)
        done = scripts.run(path, env={"TILEDSL_CACHE_DIR": str(tmp_path / "cache")})
        return done.stdout + done.stderr

    first = run_kernel(KERNEL)
    assert first.startswith("compiled tiledsl.compiler"), first
    assert run_kernel(KERNEL) == "disk\n"
    for path in (tmp_path / "cache").iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    damaged = run_kernel(KERNEL)
    assert "compiled tiledsl.compiler" in damaged
    assert damaged.count("is damaged") == 2  # the program, and the cubin that it was made of
    assert run_kernel(KERNEL.replace("SCALE = 2", "SCALE = 3")).startswith("compiled")
    scripts.close()


def test_command_line(tmp_path, monkeypatch, capsys):
    def command(action: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["tiledsl", "cache", action])
        return main(), capsys.readouterr().out

    monkeypatch.setenv("TILEDSL_CACHE_DIR", str(tmp_path))
    cache = Store(tmp_path)
    cache.put("cubin", "aa", RECORD)
    cache.put("program", "bb", RECORD)
    _, listed = command("list")
    assert "2 entries" in listed
    assert "program" in listed
    assert " k" in listed
    assert command("verify")[0] == 0
    cache.path("cubin", "aa").write_bytes(b"x")
    status, found = command("verify")
    assert status == 1
    assert "cubin-aa.tdsl" in found
    assert "damaged" in command("list")[1]
    assert "removed 2 entries" in command("clear")[1]
    assert "0 entries" in command("list")[1]


# ---------------------------------------------------------------------- what the key holds
def helper(x):
    return x + OFFSET


def other_helper(x):
    return x - OFFSET


class Limits:
    SIZE = 4


OFFSET = 1
FUNCTION = helper
NAMES = ("a", 1.5)


def kernel_of(captured):
    def kernel(x):
        return FUNCTION(x) + captured + Limits.SIZE + os.path.curdir + len(NAMES)

    return kernel


def test_the_closure_follows_what_the_kernel_reaches(monkeypatch):
    digests = [closure_of(kernel_of(1)).digest, closure_of(kernel_of(2)).digest]
    digests.append(closure_of(kernel_of(1.0)).digest)
    for target, name, value in (
        (None, "OFFSET", 2),
        (None, "FUNCTION", other_helper),
        (None, "NAMES", ("a", 1)),
        (Limits, "SIZE", 5),
        (os.path, "curdir", "here"),
    ):
        with monkeypatch.context() as patch:
            if target is None:
                patch.setitem(globals(), name, value)
            else:
                patch.setattr(target, name, value)
            digests.append(closure_of(kernel_of(1)).digest)
    assert len(set(digests)) == len(digests)
    assert closure_of(kernel_of(1)).digest == digests[0]
    names = {name for _, name, _ in closure_of(kernel_of(1)).watched}
    assert {"OFFSET", "FUNCTION", "NAMES", "SIZE", "captured", "curdir"} <= names


def test_recursive_helpers_have_a_closure(monkeypatch):
    def even(n):
        return n == 0 or odd(n - 1)

    def odd(n):
        return n != 0 and even(n - 1)

    assert closure_of(even).digest == closure_of(even).digest != closure_of(odd).digest


def test_functions_as_constants_are_told_apart_by_their_text() -> None:
    def made(sign: int) -> object:
        if sign > 0:

            def function(x):
                return x + 1
        else:

            def function(x):
                return x - 1

        return function

    texts = [value_text(made(1)), value_text(made(-1)), value_text((1, made(1)))]
    assert len(set(texts)) == 3
    assert value_text(made(1)) == texts[0]


def test_compiled_templates_do_not_change_the_package(tmp_path, monkeypatch):
    """The first process compiles the templates; the next ones still find what it wrote."""
    for name in ("package", "templates"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.py").write_text("a = 1\n")
    monkeypatch.setattr(programs, "PACKAGE", tmp_path / "package")
    before = programs.package_digest.__wrapped__()
    for name in ("package", "templates"):
        (tmp_path / name / "__pycache__").mkdir()
        (tmp_path / name / "__pycache__" / f"{name}.cache").write_bytes(b"compiled")
    assert programs.package_digest.__wrapped__() == before
    (tmp_path / "templates" / "templates.py").write_text("a = 2\n")
    assert programs.package_digest.__wrapped__() != before
