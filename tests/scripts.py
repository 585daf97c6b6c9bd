"""Scripts that run by themselves, each in a process of its own: a fork of one that has modules loaded.

Most of the time of a small script is that of its imports, of torch above all.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SECONDS = 300
MODULES = ("torch", "cuda.bindings.nvrtc", "tiledsl.language", "tiledsl.compiler")
SERVER = """
import gc, importlib, json, os, runpy, signal, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
gc.freeze()
for line in sys.stdin:
    asked = json.loads(line)
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
        continue
    signal.alarm(asked["seconds"])
    os.environ.update(asked["env"])
    os.chdir(asked["cwd"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for kind, number in (("out", 1), ("err", 2)):
        os.dup2(os.open(asked[kind], os.O_WRONLY), number)
    sys.argv = asked["argv"]
    sys.path.insert(0, os.path.dirname(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")
    sys.exit()
"""


@dataclass(frozen=True)
class Done:
    """What a script wrote, and its exit status; negative: the signal that ended it."""

    returncode: int
    stdout: str
    stderr: str


class Scripts:
    """Runs scripts on the CPU, with `modules` loaded; `close` ends the process that they are forks of."""

    def __init__(self, *modules: str) -> None:
        env = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER, *modules],
            env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(
        self,
        path: Path,
        *arguments: str,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Done:
        """Runs a file as `python path arguments` does."""
        with tempfile.NamedTemporaryFile("r") as out, tempfile.NamedTemporaryFile("r") as err:
            asked = {
                "argv": [str(path), *arguments], "cwd": str(cwd or Path.cwd()), "env": dict(env or {}),
                "out": out.name, "err": err.name, "seconds": SECONDS,
            }  # fmt: skip
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            print(json.dumps(asked), file=self._process.stdin, flush=True)
            code = int(self._process.stdout.readline())
            return Done(code, out.read(), err.read())

    def close(self) -> None:
        self._process.communicate()
