"""The python blocks of README.md and docs/ run, page by page, on the CPU.

A page becomes one script in which its blocks keep their line numbers, so that tracebacks and
compile errors point into the page. Blocks of a page share their names, as a reader expects.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
import torch

from examples.attention import attention_kernel
from examples.attention import tiles
from tests.scripts import Scripts
from tiledsl.compiler import modules

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^\s*```(.*)$")
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)
CITED = re.compile(r"`([\w/]+/[\w.]+)`:\n\n```\w+\n(.*?)```", re.DOTALL)
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")


def script_of(page: str) -> str:
    """The text with everything outside ```python blocks blanked; empty when there is no block."""
    out: list[str] = []
    fence: str | None = None
    for line in page.splitlines():
        match = FENCE.match(line)
        if match:
            fence = match[1].strip() if fence is None else None
        keep = fence == "python" and not match
        out.append(line if keep else "")
    return "\n".join(out) + "\n" if any(out) else ""


def has_public_api() -> bool:
    try:
        package = importlib.import_module("tiledsl")
        importlib.import_module("tiledsl.language")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("tiledsl"):
            return False
        raise
    return hasattr(package, "jit")


SCRIPTS = {
    str(page.relative_to(ROOT)): script
    for page in PAGES
    if (script := script_of(page.read_text(encoding="utf-8")))
}


@pytest.mark.parametrize("page", SCRIPTS)
def test_blocks_run(scripts: Scripts, page: str, tmp_path: Path) -> None:
    if "tiledsl.jit" in SCRIPTS[page] and not has_public_api():
        pytest.skip("tiledsl.jit is not importable yet")
    script = tmp_path / f"{Path(page).stem}.py"
    script.write_text(SCRIPTS[page], encoding="utf-8")
    result = scripts.run(script, cwd=tmp_path)
    assert result.returncode == 0, f"{page} fails:\n{result.stdout}{result.stderr}"


def test_readme_has_a_kernel() -> None:
    assert "@tiledsl.jit" in SCRIPTS["README.md"]


@pytest.mark.parametrize(
    "page",
    [*PAGES, ROOT / "CONTRIBUTING.md"],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_links_lead_somewhere(page: Path) -> None:
    targets = LINK.findall(CODE.sub("", page.read_text(encoding="utf-8")))
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert missing == []


def test_the_walk_through_is_the_code() -> None:
    blocks = CITED.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    assert len(blocks) >= 8
    for path, block in blocks:
        assert block.strip() in (ROOT / path).read_text(encoding="utf-8"), path


def test_the_schedule_shown_is_the_one_that_is_made() -> None:
    """The sample of scheduling.md is the text that the compiler writes of full attention."""
    page = (ROOT / "docs" / "scheduling.md").read_text(encoding="utf-8")
    shown = page[page.index("```text\nschedule of the loop at") + len("```text\n") :]
    q = torch.empty(4, 16, 4096, 128, device="meta", dtype=torch.bfloat16)
    lse = torch.empty(4, 16, 4096, device="meta")
    args = (q, q, q, torch.empty_like(q), lse, q, 0, 128**-0.5, False, 0, None, 1)
    options = {**tiles(4096, 128, 128), "fast_math": True}
    _, request = attention_kernel.request_for(args, options, (32, 16, 4))
    notes = next(modules(request)).notes
    first = next(i for i, n in enumerate(notes) if n.startswith("schedule of the loop at"))
    lines = shown[: shown.index("\n```")].splitlines()
    assert lines == [n.rstrip() for n in notes[first : first + len(lines)]]


def test_blocks_keep_their_lines() -> None:
    page = "# title\n```python\nx = 1\n```\ntext\n```bash\nls\n```\n```python\nassert x == 1\n```\n"
    lines = script_of(page).splitlines()
    assert (lines[2], lines[9]) == ("x = 1", "assert x == 1")
    assert sum(map(bool, lines)) == 2


def test_the_language_reference_is_current(scripts: Scripts) -> None:
    """`python scripts/language_reference.py` writes the page."""
    result = scripts.run(ROOT / "scripts" / "language_reference.py", "--check")
    assert result.returncode == 0, "docs/language.md is old: run scripts/language_reference.py"
