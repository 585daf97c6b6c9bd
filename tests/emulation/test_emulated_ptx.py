"""Inline PTX: taken apart and translated, with every form of the device headers covered."""

from __future__ import annotations

import pytest

from tests.emulation.harness import kernel
from tiledsl import emulate
from tiledsl.codegen.environment import headers
from tiledsl.emulate.asm import AsmOperand
from tiledsl.emulate.asm import instructions
from tiledsl.emulate.asm import statements
from tiledsl.emulate.ptx import translate

ASM = "asm"


def test_a_statement_is_taken_apart() -> None:
    text = (
        ASM + ' volatile("mov.b32 %0, %1;\\n"\n  "add.u32 %0, %0, %2; // no"\n'
        '  : "=r"(x[f(1, 2)]) : "r"((u32)a::b(y)), "n"(N) : "memory");'
    )
    (found,) = statements(text)
    assert found.ptx == "mov.b32 %0, %1;\nadd.u32 %0, %0, %2; // no"
    assert found.operands == (
        AsmOperand("r", "x[f(1, 2)]", is_output=True),
        AsmOperand("r", "(u32)a::b(y)", is_output=False),
        AsmOperand("n", "N", is_output=False),
    )
    assert text[found.end] == ";"


def test_comments_hold_no_statements() -> None:
    text = f'// {ASM}("a;");\n/* {ASM}("b;"); */ const char* s = "// no comment";'
    assert list(statements(text)) == []


def test_instructions_keep_lists_and_predicates() -> None:
    ptx = "{\n.reg .pred p;\nsetp.ne.b32 p, %3, 0;\n@p ld.x {%0, %1}, [%2, {%4, %5}];\n}"
    found = [(i.opcode, i.operands, i.predicate) for i in instructions(ptx)]
    assert found == [
        (".reg", (".pred p",), ""),
        ("setp.ne.b32", ("p", "%3", "0"), ""),
        ("ld.x", ("{%0, %1}", "[%2, {%4, %5}]"), "p"),
    ]


@pytest.mark.parametrize(("name", "text"), headers(), ids=[name for name, _ in headers()])
def test_every_instruction_of_the_headers_is_emulated(name: str, text: str) -> None:
    made = translate(text)
    assert ASM + "(" not in made
    assert made.count("\n") == text.count("\n"), "lines keep their numbers"


def test_an_unknown_instruction_is_named() -> None:
    with pytest.raises(emulate.NotEmulated, match=r"bfind\.u32"):
        translate(ASM + '("bfind.u32 %0, %1;" : "=r"(a) : "r"(b));')


def test_the_compilers_errors_are_shown() -> None:
    module = kernel("no_such_function();", ())
    with pytest.raises(emulate.NotEmulated, match="no_such_function"):
        emulate.run(module, {}, (1,))
