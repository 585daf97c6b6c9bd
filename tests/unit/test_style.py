"""House rules that no tool checks: lengths, places of PTX and of libraries, docstrings, macros."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "tiledsl"
TEMPLATES = ROOT / "templates"

MAX_MODULE_LINES = 600
MAX_MACRO_LINES = 12

MODULES = sorted(PACKAGE.rglob("*.py"))
TEXTS = sorted(p for p in TEMPLATES.rglob("*") if p.is_file())
JINJA = [p for p in TEXTS if p.suffix == ".j2"]

ASM = re.compile(r"\basm\s*(volatile\b\s*)?\(")
BLOCK = re.compile(r"\{%-?\+?\s*(\w+)(?:\s+(\w+))?")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def may_use(library: str, path: Path) -> bool:
    """Whether `path` is the one place where a library is allowed."""
    inside = path.relative_to(PACKAGE).as_posix()
    return {
        "networkx": inside == "ir/graph.py",
        "jinja2": inside == "codegen/environment.py",
        "torch": inside.startswith("runtime/"),
    }[library]


def top_level_imports(source: str) -> set[str]:
    """First names of all imported modules, wherever in the text."""
    out: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            out |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            out.add(node.module.split(".")[0])
    return out


def undocumented(source: str) -> list[str]:
    """The module and its public classes and functions, where they lack a docstring."""
    tree = ast.parse(source)
    missing = [] if ast.get_docstring(tree) else ["the module"]
    for node in tree.body:
        is_definition = isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if not is_definition or node.name.startswith("_"):
            continue
        is_overload = any("overload" in ast.unparse(d) for d in node.decorator_list)
        if not is_overload and not ast.get_docstring(node):
            missing.append(f"line {node.lineno}: {node.name}")
    return missing


def macro_faults(text: str) -> list[str]:
    """Macros that are longer, or nest {% if %} deeper, than the rule allows."""
    faults: list[str] = []
    macro, start, depth = "", 0, 0
    for number, line in enumerate(text.splitlines(), 1):
        for match in BLOCK.finditer(line):
            word, argument = match[1], match[2]
            if word == "macro":
                macro, start, depth = argument, number, 0
            elif word == "endmacro":
                if number - start - 1 > MAX_MACRO_LINES:
                    faults.append(f"line {start}: macro {macro} has {number - start - 1} lines")
                macro = ""
            elif word == "if" and macro:
                depth += 1
                if depth > 1:
                    faults.append(f"line {number}: macro {macro} nests {{% if %}}")
            elif word == "endif" and macro:
                depth -= 1
    return faults


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_module_length(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines < MAX_MODULE_LINES, f"{lines} lines: split the module"


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_docstrings(path: Path) -> None:
    assert undocumented(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_libraries_stay_in_their_place(path: Path) -> None:
    used = top_level_imports(path.read_text(encoding="utf-8"))
    misplaced = [
        library
        for library in ("networkx", "jinja2", "torch")
        if library in used and not may_use(library, path)
    ]
    assert misplaced == []


@pytest.mark.parametrize("path", [*MODULES, *TEXTS], ids=name)
def test_inline_ptx_stays_in_the_headers(path: Path) -> None:
    if path.is_relative_to(TEMPLATES / "include") or path.is_relative_to(TEMPLATES / "generated"):
        return
    assert not ASM.search(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", JINJA, ids=name)
def test_macros_are_thin(path: Path) -> None:
    assert macro_faults(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", TEXTS, ids=name)
def test_templates_use_the_projects_delimiters(path: Path) -> None:
    """Variables are written `${ x }`, so that C++ braces keep their meaning; no tabs."""
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"(?<!\{)\{\{ \w[\w.]* \}\}", text), "write ${ x }, not {{ x }}"
    assert "\t" not in text


def test_asm_is_found_in_all_its_spellings() -> None:
    for text in ('asm volatile("x");', 'asm("x");', "asm volatile (", 'foo(); asm  ("x")'):
        assert ASM.search(text)
    assert not ASM.search("no_asm(1); // asm is elsewhere")


def test_macro_faults_are_found() -> None:
    def long(lines: int) -> str:
        return "{% macro f(c) %}\n" + "x;\n" * lines + "{% endmacro %}\n"

    assert macro_faults(long(MAX_MACRO_LINES)) == []
    assert len(macro_faults(long(MAX_MACRO_LINES + 1))) == 1
    flat = "{% macro g(c) %}\n{% if c %}\n{% endif %}\n{% if c %}\n{% endif %}\n{% endmacro %}\n"
    assert macro_faults(flat) == []
    nested = "{% macro g(c) %}\n{%- if c %}\n{% if c %}\n{% endif %}\n{% endif %}\n{% endmacro %}\n"
    assert len(macro_faults(nested)) == 1


def test_missing_docstrings_are_found() -> None:
    assert undocumented("def f(): pass\ndef _g(): pass\nclass C: pass") == [
        "the module",
        "line 1: f",
        "line 3: C",
    ]
