"""`TensorDescriptor`: a tensor with the block shape in which a kernel reads and writes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from typing import cast

import torch

from tiledsl.errors import LaunchError

PADDINGS = ("zero", "nan")


class TensorDescriptor:
    """A tensor argument with a block shape: in the kernel `desc.load(offsets)` gives a block.

    shape, strides: in elements.  block_shape: extents of a block.  padding: what loads give outside
    of the tensor, "zero" or "nan".  Any strides and alignment will do.

    Raises:
        LaunchError: ranks that differ, extents below 1, or an unknown padding.
    """

    def __init__(
        self,
        base: torch.Tensor,
        shape: Sequence[int],
        strides: Sequence[int],
        block_shape: Sequence[int],
        padding: str = "zero",
        round_f32_to_tf32: bool = False,
    ) -> None:
        del round_f32_to_tf32
        self.base = base
        self.shape = tuple(int(n) for n in shape)
        self.strides = tuple(int(n) for n in strides)
        self.block_shape: Sequence[int] = tuple(int(n) for n in block_shape)
        self.padding = padding
        ranks = {len(self.shape), len(self.strides), len(self.block_shape)}
        if len(ranks) != 1:
            raise LaunchError(
                f"TensorDescriptor: shape {self.shape}, strides {self.strides} and block_shape "
                f"{self.block_shape} must have the same rank"
            )
        if padding not in PADDINGS:
            raise LaunchError(f"TensorDescriptor: padding {padding!r} is none of zero, nan")
        _ = self.block

    @staticmethod
    def from_tensor(
        tensor: torch.Tensor,
        block_shape: Sequence[int],
        padding: str = "zero",
        round_f32_to_tf32: bool = False,
    ) -> TensorDescriptor:
        """The descriptor of a whole tensor."""
        del round_f32_to_tf32
        return TensorDescriptor(tensor, tensor.shape, tensor.stride(), block_shape, padding)

    @property
    def block(self) -> tuple[Any, ...]:
        """Block shape and padding: what the compiled code depends on.

        Raises:
            LaunchError: an extent of the block is no positive int.
        """
        extents = cast("tuple[object, ...]", tuple(self.block_shape))
        if not all(isinstance(n, int) and n > 0 for n in extents):
            raise LaunchError(f"TensorDescriptor: block_shape {extents} must be positive ints")
        return (*extents, self.padding)

    @property
    def dtype(self) -> torch.dtype:
        """Of the elements."""
        return self.base.dtype

    @property
    def device(self) -> torch.device:
        """Where the tensor lives."""
        return self.base.device

    @property
    def is_meta(self) -> bool:
        """Whether the tensor has no data."""
        return self.base.is_meta

    def data_ptr(self) -> int:
        """Address of the first element. Raises RuntimeError where it holds another number."""
        if self.base.is_neg():
            raise RuntimeError("a lazy negation has no memory of its own")
        return 0 if self.base.is_meta else self.base.data_ptr()

    def get_device(self) -> int:
        """Index of the CUDA device, -1 for others."""
        return self.base.get_device()

    def stride(self) -> tuple[int, ...]:
        """Strides in elements."""
        return self.strides

    def tensor(self) -> Any:
        """The described memory as a tensor."""
        return self.base.as_strided(self.shape, self.strides)
