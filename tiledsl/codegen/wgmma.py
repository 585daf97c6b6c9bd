"""The WGMMA instruction forms: which are legal, what they are called, and their operand text.

One `WgmmaShape` is one C++ function of the kernel's prelude; `generated/wgmma.cuh.j2` prints it.
Ref: PTX ISA, Asynchronous Warpgroup Level Matrix Instructions, wgmma.mma_async.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from dataclasses import replace
from typing import Final

from tiledsl.codegen.environment import render
from tiledsl.dtypes import DType
from tiledsl.errors import CodegenError

__all__ = ["WgmmaShape", "render_wgmma", "wgmma_name", "wgmma_shape"]

_OPERAND_PTX: Final = {
    "bf16": "bf16",
    "f16": "f16",
    "f32": "tf32",
    "e4m3": "e4m3",
    "e5m2": "e5m2",
    "i8": "s8",
    "u8": "u8",
}
_OPERAND_BITS: Final = {
    "bf16": 16,
    "f16": 16,
    "tf32": 32,
    "e4m3": 8,
    "e5m2": 8,
    "s8": 8,
    "u8": 8,
}
_ACC_PTX: Final = {"f32": "f32", "f16": "f16", "i32": "s32"}
_ACC_TYPE: Final = {"f32": "float", "f16": "u32", "s32": "i32"}
_FP8: Final = ("e4m3", "e5m2")
_INT8: Final = ("s8", "u8")
_A_REGISTERS: Final = 4
_STEP_BYTES: Final = 32
_REGISTERS_PER_LINE: Final = 16
_OUTPUTS_PER_LINE: Final = 6


@dataclass(frozen=True, slots=True)
class WgmmaShape:
    """One instruction form, D[64, N] (+)= A[64, K] B[K, N].

    acc_ptx, a_ptx, b_ptx: the PTX types. trans_a, trans_b: 1 when the operand is MN-major.
    steps: instructions on the same D, one after the other; A and B are then arrays of descriptors.
    """

    name: str
    N: int
    K: int
    acc_ptx: str
    a_ptx: str
    b_ptx: str
    a_in_regs: bool
    trans_a: int
    trans_b: int
    steps: int = 1

    def times(self, steps: int) -> WgmmaShape:
        """Several instructions as one function: one statement for NVRTC's optimizer."""
        return replace(self, steps=steps, name=f"{self.name}_x{steps}")

    @property
    def num_acc(self) -> int:
        """Accumulator registers a thread: N / 2, or N / 4 for f16, which holds pairs."""
        return self.N // 4 if self.acc_ptx == "f16" else self.N // 2

    @property
    def acc_type(self) -> str:
        """C++ element of the accumulator array."""
        return _ACC_TYPE[self.acc_ptx]

    @property
    def has_trans(self) -> bool:
        """Only 16-bit operands can be MN-major."""
        return _OPERAND_BITS[self.a_ptx] == 16

    @property
    def has_scale(self) -> bool:
        """Only floating-point forms take the negation immediates."""
        return self.a_ptx not in _INT8

    @property
    def comment(self) -> str:
        """What it does, in terms of shapes and where the operands lie."""
        a = "registers" if self.a_in_regs else _place("M", self.trans_a)
        b = _place("N", self.trans_b)
        K = self.K if self.steps == 1 else f"{self.steps}*{self.K}"
        return (
            f"D[64,{self.N}] {self.acc_ptx} (+)= A[64,{K}] {self.a_ptx} ({a})"
            f" * B[{K},{self.N}] {self.b_ptx} ({b})"
        )

    @property
    def a_param(self) -> str:
        """C++ parameter of the A operand."""
        return f"const u32 (&a)[{_A_REGISTERS}]" if self.a_in_regs else self._descriptors("a")

    @property
    def b_param(self) -> str:
        """C++ parameter of the B operand."""
        return self._descriptors("b")

    def _descriptors(self, name: str) -> str:
        return f"u64 {name}" if self.steps == 1 else f"const u64 (&{name})[{self.steps}]"

    @property
    def instruction(self) -> str:
        """PTX mnemonic with its shape and types."""
        return (
            f"wgmma.mma_async.sync.aligned.m64n{self.N}k{self.K}"
            f".{self.acc_ptx}.{self.a_ptx}.{self.b_ptx}"
        )

    @property
    def predicates(self) -> tuple[tuple[str, str], ...]:
        """Predicates and the asm operands they are true for: of the first step, of the others."""
        first = self.num_acc + (self._num_a + 1) * self.steps
        return tuple((name, f"%{first + i}") for i, name in enumerate("pq"[: min(2, self.steps)]))

    @property
    def register_lines(self) -> tuple[str, ...]:
        """The D operand `{%0, ...}`, in pieces of one source line."""
        names = [f"%{i}" for i in range(self.num_acc)]
        lines = _wrap(names, _REGISTERS_PER_LINE)
        lines[0] = "{" + lines[0]
        lines[-1] += "}, "
        return tuple(lines)

    @property
    def operand_tails(self) -> tuple[str, ...]:
        """The operands after D, by step: A, B, the predicate and the immediates."""
        return tuple(self._tail(step) for step in range(self.steps))

    def _tail(self, step: int) -> str:
        first = self.num_acc + (self._num_a + 1) * step
        a = ", ".join(f"%{first + i}" for i in range(self._num_a))
        tail = [
            f"{{{a}}}" if self.a_in_regs else a,
            f"%{first + self._num_a}",
            "q" if step else "p",
        ]
        if self.has_scale:
            tail += ["1", "1"]
        if self.has_trans:
            tail += [] if self.a_in_regs else [str(self.trans_a)]
            tail.append(str(self.trans_b))
        return ", ".join(tail)

    @property
    def output_lines(self) -> tuple[str, ...]:
        """Asm constraints of D, in pieces of one source line."""
        letter = "f" if self.acc_type == "float" else "r"
        names = [f'"+{letter}"(d[{i}])' for i in range(self.num_acc)]
        return tuple(line.rstrip() for line in _wrap(names, _OUTPUTS_PER_LINE))

    @property
    def inputs(self) -> str:
        """Asm constraints of A and B of every step, and of the accumulate flags."""
        if self.steps > 1:
            both = [f'"l"(a[{i}]), "l"(b[{i}])' for i in range(self.steps)]
            return ", ".join([*both, '"r"(accumulate)', '"r"(1)'])
        a = [f'"r"(a[{i}])' for i in range(_A_REGISTERS)] if self.a_in_regs else ['"l"(a)']
        return ", ".join([*a, '"l"(b)', '"r"(accumulate)'])

    @property
    def _num_a(self) -> int:
        return _A_REGISTERS if self.a_in_regs else 1


