"""Launches of a case on the device: twice, and where CTAs walk over tiles once with few of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import numpy as np

from tiledsl.errors import InternalError
from tiledsl.errors import TileError
from tiledsl.fuzz.case import Case
from tiledsl.fuzz.case import allocate
from tiledsl.fuzz.case import scalar_values
from tiledsl.fuzz.outcome import Outcome
from tiledsl.runtime.interop import from_numpy
from tiledsl.runtime.interop import numpy_view
from tiledsl.runtime.programs import Program

FEW = 5
"""Clusters, at most, that a second launch has: each walks over tiles."""


class Launches:
    """Launches a case. launching: called when it is compiled. took: called with its seconds."""

    def __init__(
        self,
        case: Case,
        out: Outcome,
        launching: Callable[[], None],
        took: Callable[[float], None],
    ) -> None:
        self.case = case
        self.out = out
        self.launching = launching
        self.took = took
        self.options = dict(case.options)

    def run(self) -> list[dict[str, np.ndarray]]:
        """The memory of all arguments after each launch."""
        results: list[dict[str, np.ndarray]] = []
        program: Program | None = None
        for number in range(2):
            buffers = allocate(self.case)
            flats: dict[str, Any] = {n: to_device(b.flat) for n, b in buffers.items()}
            tensors = {
                n: flats[n].as_strided(b.view.shape, b.strides, b.offset)
                for n, b in buffers.items()
            }
            given = self.case.joined(tensors)
            given |= {**scalar_values(self.case, buffers), **self.case.constants}
            index = device_index(flats)
            if not number and index is not None:
                program = self.prepared(given)
                self.launching()
            if number and program is not None and program.module.grid.mode == "persistent":
                self.launch_few(program, given, index or 0)
            else:
                self.case.kernel[self.case.grid3](**given, **self.options)
            results.append({n: numpy_view(t.cpu()) for n, t in flats.items()})
        return results

    def prepared(self, given: dict[str, Any]) -> Program:
        """Compiles for a launch, without the options where these cannot be honoured."""
        kernel, begin = self.case.kernel, time.process_time()
        try:
            made = kernel.prepare((), {**given, **self.options}, self.case.grid3)
        except InternalError:
            raise
        except TileError as error:
            if not self.options:
                raise
            self.out.declined, self.options = error.message, {}
            made = kernel.prepare((), given, self.case.grid3)
        self.took(time.process_time() - begin)
        self.out.specialised += bool(made.certificate)
        self.out.stayed = not made.certificate and made.module.grid.mode == "persistent"
        return made

    def launch_few(self, program: Program, given: dict[str, Any], index: int) -> None:
        """Launches with so few clusters that each walks over tiles."""
        call, _ = self.case.kernel.request_for((), {**given, **self.options}, self.case.grid3)
        loaded = program.launcher.load(index)
        few, usual = 1 + self.case.seed % FEW, loaded.resident_clusters
        self.out.walked = math.prod(self.case.grid3) > few
        loaded.resident_clusters = min(few, usual)
        try:
            program.launcher.launch(call.runtime, self.case.grid3, index, 0)
        finally:
            loaded.resident_clusters = usual


def to_device(flat: np.ndarray) -> Any:
    """A copy as a tensor on the current device."""
    made: Any = from_numpy(flat)
    return made.cuda()


def device_index(flats: Mapping[str, Any]) -> int | None:
    """The device that the tensors are on; None for the CPU."""
    device = next(iter(flats.values())).device
    return device.index if device.type == "cuda" else None
