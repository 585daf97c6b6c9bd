"""Scripts are processes of their own: their output, arguments, folder and environment, and how they end."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.scripts import Scripts


def run(scripts: Scripts, folder: Path, text: str, *arguments: str, **env: str):
    path = folder / "script.py"
    path.write_text(text)
    return scripts.run(path, *arguments, cwd=folder, env=env)


def test_a_script_is_main_in_its_folder(scripts: Scripts, tmp_path: Path) -> None:
    text = "import os, sys\nprint(__name__, sys.argv[1:], os.getcwd(), os.environ['A_WORD'])\nprint(2, file=sys.stderr)"
    done = run(scripts, tmp_path, text, "x", A_WORD="word")
    assert (done.returncode, done.stderr) == (0, "2\n")
    assert done.stdout == f"__main__ ['x'] {tmp_path} word\n"


def test_nothing_of_a_script_stays(scripts: Scripts, tmp_path: Path) -> None:
    text = "import sys, os\nprint('left' in sys.modules, 'LEFT' in os.environ)\nsys.modules['left'] = os.environ['LEFT'] = '1'"
    for _ in range(2):
        assert run(scripts, tmp_path, text).stdout == "False False\n"


def test_ends(scripts: Scripts, tmp_path: Path) -> None:
    failed = run(scripts, tmp_path, "1 / 0")
    assert failed.returncode == 1
    assert "line 1" in failed.stderr
    assert "ZeroDivisionError" in failed.stderr
    assert run(scripts, tmp_path, "raise SystemExit(3)").returncode == 3
    killed = run(scripts, tmp_path, "import os\nos.kill(os.getpid(), 9)")
    assert killed.returncode == -signal.SIGKILL
    assert run(scripts, tmp_path, "print(1)").stdout == "1\n"
