"""Every example runs as a program and ends without an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scripts import Scripts

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.py"))


@pytest.mark.nvrtc
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_runs(scripts: Scripts, path: Path) -> None:
    done = scripts.run(path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "relative error" in done.stdout
