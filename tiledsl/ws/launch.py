"""The launch that plans are priced for, and what selection reads of a compile request."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from math import prod
from typing import Any
from typing import Protocol

from tiledsl.ir.specs import Spec
from tiledsl.target import Target
from tiledsl.ws.plan import Overrides

Grid = tuple[int, int, int]


@dataclass(frozen=True)
class Extents:
    """Shape and strides (elements) of a tensor argument of a launch."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def elements(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class Launch:
    """The launch that plans are priced for.

    args: `Extents` per tensor, numbers per scalar, by name. grid: the user's grid for given
    constexprs. fixed_grid: the user gave numbers, which do not depend on constexprs.
    """

    args: Mapping[str, Any] = field(default_factory=dict[str, Any])
    grid: Callable[[Mapping[str, object]], Grid] = lambda _: (32, 32, 1)
    fixed_grid: bool = False


class RequestLike(Protocol):
    """What selection reads of a compile request."""

    @property
    def specs(self) -> Mapping[str, Spec]: ...
    @property
    def constants(self) -> Mapping[str, object]: ...
    @property
    def launch(self) -> Launch: ...
    @property
    def overrides(self) -> Overrides: ...
    @property
    def num_warps(self) -> int | None: ...
    @property
    def target(self) -> Target: ...
