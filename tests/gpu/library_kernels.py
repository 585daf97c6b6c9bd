"""Kernels that call one library function each, and inputs from the functions' domains."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import tiledsl
import tiledsl.language as tl
from tiledsl.dtypes import DType
from tiledsl.ir.library import LIBRARY
from tiledsl.language.extra import libdevice

NAMES = sorted(n for n in LIBRARY if hasattr(libdevice, n))
TORCH = {
    "f32": torch.float32, "f64": torch.float64, "i32": torch.int32, "i64": torch.int64, "u32": torch.int32,
    "u64": torch.int64,
}  # fmt: skip
COUNT = 256
# Names whose argument lies in (-1, 1), in (0, 1), above 1, or is positive; others take any number.
DOMAIN = {
    **dict.fromkeys(("asin", "acos", "atanh", "erfinv"), (-0.99, 0.99)),
    **dict.fromkeys(("normcdfinv",), (0.01, 0.99)),
    **dict.fromkeys(("erfcinv",), (0.05, 1.9)),
    **dict.fromkeys(("acosh",), (1.01, 30.0)),
    **dict.fromkeys(
        ("log", "log2", "log10", "sqrt", "rsqrt", "fast_logf", "fast_log2f", "fast_log10f", "pow", "fast_powf",
         "y0", "y1", "yn", "tgamma", "lgamma", "sqrt_rn", "sqrt_rz", "sqrt_rd", "sqrt_ru", "rsqrt_rn", "log1p"),
        (0.05, 20.0),
    ),
    **dict.fromkeys(("exp10", "fast_exp10f", "sinh", "cosh", "cyl_bessel_i0", "cyl_bessel_i1", "exp", "expm1", "fast_expf", "erfcx", "exp2"), (-4.0, 4.0)),
    **dict.fromkeys(("tan", "fast_tanf"), (-1.2, 1.2)),
    **dict.fromkeys(("fast_sinf", "fast_cosf"), (-3.0, 3.0)),
}  # fmt: skip
# Relative errors of the device functions that are more than a few units in the last place.
TOLERANCE = {
    **dict.fromkeys(("fast_sinf", "fast_cosf", "fast_tanf", "fast_tanhf"), 2e-3),
    **dict.fromkeys(("fast_expf", "fast_exp10f", "fast_logf", "fast_log2f", "fast_log10f", "fast_powf"), 1e-4),
    **dict.fromkeys(("j0", "j1", "y0", "y1", "jn", "yn", "tgamma", "lgamma", "erfinv", "erfcinv", "normcdfinv"), 2e-4),
    **dict.fromkeys(("erfcx", "normcdf", "rhypot", "rcbrt"), 1e-5),
}  # fmt: skip


@tiledsl.jit
def unary(x: tl.Tensor, o: tl.Tensor, FS: tl.constexpr, KINDS: tl.constexpr, N: tl.constexpr):
    for n in tl.static_range(len(FS)):
        o.store((n, 0), FS[n](x.load((n, 0), (1, N)).to(KINDS[0], bitcast=True)).to(tl.float64))


@tiledsl.jit
def binary(
    x: tl.Tensor, y: tl.Tensor, o: tl.Tensor, FS: tl.constexpr, KINDS: tl.constexpr, N: tl.constexpr
):
    for n in tl.static_range(len(FS)):
        a = x.load((n, 0), (1, N)).to(KINDS[0], bitcast=True)
        b = y.load((n, 0), (1, N)).to(KINDS[1], bitcast=True)
        o.store((n, 0), FS[n](a, b).to(tl.float64))


@tiledsl.jit
def ternary(
    x: tl.Tensor,
    y: tl.Tensor,
    z: tl.Tensor,
    o: tl.Tensor,
    FS: tl.constexpr,
    KINDS: tl.constexpr,
    N: tl.constexpr,
):
    for n in tl.static_range(len(FS)):
        a = x.load((n, 0), (1, N)).to(KINDS[0], bitcast=True)
        b = y.load((n, 0), (1, N)).to(KINDS[1], bitcast=True)
        c = z.load((n, 0), (1, N)).to(KINDS[2], bitcast=True)
        o.store((n, 0), FS[n](a, b, c).to(tl.float64))


@tiledsl.jit
def quaternary(
    x: tl.Tensor,
    y: tl.Tensor,
    z: tl.Tensor,
    w: tl.Tensor,
    o: tl.Tensor,
    FS: tl.constexpr,
    KINDS: tl.constexpr,
    N: tl.constexpr,
):
    for n in tl.static_range(len(FS)):
        a, b = x.load((n, 0), (1, N)), y.load((n, 0), (1, N))
        c, d = z.load((n, 0), (1, N)), w.load((n, 0), (1, N))
        o.store((n, 0), FS[n](a, b, c, d).to(tl.float64))


KERNELS = {1: unary, 2: binary, 3: ternary, 4: quaternary}


@tiledsl.jit
def assembly(x: tl.Tensor, w: tl.Tensor, o: tl.Tensor, p: tl.Tensor):
    t = x.load(0, 1024)
    o.store(
        0, tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [t], tl.float32, True, 1)
    )
    bits = w.load(0, 1024)
    text = """{
        .reg .b32 m;
        mov.b32 m, 0x55555555;
        xor.b32 $0, $1, m;
    }"""
    p.store(0, tl.inline_asm_elementwise(text, "=r,r", [bits], tl.uint8, True, 4))


def inputs(name: str, dtype: DType, index: int) -> torch.Tensor:
    """Numbers from the domain of an argument."""
    rng = np.random.default_rng(len(name) + 17 * index)
    if dtype.is_int:
        small = name in ("ldexp", "scalbn", "pow", "jn", "yn")
        low, high = (0, 5) if small else (0 if dtype.kind == "uint" else -(2**31), 2**31 - 1)
        raw = rng.integers(low, high, COUNT)
        if dtype.bits == 64 and not small:
            raw = raw << rng.integers(0, 20, COUNT)
        return torch.tensor(raw, dtype=TORCH[dtype.name])
    low, high = DOMAIN.get(name, (-20.0, 20.0))
    x = rng.uniform(low, high, COUNT)
    return torch.tensor(x, dtype=TORCH[dtype.name])


@dataclass(frozen=True)
class Group:
    """Functions that share the dtypes of their arguments, called by one kernel."""

    kinds: tuple[DType, ...]
    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"{'_'.join(map(str, self.kinds))}-{self.names[0]}"

    def args(self, device: str = "cpu") -> list[torch.Tensor]:
        """Inputs, a row a function, and the output."""
        rows = [
            torch.stack([inputs(name, d, i) for name in self.names]).to(device)
            for i, d in enumerate(self.kinds)
        ]
        shape = (len(self.names), COUNT)
        return [*rows, torch.zeros(shape, dtype=torch.float64, device=device)]

    def constants(self) -> dict[str, Any]:
        functions = tuple(getattr(libdevice, name) for name in self.names)
        return {"FS": functions, "KINDS": self.kinds, "N": COUNT}

    def run(self, device: str) -> torch.Tensor:
        args = self.args(device)
        KERNELS[len(self.kinds)][1](*args, **self.constants())
        return args[-1].cpu()


def groups(size: int = 12) -> list[Group]:
    """Every overload of every function."""
    by_kinds: dict[tuple[DType, ...], list[str]] = {}
    for name in NAMES:
        for signature in LIBRARY[name].signatures:
            by_kinds.setdefault(signature.args, []).append(name)
    return [
        Group(kinds, tuple(names[i : i + size]))
        for kinds, names in by_kinds.items()
        for i in range(0, len(names), size)
    ]


def check(group: Group) -> None:
    """The functions on the GPU against the interpreter."""
    got, want = group.run("cuda"), group.run("cpu")
    tight = 1e-12 if all(d.name == "f64" for d in group.kinds) else 4e-6
    for name, a, b in zip(group.names, got, want, strict=True):
        tol = max(TOLERANCE.get(name, 0.0), tight)
        message = functools.partial("{}{}: {}".format, name, group.kinds)
        torch.testing.assert_close(a, b, rtol=tol, atol=tol, equal_nan=True, msg=message)
