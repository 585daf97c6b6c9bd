"""The `golden` fixture: equal, different, missing, update, and the refusal under CI."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def test_equal_text_passes(golden: Any, tmp_path: Path) -> None:
    file = tmp_path / "case.txt"
    file.write_text("one\ntwo\n")
    golden("one\ntwo\n", file)


def test_difference_is_shown_as_a_unified_diff(golden: Any, tmp_path: Path) -> None:
    golden.update = False
    file = tmp_path / "case.txt"
    file.write_text("one\ntwo\n")
    with pytest.raises(pytest.fail.Exception) as failure:
        golden("one\n2\n", file)
    assert "-two\n+2" in str(failure.value)
    assert "--update-golden" in str(failure.value)
    assert file.read_text() == "one\ntwo\n"


def test_missing_final_newline_is_a_difference(golden: Any, tmp_path: Path) -> None:
    golden.update = False
    file = tmp_path / "case.txt"
    file.write_text("one\n")
    with pytest.raises(pytest.fail.Exception, match="line ends"):
        golden("one", file)


def test_missing_file_fails_and_shows_the_text(golden: Any, tmp_path: Path) -> None:
    golden.update = False
    with pytest.raises(pytest.fail.Exception, match="does not exist"):
        golden("text", tmp_path / "none.txt")


def test_update_writes_the_file(golden: Any, tmp_path: Path) -> None:
    golden.update = True
    file = tmp_path / "new" / "case.txt"
    golden("text\n", file)
    assert file.read_text() == "text\n"


def test_update_is_refused_under_ci() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "--update-golden", "--collect-only", "-q", __file__],
        cwd=ROOT,
        env={**os.environ, "CI": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == pytest.ExitCode.USAGE_ERROR
    assert "refused under CI" in result.stderr