def wgmma_name(
    acc: DType, a: DType, b: DType, N: int, *, a_in_regs: bool, trans_a: bool, trans_b: bool
) -> str:
    """The C++ name, such as `wgmma_m64n256k16_f32_bf16_bf16_ss_tb`.

    `ss` has A in shared memory and `rs` in registers; `ta` and `tb` mark MN-major operands.

    Raises:
        CodegenError: the instruction does not exist.
    """
    shape = wgmma_shape(acc, a, b, N, a_in_regs=a_in_regs, trans_a=trans_a, trans_b=trans_b)
    return shape.name


def wgmma_shape(
    acc: DType, a: DType, b: DType, N: int, *, a_in_regs: bool, trans_a: bool, trans_b: bool
) -> WgmmaShape:
    """The instruction form for these element types; f32 operands are read as tf32.

    Raises:
        CodegenError: the instruction does not exist.
    """
    acc_ptx, a_ptx, b_ptx = _ptx_types(acc, a, b)
    _check_types(acc_ptx, a_ptx, b_ptx)
    _check_N(N, a_ptx)
    _check_major(a_ptx, a_in_regs=a_in_regs, trans_a=trans_a, trans_b=trans_b)
    K = _STEP_BYTES * 8 // _OPERAND_BITS[a_ptx]
    suffix = ("_rs" if a_in_regs else "_ss") + "_ta" * trans_a + "_tb" * trans_b
    name = f"wgmma_m64n{N}k{K}_{acc_ptx}_{a_ptx}_{b_ptx}{suffix}"
    return WgmmaShape(
        name, N, K, acc_ptx, a_ptx, b_ptx, a_in_regs, trans_a=int(trans_a), trans_b=int(trans_b)
    )


def render_wgmma(shapes: Iterable[WgmmaShape]) -> str:
    """The prelude text of these shapes, each once, sorted by name; empty without shapes."""
    unique = sorted(set(shapes), key=lambda s: s.name)
    return render("generated/wgmma.cuh.j2", shapes=unique) if unique else ""


def _ptx_types(acc: DType, a: DType, b: DType) -> tuple[str, str, str]:
    for operand in (a, b):
        if operand.name not in _OPERAND_PTX:
            raise CodegenError(f"wgmma has no {operand} operand")
    if acc.name not in _ACC_PTX:
        raise CodegenError(f"wgmma has no {acc} accumulator", hint="use f32, f16 or i32")
    return _ACC_PTX[acc.name], _OPERAND_PTX[a.name], _OPERAND_PTX[b.name]


def _check_types(acc: str, a: str, b: str) -> None:
    mixable = any(a in family and b in family for family in (_FP8, _INT8))
    if a != b and not mixable:
        raise CodegenError(f"wgmma cannot multiply {a} by {b}", hint="convert one operand first")
    if a in _INT8:
        legal = ("s32",)
    elif a == "f16" or a in _FP8:
        legal = ("f32", "f16")
    else:
        legal = ("f32",)
    if acc not in legal:
        raise CodegenError(f"wgmma of {a} accumulates in {' or '.join(legal)}, not {acc}")


def _check_N(N: int, a: str) -> None:
    if not 8 <= N <= 256 or N % 8:
        raise CodegenError(f"wgmma needs N a multiple of 8 from 8 to 256, not {N}")
    if a in _INT8 and N > 32 and N % 16:
        raise CodegenError(f"wgmma of {a} needs N a multiple of 16 above 32, not {N}")


def _check_major(a: str, *, a_in_regs: bool, trans_a: bool, trans_b: bool) -> None:
    if (trans_a or trans_b) and _OPERAND_BITS[a] != 16:
        raise CodegenError(f"wgmma reads {a} operands K-major only")
    if trans_a and a_in_regs:
        raise CodegenError("wgmma reads A in registers K-major only")


def _place(extent: str, trans: int) -> str:
    return f"smem, {extent}-major" if trans else "smem, K-major"


def _wrap(items: list[str], per_line: int) -> list[str]:
    """Joins with commas, `per_line` items a line; every line but the last ends with a comma."""
    rows = [", ".join(items[i : i + per_line]) for i in range(0, len(items), per_line)]
    return [row + ", " for row in rows[:-1]] + rows[-1:]
