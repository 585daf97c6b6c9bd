"""One call that tells whether tensors are like others: torch's own guards, where it has them."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import torch

Check = Callable[..., bool]


def alike_check(tensors: Sequence[Any], exact: Sequence[bool]) -> Check | None:
    """`check(*others)`: whether each has the class, dtype, device and rank of its tensor.

    False says nothing: it also depends on autograd, on torch's modes, and on whether a tensor is
    given twice. Raises TypeError or RuntimeError for what is no tensor. None where torch has no
    such check.

    Args:
        tensors: of class `torch.Tensor` or below.
        exact: by tensor, whether extents and strides have to be equal as well.
    """
    guards = _guards()
    return None if guards is None or not tensors else _made(guards, tensors, exact)


def _made(guards: Any, tensors: Sequence[Any], exact: Sequence[bool]) -> Check:
    sizes = [list(t.shape) if e else [None] * t.dim() for t, e in zip(tensors, exact, strict=True)]
    strides = [
        list(t.stride()) if e else [None] * t.dim() for t, e in zip(tensors, exact, strict=True)
    ]
    return guards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check


@functools.cache
def _guards() -> Any:
    """The class of torch's guards, if it does what `alike_check` says."""
    try:
        guards = importlib.import_module("torch._C._dynamo.guards").TensorGuards
        x, y, other = torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(3, 2)
        check = _made(guards, [torch.zeros(2, 3), torch.zeros(2, 3)], [True, False])
        wrong = [
            (other, y),
            (torch.zeros(3, 2).t(), y),
            (x.int(), y),
            (x, y.half()),
            (x, y[0]),
            (x.to("meta"), y),
            (x, y.to("meta")),
        ]
        if check(x, y) and check(x, other) and not any(check(*pair) for pair in wrong):
            return guards
    except (ImportError, AttributeError, TypeError, RuntimeError, SystemError, ValueError):
        pass
    return None
