"""Random control flow: the interpreter gives what Python gives for the same text."""

from __future__ import annotations

import linecache
import random
from types import SimpleNamespace

import numpy as np
import pytest

import tiledsl.language as tl

VARIABLES = "abcd"


class Writer:
    """Writes a function over four integers, kept in 0..255, with nested loops, branches and returns."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.loops = 0
        self.counter = 0

    def operand(self) -> str:
        return self.random.choice([*VARIABLES, *VARIABLES, str(self.random.randrange(9)), "N"])

    def condition(self) -> str:
        x, y, z = (self.operand() for _ in range(3))
        forms = [f"{x} < {y}", f"{x} <= {y} < {z}", f"{x} % 3 == {y} % 2", f"not {x} > {y}"]
        forms += [f"{x} != {y} and {y} < {z}", f"{x} > 9 or {y} == {z}", "N > 3", "N > 300"]
        return self.random.choice(forms)

    def value(self) -> str:
        x, y = self.operand(), self.operand()
        forms = [x, f"({x} + {y}) & 255", f"({x} - {y}) & 255", f"({x} * {y}) & 255"]
        forms += [
            f"min({x}, {y})",
            f"max({x}, {y})",
            f"({x} ^ {y})",
            f"({x} if {x} < {y} else {y})",
        ]
        forms += [f"({x} // ({y} + 1))", f"({x} >> 1)"]
        return self.random.choice(forms)

    def block(self, depth: int, indent: str, *, in_loop: bool) -> list[str]:
        out: list[str] = []
        for _ in range(self.random.randint(1, 3)):
            out += self.statement(depth, indent, in_loop=in_loop)
        return out

    def statement(self, depth: int, indent: str, *, in_loop: bool) -> list[str]:  # noqa: C901
        kinds = ["assign", "assign", "augmented", "swap"]
        if depth:
            kinds += ["if", "if", "for", "while", "static"]
        kinds += ["return"] * (not in_loop and self.random.random() < 0.5)
        kind = self.random.choice(kinds)
        inner = indent + "    "
        x, y = self.random.sample(VARIABLES, 2)
        if kind == "assign":
            return [f"{indent}{x} = {self.value()}"]
        if kind == "augmented":
            return [f"{indent}{x} += {self.operand()} & 15", f"{indent}{x} &= 255"]
        if kind == "swap":
            return [f"{indent}{x}, {y} = {y}, {self.value()}"]
        if kind == "return":
            return [
                f"{indent}if {self.condition()}:",
                f"{inner}out.store(0, {x})",
                f"{inner}return",
            ]
        if kind == "if":
            out = [
                f"{indent}if {self.condition()}:",
                *self.block(depth - 1, inner, in_loop=in_loop),
            ]
            if self.random.random() < 0.4:
                out += [
                    f"{indent}elif {self.condition()}:",
                    *self.block(depth - 1, inner, in_loop=in_loop),
                ]
            if self.random.random() < 0.5:
                out += [f"{indent}else:", *self.block(depth - 1, inner, in_loop=in_loop)]
            return out
        self.counter += 1
        name = f"i{self.counter}"
        body = self.block(depth - 1, inner, in_loop=True)
        if kind == "while":
            head = [
                f"{indent}{name} = {self.operand()} & 3",
                f"{indent}while {name} > 0 and ({self.condition()}):",
            ]
            return [*head, f"{inner}{name} -= 1", *body]
        use = f"{inner}{x} = ({x} + {name}) & 255"
        if kind == "static":
            return [
                f"{indent}for {name} in tl.static_range({self.random.randrange(3)}):",
                use,
                *body,
            ]
        bounds = self.random.choice([f"{y} & 3", f"1, {y} & 7, 3", f"{y} & 3, 0, -1", "2"])
        return [f"{indent}for {name} in range({bounds}):", use, *body]

    def text(self) -> str:
        body = self.block(3, "    ", in_loop=False) + self.block(3, "    ", in_loop=False)
        ends = [f"    out.store({i + 1}, {v})" for i, v in enumerate(VARIABLES)]
        starts = ["    c = 5", "    d = 0"]
        return (
            "\n".join(["def kernel(out: tl.Tensor, a, b, N: tl.constexpr):", *starts, *body, *ends])
            + "\n"
        )


class Out:
    """Stands for the output tensor when Python runs the text."""

    def __init__(self) -> None:
        self.values = [-1] * 5

    def store(self, index: int, value: int) -> None:
        self.values[index] = int(value)


@pytest.mark.parametrize("seed", range(120))
def test_random_program(run, seed: int) -> None:
    text = Writer(seed).text()
    file = f"random_{seed}.py"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    ours: dict[str, object] = {"tl": tl}
    exec(compile(text, file, "exec"), ours)
    theirs = {"tl": SimpleNamespace(static_range=range, constexpr=int)}
    exec(compile(text, file, "exec"), theirs)
    for a, b in ((0, 0), (7, 200), (4, 5)):
        want = Out()
        theirs["kernel"](want, a, b, 6)  # type: ignore[operator]
        out = np.full(5, -1, np.int64)
        run(ours["kernel"], out, a, b, N=6)
        assert out.tolist() == want.values, text
