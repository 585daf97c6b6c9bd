"""The multiplies of a kernel: one generated function per distinct shape, over the wgmma functions.

Ref: PTX ISA, Asynchronous Warpgroup Level Matrix Instructions, Strides.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.codegen.environment import render
from tiledsl.codegen.wgmma import WgmmaShape
from tiledsl.codegen.wgmma import render_wgmma
from tiledsl.dtypes import DType

__all__ = ["MmaFunction", "MmaFunctions", "Operand"]

ATOM_BYTES = 128
STEP_BYTES = 32
STEPS_PER_BOX = ATOM_BYTES // STEP_BYTES
MAX_RUN = 4
"""Most instructions of one statement; fewer statements take NVRTC's optimizer less time."""


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand of a multiply in shared memory, 128-byte swizzled, or in registers.

    is_K_major: K is contiguous. lines: rows of 128 bytes of one box: the MN extent of the whole
    slot when K-major, else its K extent. num_regs: elements that a thread holds of a register
    operand, 0 for shared memory.
    """

    dtype: DType
    is_K_major: bool
    lines: int
    num_regs: int = 0

    @property
    def box_bytes(self) -> int:
        return self.lines * ATOM_BYTES

    @property
    def descriptor(self) -> str:
        """Call that makes the descriptor, up to the address."""
        return (
            "smem_desc_k<128>({})"
            if self.is_K_major
            else f"smem_desc_mn<128>({{}}, {self.box_bytes})"
        )

    def step(self, num_steps: int) -> str:
        """Bytes from the first K step to step `k`, as an expression."""
        if not self.is_K_major:
            return f"k * {16 * ATOM_BYTES}"
        if num_steps <= STEPS_PER_BOX:
            return f"k * {STEP_BYTES}"
        return f"k / {STEPS_PER_BOX} * {self.box_bytes} + k % {STEPS_PER_BOX} * {STEP_BYTES}"

    @property
    def block_bytes(self) -> int:
        """Bytes from one block of 64 rows of M to the next."""
        return 64 * ATOM_BYTES if self.is_K_major else self.box_bytes

    def part_bytes(self, extent: int) -> int | None:
        """Bytes from one warpgroup's part of `extent` rows or columns to the next.

        None when it cannot be addressed.
        """
        if self.is_K_major:
            return extent * ATOM_BYTES
        return None if extent % 64 else extent // 64 * self.box_bytes


@dataclass(frozen=True, slots=True)
class MmaFunction:
    """acc[M, N] (+)= a[M, K] * b[K, N] by one warpgroup."""

    name: str
    M: int
    N: int
    K: int
    wgmma: WgmmaShape
    a: Operand
    b: Operand

    @property
    def comment(self) -> str:
        majors = ", ".join(
            f"{n} {x.dtype} {'K' if x.is_K_major else 'MN'}-major"
            for n, x in (("a", self.a), ("b", self.b))
        )
        return (
            f"acc[{self.M}, {self.N}] (+)= a[{self.M}, {self.K}] * b[{self.K}, {self.N}]: {majors}"
        )

    @property
    def num_steps(self) -> int:
        return self.K // self.wgmma.K

    @property
    def num_blocks(self) -> int:
        return self.M // 64

    @property
    def is_run(self) -> bool:
        """Whether the K steps are one statement: from shared memory, on one block of rows."""
        return 1 < self.num_steps <= MAX_RUN and self.num_blocks == 1 and not self.a.num_regs

    @property
    def instruction(self) -> WgmmaShape:
        """The wgmma function that it calls."""
        return self.wgmma.times(self.num_steps) if self.is_run else self.wgmma

    @property
    def num_acc(self) -> int:
        return self.num_blocks * self.wgmma.num_acc

    @property
    def a_parameter(self) -> str:
        """The left operand's parameter: an address or a register tile."""
        if self.a.num_regs:
            return f"Packed<{self.a.dtype.cuda}, {self.a.num_regs}>& a"
        return "u32 a"

    @property
    def descriptors(self) -> str:
        """Declarations of the descriptors of the operands in shared memory."""
        b = f"b_desc = {self.b.descriptor.format('b')}"
        return b if self.a.num_regs else f"a_desc = {self.a.descriptor.format('a')}, {b}"

    @property
    def a_argument(self) -> str:
        """The left operand of step `k` and block `m`."""
        if self.a.num_regs:
            return "a.quad(k)" if self.num_blocks == 1 else f"a.quad(m * {self.num_steps} + k)"
        return f"smem_desc_add(a_desc, {self.a_offset})"

    @property
    def a_offset(self) -> str:
        step = self.a.step(self.num_steps)
        return step if self.num_blocks == 1 else f"{step} + m * {self.a.block_bytes}"

    @property
    def b_offset(self) -> str:
        return self.b.step(self.num_steps)


class MmaFunctions:
    """Collects the multiplies in use, in order of first use."""

    def __init__(self) -> None:
        self._functions: dict[tuple[object, ...], MmaFunction] = {}

    def name(self, M: int, N: int, K: int, wgmma: WgmmaShape, a: Operand, b: Operand) -> str:
        """The function for a shape, made on first use."""
        key = (M, N, K, wgmma, a, b)
        if key not in self._functions:
            stem = f"mma_{M}x{N}x{K}_{a.dtype}"
            stem += "_rs" if a.num_regs else ("" if a.is_K_major else "_ta")
            stem += "" if b.is_K_major else "_tb"
            taken = sum(
                f.name == stem or f.name.startswith(f"{stem}_v") for f in self._functions.values()
            )
            name = stem if not taken else f"{stem}_v{taken + 1}"
            self._functions[key] = MmaFunction(name, M, N, K, wgmma, a, b)
        return self._functions[key].name

    def prelude(self) -> str:
        """Definitions of the instructions and of the multiplies; empty without any."""
        if not self._functions:
            return ""
        functions = list(self._functions.values())
        wgmma = render_wgmma(f.instruction for f in functions)
        return wgmma + "\n" + render("generated/mma.cuh.j2", functions=functions)
