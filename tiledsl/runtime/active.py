"""`runtime.driver.active`: what host code written for Triton asks of the current device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from typing import cast

import torch

from tiledsl.target import HOPPER


@dataclass(frozen=True)
class Target:
    """backend: "cuda".  arch: the compute capability as an int, 90 for Hopper."""

    backend: str
    arch: int
    warp_size: int = 32


class Utils:
    """Properties of devices."""

    def get_device_properties(self, device: int | None) -> dict[str, Any]:
        """Counts and sizes by the names of Triton; those of an H200 where there is no GPU."""
        if not torch.cuda.is_available():
            return {
                "max_shared_mem": HOPPER.smem_bytes,
                "max_num_regs": HOPPER.registers_per_sm,
                "multiprocessor_count": HOPPER.num_sms,
                "warpSize": HOPPER.warp_lanes,
            }
        cuda = cast("Any", torch.cuda)
        p = cuda.get_device_properties(device)
        return {
            "max_shared_mem": int(p.shared_memory_per_block_optin),
            "max_num_regs": int(p.regs_per_multiprocessor),
            "multiprocessor_count": int(p.multi_processor_count),
            "warpSize": int(p.warp_size),
        }


class ActiveDriver:
    """The driver of torch's current device."""

    utils = Utils()

    def get_current_device(self) -> int:
        """Index of the current device."""
        return torch.cuda.current_device()

    def get_current_stream(self, device: int | None = None) -> int:
        """The handle of a device's current stream."""
        return torch.cuda.current_stream(device).cuda_stream

    def get_current_target(self) -> Target:
        """What kernels are compiled for: Hopper, where there is no GPU as well."""
        if not torch.cuda.is_available():
            return Target("cuda", 90)
        major, minor = torch.cuda.get_device_capability()
        return Target("cuda", 10 * major + minor)

    def get_active_torch_device(self) -> torch.device:
        """The current device; the CPU, for the interpreter, where there is no GPU."""
        if not torch.cuda.is_available():
            return torch.device("cpu")
        return torch.device("cuda", torch.cuda.current_device())

    def get_device_interface(self) -> Any:
        """The module `torch.cuda`."""
        return torch.cuda


active = ActiveDriver()
