"""The list of kernels: a launch, and what torch makes of its arguments."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from typing import Any

import torch

from tiledsl.tools.tensor_descriptor import TensorDescriptor

GridLike = tuple[int, ...] | Callable[[Mapping[str, Any]], tuple[int, ...]]


@dataclass(frozen=True)
class Case:
    """A launch. make: arguments on the CPU, in order; want: expected outputs by position.

    keywords: constants and launch options. tolerance: 0.0 for equality.
    """

    name: str
    kernel: Any
    grid: GridLike
    make: Callable[[], list[Any]]
    want: Callable[..., dict[int, torch.Tensor]]
    keywords: dict[str, Any] = field(default_factory=dict)
    tolerance: float = 0.0

    def __str__(self) -> str:
        return self.name


def seeded(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Reproducible values."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    if dtype.is_floating_point:
        return torch.randn(*shape, generator=generator).to(dtype)
    return torch.randint(-50, 50, shape, generator=generator).to(dtype)


def moved(args: list[Any], device: str) -> list[Any]:
    """Arguments on a device; strides and offsets stay."""
    seen: dict[int, torch.Tensor] = {}

    def move(x: Any) -> Any:
        if isinstance(x, TensorDescriptor):
            return TensorDescriptor(move(x.base), x.shape, x.strides, x.block_shape)
        if not isinstance(x, torch.Tensor):
            return x
        if id(x) not in seen:
            storage = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage()).to(device)
            seen[id(x)] = storage.as_strided(x.shape, x.stride(), x.storage_offset())
        return seen[id(x)]

    return [move(x) for x in args]


def copied(args: list[Any]) -> list[Any]:
    """Tensors as they are before a launch."""
    return [x.clone() if isinstance(x, torch.Tensor) else x for x in args]


def launch(case: Case, args: list[Any]) -> None:
    """Launches on the device of the arguments."""
    case.kernel[case.grid](*args, **case.keywords)


def check(case: Case, args: list[Any], want: dict[int, torch.Tensor]) -> None:
    """Compares outputs with what they should be."""
    for index, expected in want.items():
        given = args[index].base if isinstance(args[index], TensorDescriptor) else args[index]
        got = given.cpu()
        assert got.dtype == expected.dtype, f"{case}: argument {index} is {got.dtype}"
        if case.tolerance:
            torch.testing.assert_close(
                got.float(), expected.float(), rtol=case.tolerance, atol=case.tolerance
            )
        else:
            wrong = (got.double() != expected.double()).nonzero()
            assert not len(wrong), f"{case}: argument {index} differs at {wrong[:4].tolist()}"
