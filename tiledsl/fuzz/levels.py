"""Runs a case at each level and compares what it leaves in memory with the fp64 evaluation."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace
from typing import Any

import numpy as np

from tiledsl.call import Call
from tiledsl.compiled import Kernel
from tiledsl.compiler import modules
from tiledsl.errors import InternalError
from tiledsl.errors import LaunchError
from tiledsl.errors import TileError
from tiledsl.fuzz.case import Buffer
from tiledsl.fuzz.case import Case
from tiledsl.fuzz.case import allocate
from tiledsl.fuzz.case import differences
from tiledsl.fuzz.case import expected
from tiledsl.fuzz.case import scalar_values
from tiledsl.fuzz.device import Launches
from tiledsl.fuzz.outcome import COMPILE_SECONDS
from tiledsl.fuzz.outcome import SECONDS
from tiledsl.fuzz.outcome import Finding
from tiledsl.fuzz.outcome import Levels
from tiledsl.fuzz.outcome import Outcome
from tiledsl.fuzz.outcome import TooLong
from tiledsl.fuzz.outcome import limited
from tiledsl.fuzz.reference import Memory
from tiledsl.fuzz.reference import unknown
from tiledsl.ir.specs import TensorView
from tiledsl.runtime.interop import from_numpy
from tiledsl.simulator import view_array
from tiledsl.ws.check_state import Fault
from tiledsl.ws.simulate import simulate
from tiledsl.ws.single_plan import SinglePlan

TRIED = "tried by the fuzzer"
NO_REGISTERS = "C7602"
"""What ptxas says of an instruction with more registers than a thread has."""


class Runner:
    """One case on its way through the levels."""

    def __init__(
        self, case: Case, levels: Levels, launching: Callable[[], None] = lambda: None
    ) -> None:
        self.case = case
        self.launching = launching
        self.levels = levels
        self.out = Outcome(case.name, case.family)
        self.want: dict[str, Memory] = {}
        self.interpreted: dict[str, np.ndarray] = {}
        self.dice = np.random.default_rng(case.seed)

    def run(self) -> Outcome:
        if not self.guarded("reference", self.reference):
            return self.out
        if not self.guarded("interpreter", self.interpreter):
            return self.out
        if self.levels.device:
            self.guarded("device", self.device)
        if self.levels.simulation:
            emulated = self.dice.random() < self.levels.emulation
            compiled = self.dice.random() < self.levels.nvrtc
            self.guarded("compiler", lambda: self.plans(emulated=emulated, compiled=compiled))
        return self.out

    def guarded(self, level: str, action: Callable[[], None]) -> bool:
        """Runs a level; what it raises is a refusal or a finding. Whether the next one can run."""
        on_device = level == "device"
        seconds = COMPILE_SECONDS * 20 if on_device else SECONDS
        try:
            with limited(seconds, wall=on_device), np.errstate(all="ignore"):
                action()
        except TooLong:
            self.found(f"hang: {level}", f"no end after {seconds:.0f} s")
            return False
        except InternalError as error:
            self.found(f"crash: {level}", str(error))
            return False
        except Fault as fault:
            self.found(f"fault: {level}", str(fault))
            return False
        except TileError as error:
            if level == "reference" or (level == "device" and isinstance(error, LaunchError)):
                self.found(f"crash: {level}", str(error))
                return False
            self.out.refused = self.out.refused or error.message
            return False
        except Exception as error:
            trace = traceback.extract_tb(error.__traceback__)[-4:]
            where = " < ".join(f"{f.name} {f.filename}:{f.lineno}" for f in reversed(trace))
            self.found(f"crash: {level}", f"{type(error).__name__}: {error} in {where}")
            return False
        return True

    def found(self, kind: str, text: str) -> None:
        self.out.findings.append(Finding(kind, text))

    def texts(self, *, report: bool, cuda: bool) -> Iterator[str]:
        """What the compiler makes of the case first, before NVRTC sees it."""
        from tiledsl.report import render_report

        given = {**self.given(allocate(self.case)), **self.case.options}
        _, request = self.case.kernel.request_for((), given, self.case.grid3)
        made = next(modules(request))
        if report:
            yield render_report(made)
        if cuda:
            yield made.module.source

    # ------------------------------------------------------------------ levels
    def reference(self) -> None:
        self.want = expected(self.case)
        shares = [
            float(unknown(self.want[a.name]).mean()) for a in self.case.arguments if a.role == "out"
        ]
        self.out.vague = any(share > 0.5 for share in shares)

    def given(self, buffers: Mapping[str, Buffer]) -> dict[str, Any]:
        """Arguments of a launch on the CPU."""
        tensors = self.case.joined({n: from_numpy(b.view) for n, b in buffers.items()})
        return {**tensors, **scalar_values(self.case, buffers), **self.case.constants}

    def compare(self, level: str, buffers: Mapping[str, Buffer], note: str = "") -> None:
        self.out.count(level)
        for d in differences(self.case, {n: b.flat for n, b in buffers.items()}, self.want):
            self.found(f"differs: {level}", d.text + note)

    def interpreter(self) -> None:
        buffers = allocate(self.case)
        self.case.kernel[self.case.grid3](**self.given(buffers), **self.case.options)
        self.compare("interpreter", buffers)
        self.interpreted = {n: b.flat for n, b in buffers.items()}

    def plans(self, *, emulated: bool, compiled: bool) -> None:
        """Every plan that the compiler would try, up to a number, and the single role."""
        options = dict(self.case.options)
        try:
            self.each_plan(options, emulated=emulated, compiled=compiled)
        except InternalError:
            raise
        except TileError as error:
            if not options:
                raise
            self.out.declined = error.message
            self.each_plan({}, emulated=emulated, compiled=compiled)

    def each_plan(self, options: dict[str, Any], *, emulated: bool, compiled: bool) -> None:
        buffers = allocate(self.case)
        call, request = self.case.kernel.request_for(
            (), {**self.given(buffers), **options}, self.case.grid3
        )
        for number, made in enumerate(modules(request)):
            self.one_plan(made, number)
            if number == 0 or made.certificate is None:
                if compiled:
                    self.nvrtc(made, call)
                if emulated and (made.certificate is None or made.certificate.proved):
                    self.emulation(made)
            if number + 1 >= self.levels.plans:
                return
            made.rejected = TRIED

    def one_plan(self, made: Kernel, number: int) -> None:
        """Simulates a plan; one that the checker refused may fail, but has to be reported."""
        if made.certificate is None or made.machine is None:
            self.out.stayed |= isinstance(made.plan, SinglePlan) and made.plan.stays
            self.out.reasons += [d.reason for d in made.declined[:1]]
            return
        self.out.specialised += number == 0
        proved = made.certificate.proved
        if not proved:
            self.out.unproved.append(made.certificate.failure)
        buffers = allocate(self.case)
        problem = self.simulated(made, buffers, self.case.seed % 1000 + number)
        if proved and problem is not None:
            note = f"; plan {made.plan.describe()}"
            self.found(problem.kind, problem.text + note)
        elif proved:
            self.compare("simulation", buffers, f"; plan {made.plan.describe()}")
            self.out.same_bits += all(
                np.array_equal(b.flat.view(np.uint8), self.interpreted[n].view(np.uint8))
                for n, b in buffers.items()
            )

    def simulated(self, made: Kernel, buffers: Mapping[str, Buffer], seed: int) -> Finding | None:
        """Runs the MACHINE program; what went wrong."""
        assert made.machine is not None
        arrays: dict[str, Any] = {n: b.view for n, b in buffers.items()}
        for a in self.case.arguments:
            if a.pointer:
                arrays[a.name] = Storage(buffers[a.name].flat, buffers[a.name].offset)
        scalars = scalar_values(self.case, buffers)
        views: tuple[TensorView, ...] = made.machine.facts.get("views", ())
        for view in views:
            arrays[view.name] = view_array(view, buffers[view.pointer], scalars)
        try:
            simulate(made.machine, arrays | scalars, self.case.grid3, seed=seed)
        except Fault as fault:
            return Finding("fault: simulation", str(fault))
        except (TileError, TooLong):
            raise
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{where.filename}:{where.lineno}"
            return Finding("crash: simulation", f"{type(error).__name__}: {error} in {place}")
        return None

    def emulation(self, made: Kernel) -> None:
        from tiledsl.emulate import EmulationFault
        from tiledsl.emulate import NotEmulated
        from tiledsl.emulate import run

        for seed in (0, 1 + self.case.seed % 1000):
            buffers = allocate(self.case)
            arrays = {n: b.view for n, b in buffers.items()} | scalar_values(self.case, buffers)
            try:
                sms = 1 if seed else 4
                run(made.module, arrays, self.case.grid3, seed=seed, num_sms=sms, seconds=60.0)
            except NotEmulated as error:
                self.out.reasons.append(f"not emulated: {error.message}")
                return
            except EmulationFault as fault:
                self.found("fault: emulation", f"{fault.message}; plan {made.plan.describe()}")
                return
            self.compare("emulation", buffers, f"; plan {made.plan.describe()}")

    def nvrtc(self, made: Kernel, call: Call) -> None:
        from tiledsl.runtime.nvrtc import compile_module

        begin = time.process_time()
        try:
            facts = compile_module(made.module, options=call.nvrtc_options)
        except TileError as error:
            if NO_REGISTERS in error.message and not isinstance(made.plan, SinglePlan):
                self.out.reasons.append("ptxas has no registers for a plan, which is given up")
                return
            self.found("crash: nvrtc", f"{error.message}; plan {made.plan.describe()}")
            return
        self.took(time.process_time() - begin)
        self.out.count("nvrtc")
        self.out.spilled += facts.spill_bytes > 0
        self.out.serialised += bool(facts.serialized)

    def took(self, seconds: float) -> None:
        """A compile that takes long is a finding."""
        if seconds > COMPILE_SECONDS:
            self.found("compile", f"took {seconds:.0f} s of processor time")

    def device(self) -> None:
        """Launches twice: the results must be right, and the same bits."""
        results = Launches(self.case, self.out, self.launching, self.took).run()
        held = {n: replace(b, flat=results[0][n]) for n, b in allocate(self.case).items()}
        self.compare("device", held)
        for n, first in results[0].items():
            if not np.array_equal(first.view(np.uint8), results[1][n].view(np.uint8)):
                self.found("unstable: device", f"{n}: two launches gave different bits")


@dataclass(frozen=True)
class Storage:
    """A pointer argument for the simulator."""

    flat: np.ndarray
    offset: int


def run_case(case: Case, levels: Levels, launching: Callable[[], None] = lambda: None) -> Outcome:
    """A case through all levels. launching: called when it is compiled for the device."""
    return Runner(case, levels, launching).run()
