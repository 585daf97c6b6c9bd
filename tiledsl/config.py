"""`Config`: values of the constants and launch options that a tuner tries together."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

from tiledsl.call import OPTIONS
from tiledsl.errors import LaunchError

PreHook = Callable[[dict[str, Any]], object]


class Config:
    """One candidate of a tuner.

    kwargs: constexpr arguments by name.  num_warps, num_stages: hints.  pre_hook: called with all
    arguments by name ahead of each launch with this candidate.  options: other launch options, such
    as `num_consumers=2`.

    Raises:
        LaunchError: an option that no launch has.
    """

    def __init__(
        self,
        kwargs: Mapping[str, Any],
        num_warps: int | None = None,
        num_stages: int | None = None,
        num_ctas: int | None = None,
        maxnreg: int | None = None,
        pre_hook: PreHook | None = None,
        ir_override: str | None = None,
        **options: Any,
    ) -> None:
        del ir_override
        for name in options:
            if name not in OPTIONS:
                known = ", ".join(sorted(OPTIONS))
                raise LaunchError(
                    f"Config(): {name!r} is no launch option", hint=f"they are {known}"
                )
        given = {"num_warps": num_warps, "num_stages": num_stages, **options}
        self.kwargs = dict(kwargs)
        self.options = {k: v for k, v in given.items() if v is not None}
        # Read by pruning functions, which expect numbers.
        self.num_warps = 4 if num_warps is None else num_warps
        self.num_stages = 3 if num_stages is None else num_stages
        self.num_ctas = 1 if num_ctas is None else num_ctas
        self.maxnreg = maxnreg
        self.pre_hook = pre_hook

    def all_kwargs(self) -> dict[str, Any]:
        """Constants and options, as keywords of a launch."""
        return {**self.kwargs, **self.options}

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{k}={v}' for k, v in self.all_kwargs().items())})"

    def __str__(self) -> str:
        return ", ".join(f"{k}: {v}" for k, v in self.all_kwargs().items())

    def _identity(self) -> tuple[Any, ...]:
        return (tuple(sorted(self.all_kwargs().items(), key=lambda i: i[0])), self.pre_hook)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())
