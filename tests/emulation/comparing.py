"""Compares the emulation of a case's launches with what ran them: the interpreter or the device."""

from __future__ import annotations

import torch

from tests.emulation.example_cases import Case
from tests.emulation.recorded import Launch
from tests.emulation.recorded import both
from tests.emulation.recorded import differences
from tests.emulation.recorded import distance
from tests.emulation.recorded import recording

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)


def launches_of(case: Case, device: str) -> list[Launch]:
    """The launches of a case, each text once."""
    found: list[Launch] = []
    torch.manual_seed(0)
    with recording(found):
        case.run(device)
    assert found, f"{case}: nothing was launched"
    return list({launch.name: launch for launch in found}.values())


def integers(case: Case):
    """Small integers for every float, so that products and their sums are exact in f32."""
    zero = case.exact.partition(":")[2].split(",")

    def fill(name: str, value: torch.Tensor) -> torch.Tensor | None:
        if value.dtype not in FLOATS:
            return None
        made = torch.randint(-2, 3, value.shape, generator=torch.Generator().manual_seed(len(name)))
        return (torch.zeros_like(made) if name in zero else made).to(value.dtype)

    return fill


def compare(case: Case, device: str) -> list[str]:
    """What differs of a case: exactly where the order of sums cannot matter, and on random inputs."""
    wrong: list[str] = []
    for launch in launches_of(case, device):
        if case.exact != "always" and case.exact:
            for name, want, got in both(launch, integers(case)):
                if name in (case.only or (name,)) and (count := differences(want, got)):
                    wrong.append(
                        f"{launch.name}: {count} of {want.size} of {name} differ on integers"
                    )
        for name, want, got in both(launch, lambda *_: None):
            if case.exact == "always" and (count := differences(want, got)):
                wrong.append(f"{launch.name}: {count} of {want.size} of {name} differ")
            elif (far := distance(want, got)) > case.tolerance:
                wrong.append(f"{launch.name}: {name} is off by {far:.1e} of its largest value")
    return wrong
