"""Launches one compiled kernel on any device, stream and grid."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from collections.abc import Mapping

from tiledsl.codegen.module import GridSpec
from tiledsl.codegen.module import KernelModule
from tiledsl.errors import LaunchError
from tiledsl.runtime import driver
from tiledsl.runtime.frame import NULL
from tiledsl.runtime.frame import Frame
from tiledsl.runtime.frame import Setup
from tiledsl.runtime.frame import call_of
from tiledsl.runtime.nvrtc import CompiledKernel
from tiledsl.runtime.params import Grid
from tiledsl.runtime.params import Packer
from tiledsl.runtime.watch import Watcher
from tiledsl.target import HOPPER
from tiledsl.target import MAX_GRID
from tiledsl.target import Target

CERTAIN_CLUSTER = 2
"""Clusters up to this size fill every SM (two SMs share a TPC); larger ones depend on the chip."""

Submit = Callable[[int], None]


def check_user_grid(grid: tuple[int, ...]) -> Grid:
    """Three extents, missing ones 1.

    Raises:
        LaunchError: more than three extents, a negative one, or one that no device has.
    """
    extents = (*(int(extent) for extent in grid), 1, 1, 1)[: max(3, len(grid))]
    if not 1 <= len(grid) <= len(MAX_GRID) or min(extents) < 0:
        raise LaunchError(f"grid {tuple(grid)}: expected 1 to 3 extents of at least 0")
    _check_limits(extents, extents)
    return extents[0], extents[1], extents[2]


def _check_limits(grid: tuple[int, ...], user_grid: tuple[int, ...]) -> None:
    for axis, (extent, most) in enumerate(zip(grid, MAX_GRID, strict=True)):
        if extent > most and 0 not in grid:
            raise LaunchError(
                f"grid {user_grid}: axis {axis} needs {extent} CTAs, at most {most} are possible",
                hint="the first axis takes 2**31 - 1" if axis else None,
            )


def launch_grid(
    spec: GridSpec, user_grid: Grid, *, resident_clusters: int, cluster_size: int = 1
) -> Grid | None:
    """The grid to launch, CTAs per axis; None when the user's grid is empty.

    Args:
        spec: how the grid follows.
        user_grid: what the user asked for.
        resident_clusters: clusters that can run at once (CTAs when there are no clusters).
        cluster_size: CTAs of a cluster of the compiled kernel, along axis 0.

    Raises:
        LaunchError: the grid is larger than the hardware allows, or no multiple of the cluster.
    """
    if 0 in user_grid:
        return None
    if spec.mode == "persistent":
        ctas = max(spec.cluster_size, spec.split_k)
        tiles = [
            -(-n // ctas) if axis == spec.cluster_axis else n for axis, n in enumerate(user_grid)
        ]
        grid = (min(math.prod(tiles), max(1, resident_clusters)) * ctas, 1, 1)
    else:
        grid = (user_grid[0] * spec.split_k, user_grid[1], user_grid[2])
    _check_limits(grid, user_grid)
    if grid[0] % cluster_size:
        raise LaunchError(
            f"grid {user_grid}: {grid[0]} CTAs on axis 0 do not fill clusters of {cluster_size}"
        )
    return grid


class Loaded:
    """The kernel on one device, with what the grid needs to know."""

    def __init__(
        self, module: KernelModule, compiled: CompiledKernel, target: Target, device: int
    ) -> None:
        driver.require_target(device, target)
        self.kernel = driver.load(compiled.cubin, module.name, device, smem_bytes=module.smem_bytes)
        self.context = self.kernel.context
        self.function = call_of(self.kernel.function)
        ctas = max(module.grid.cluster_size, module.grid.split_k)
        self.resident_clusters = driver.num_sms(device) * module.grid.ctas_per_sm // ctas
        if module.grid.mode == "persistent" and ctas > CERTAIN_CLUSTER:
            self.resident_clusters = self._active_clusters(module, ctas)

    def _active_clusters(self, module: KernelModule, ctas: int) -> int:
        """Clusters that run at once; their CTAs share SMs where more of them do then.

        Spread over SMs, clusters of 4 with two CTAs on an SM leave 8 of 132 SMs empty.
        """
        shape = (ctas, module.num_threads, module.smem_bytes)
        spread = driver.max_active_clusters(self.kernel, *shape)
        if spread >= self.resident_clusters:
            return self.resident_clusters
        driver.gather_clusters(self.kernel, on=True)
        gathered = driver.max_active_clusters(self.kernel, *shape)
        if gathered <= spread:
            driver.gather_clusters(self.kernel, on=False)
        return min(self.resident_clusters, max(spread, gathered))


class Launcher:
    """A kernel ready to launch; loads itself on each device at the first use there.

    Thread-safe. A launch neither synchronises nor allocates device memory, so a CUDA graph can
    capture it; only one of a debug build waits for its end, and raises PipelineStall.
    """

    def __init__(
        self, module: KernelModule, compiled: CompiledKernel, target: Target = HOPPER
    ) -> None:
        self.module = module
        self.compiled = compiled
        self.target = target
        setup = Setup(module.num_threads, module.smem_bytes, module.pdl)
        self.packer = Packer(module.params, setup)
        self._loaded: dict[int, Loaded] = {}
        self._lock = threading.Lock()
        self._watcher = Watcher(module) if module.is_debug else None

    def launch(
        self, args: Mapping[str, object], user_grid: Grid, device_index: int, stream: int
    ) -> None:
        """Launches the kernel.

        Args:
            args: bound arguments by name: tensors of the device, Python scalars, None.
            user_grid: (x, y, z) as the user asked; an empty one launches nothing.
            device_index: CUDA device of the tensors.
            stream: handle of a stream of that device (0: the default stream).

        Raises:
            LaunchError: wrong arguments or grid, or the device cannot run the kernel.
        """
        user_grid = check_user_grid(user_grid)
        if 0 in user_grid:
            return
        loaded = self._loaded.get(device_index) or self.load(device_index)
        grid = self.grid(loaded, user_grid)
        frame = self.packer.frame()
        self.packer.pack(frame, args, user_grid)
        self.submit(loaded, frame, grid, stream)

    def bind(self, args: Mapping[str, object], user_grid: Grid, device_index: int) -> Submit:
        """A function of the stream that launches with these arguments and grid at the least cost.

        It keeps the arguments alive; scalars, shapes and addresses are those of now.

        Raises:
            LaunchError: as `launch`.
        """
        user_grid = check_user_grid(user_grid)
        if 0 in user_grid:
            return _nothing
        loaded = self._loaded.get(device_index) or self.load(device_index)
        grid = self.grid(loaded, user_grid)
        frame, kept = self.packer.frame(), dict(args)
        self.packer.pack(frame, kept, user_grid)

        lock = threading.Lock()

        def submit(stream: int, *, _kept: object = kept) -> None:
            with lock:
                self.packer.renew(frame)
                self.submit(loaded, frame, grid, stream)

        return submit

    def load(self, device_index: int) -> Loaded:
        """Loads the kernel on a device ahead of its first launch.

        Raises:
            LaunchError: the device cannot run the kernel.
        """
        with self._lock:
            if device_index not in self._loaded:
                self._loaded[device_index] = Loaded(
                    self.module, self.compiled, self.target, device_index
                )
            return self._loaded[device_index]

    def grid(self, loaded: Loaded, user_grid: Grid) -> Grid:
        """The grid to launch for a user's grid that is not empty. Raises LaunchError."""
        grid = launch_grid(
            self.module.grid,
            user_grid,
            resident_clusters=loaded.resident_clusters,
            cluster_size=self.module.cluster_size,
        )
        assert grid is not None
        return grid

    def submit(self, loaded: Loaded, frame: Frame, grid: Grid, stream: int) -> None:
        """One launch, in the context of the device whatever the thread's context is."""
        frame.aim(grid, stream)
        if self._watcher is not None:
            self._watcher.run(loaded.kernel, grid, stream, lambda: self._call(loaded, frame))
            return
        if driver.current_context() == loaded.context:
            self._call(loaded, frame)
            return
        with driver.on_device(loaded.kernel.device):
            self._call(loaded, frame)

    def _call(self, loaded: Loaded, frame: Frame) -> None:
        # A cluster is part of the kernel (__cluster_dims__), and no attribute of the launch.
        status = driver.launch_call()(frame.config, loaded.function, frame.params, NULL)
        if status:
            raise self.failed(status, frame.grid)

    def failed(self, status: int, grid: Grid) -> LaunchError:
        """The error for a launch that the driver refused."""
        module = self.module
        what = f"launch kernel {module.name}, grid {grid}, {module.num_threads} threads"
        return driver.failed(status, f"{what}, {module.smem_bytes} bytes of shared memory")


def _nothing(stream: int) -> None:
    """The launch of an empty grid."""
