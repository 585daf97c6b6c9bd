"""Thin checked wrappers over the CUDA driver. Device, stream and context are torch's."""

from __future__ import annotations

import ctypes
import functools
import importlib
import threading
from collections.abc import Callable
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import SupportsInt
from typing import cast

from tiledsl.errors import LaunchError
from tiledsl.runtime.active import active as active  # noqa: PLC0414 - reached as driver.active
from tiledsl.target import HOPPER
from tiledsl.target import Target

DRIVER_HINT = "install an NVIDIA driver for CUDA 13; CPU tensors run in the interpreter without one"
BINDINGS_HINT = "pip install 'cuda-bindings>=13,<14'"
_HINTS = {
    "CUDA_ERROR_ILLEGAL_ADDRESS": "an earlier kernel used memory out of bounds; errors arrive late",
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "the cubin is for another architecture",
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": "the kernel needs more registers than an SM has",
    "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED": "launch the kernel once before the capture",
}


@dataclass(frozen=True, slots=True)
class Function:
    """A kernel loaded on one device.

    context: the device's primary context, as an integer.  function: the bindings' CUfunction.
    """

    device: int
    context: int
    module: object
    function: object


@functools.cache
def bindings() -> ModuleType:
    """The driver bindings, initialised.

    Raises:
        LaunchError: the bindings or the driver are missing.
    """
    try:
        cuda = importlib.import_module("cuda.bindings.driver")
    except ImportError as fault:
        raise LaunchError(
            f"cuda-bindings cannot be imported: {fault}", hint=BINDINGS_HINT
        ) from fault
    try:
        status = cuda.cuInit(0)[0]
    except (RuntimeError, OSError) as fault:
        raise LaunchError(f"there is no CUDA driver: {fault}", hint=DRIVER_HINT) from fault
    if int(status) != 0:
        raise LaunchError(f"the CUDA driver cannot be used: {status.name}", hint=DRIVER_HINT)
    return cuda


@functools.cache
def launch_call() -> Callable[[object, object, object, object], int]:
    """cuLaunchKernelEx(configuration, kernel, parameters, NULL), all of them addresses; a status.

    Raises:
        LaunchError: as `bindings`.
    """
    bindings()
    return cast("Callable[[object, object, object, object], int]", _library().cuLaunchKernelEx)


def _library() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as fault:
        raise LaunchError(f"there is no CUDA driver: {fault}", hint=DRIVER_HINT) from fault


def check(result: tuple[object, ...], what: str) -> object:
    """The value of a driver call, or LaunchError saying what failed."""
    status = result[0]
    if int(cast("SupportsInt", status)) != 0:
        raise failed(status, what)
    return result[1] if len(result) == 2 else result[1:]


def check_int(result: tuple[object, ...], what: str) -> int:
    """As `check`, for a call that gives an integer or a handle."""
    return int(cast("SupportsInt", check(result, what)))


def failed(status: object, what: str) -> LaunchError:
    """The error for a driver status, of the bindings or a number."""
    if type(status) is int:
        status = bindings().CUresult(status)
    name = getattr(status, "name", str(status))
    found, text = bindings().cuGetErrorString(status)
    detail = f" ({text.decode()})" if int(found) == 0 and text else ""
    return LaunchError(f"{what}: {name}{detail}", hint=_HINTS.get(name))


def current_device() -> int:
    """Torch's current CUDA device.

    Raises:
        LaunchError: torch has no CUDA.
    """
    return int(_torch_cuda().current_device())


def current_stream(device: int | None = None) -> int:
    """Handle of torch's current stream on a device (0 is the default stream)."""
    return int(_torch_cuda().current_stream(device).cuda_stream)


@functools.cache
def raw_stream() -> Callable[[int], int]:
    """Torch's quickest way to the handle of the current stream of a device."""
    _torch_cuda()
    found = getattr(importlib.import_module("torch")._C, "_cuda_getCurrentRawStream", None)
    return cast("Callable[[int], int]", found or current_stream)


@functools.cache
def raw_device() -> Callable[[], int]:
    """Torch's quickest way to the current device."""
    _torch_cuda()
    found = getattr(importlib.import_module("torch")._C, "_cuda_getDevice", None)
    return cast("Callable[[], int]", found or current_device)


def has_one_device() -> bool:
    """Whether torch sees one CUDA device only, which is then always the current one."""
    return int(_torch_cuda().device_count()) == 1


@functools.cache
def _torch_cuda() -> ModuleType:
    try:
        cuda = importlib.import_module("torch").cuda
    except ImportError as fault:
        raise LaunchError(f"torch cannot be imported: {fault}", hint="pip install torch") from fault
    if not cuda.is_available():
        raise LaunchError("torch sees no CUDA device", hint=DRIVER_HINT)
    cuda.init()
    return cuda


@functools.cache
def _attribute(device: int, name: str) -> int:
    cuda = bindings()
    handle = check(cuda.cuDeviceGet(device), f"device {device}")
    key = getattr(cuda.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    return check_int(cuda.cuDeviceGetAttribute(key, handle), f"attribute {name} of device {device}")


def compute_capability(device: int) -> tuple[int, int]:
    """(major, minor) of a device."""
    return _attribute(device, "COMPUTE_CAPABILITY_MAJOR"), _attribute(
        device, "COMPUTE_CAPABILITY_MINOR"
    )


def num_sms(device: int) -> int:
    """SMs of a device (fewer than the chip's under MIG)."""
    return _attribute(device, "MULTIPROCESSOR_COUNT")


def device_name(device: int) -> str:
    """Marketing name of a device."""
    cuda = bindings()
    handle = check(cuda.cuDeviceGet(device), f"device {device}")
    name = check(cuda.cuDeviceGetName(128, handle), f"name of device {device}")
    return name.decode(errors="replace").strip("\0") if isinstance(name, bytes) else str(name)


def driver_version() -> tuple[int, int]:
    """(major, minor) of the newest CUDA that the driver supports."""
    version = check_int(bindings().cuDriverGetVersion(), "driver version")
    return version // 1000, version % 1000 // 10


def require_target(device: int, target: Target = HOPPER) -> None:
    """Refuses a device that cannot run kernels for the target.

    Raises:
        LaunchError: the compute capability differs; `sm_90a` code runs on 9.0 and nothing else.
    """
    have = compute_capability(device)
    if have == target.compute_capability:
        return
    age = "older than" if have < target.compute_capability else "newer than"
    need = ".".join(map(str, target.compute_capability))
    raise LaunchError(
        f"device {device} ({device_name(device)}) has compute capability {have[0]}.{have[1]}, "
        f"{age} {need}: kernels for {target.arch} need {need} (H100, H200)",
        hint="move the tensors to the CPU to run the kernel in the interpreter",
    )


_primary_lock = threading.Lock()
_primary: dict[int, object] = {}


def primary_context(device: int) -> object:
    """The primary context of a device, the one torch uses; retained for the life of the process."""
    with _primary_lock:
        if device not in _primary:
            cuda = bindings()
            handle = check(cuda.cuDeviceGet(device), f"device {device}")
            _primary[device] = check(
                cuda.cuDevicePrimaryCtxRetain(handle), f"context of device {device}"
            )
        return _primary[device]


def current_context() -> int:
    """The calling thread's context as an integer; 0 when it has none."""
    status, context = bindings().cuCtxGetCurrent()
    return int(context) if int(status) == 0 else 0


@contextmanager
def on_device(device: int) -> Generator[None]:
    """Makes a device's primary context current, and restores the thread's context after."""
    cuda = bindings()
    check(cuda.cuCtxPushCurrent(primary_context(device)), f"enter device {device}")
    try:
        yield
    finally:
        check(cuda.cuCtxPopCurrent(), f"leave device {device}")


@contextmanager
def some_context() -> Generator[None]:
    """For calls that need a current context but not a certain one.

    A thread that has called nothing of CUDA's yet has none; then it is that of a device that a
    kernel was loaded on.
    """
    device = next(iter(_primary), None)
    if device is None or current_context():
        yield
        return
    with on_device(device):
        yield


@contextmanager
def _relaxed_capture() -> Generator[None]:
    """Lets the thread load a module while some stream is being captured."""
    cuda = bindings()
    mode = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    before = check(cuda.cuThreadExchangeStreamCaptureMode(mode), "capture mode")
    try:
        yield
    finally:
        check(cuda.cuThreadExchangeStreamCaptureMode(before), "capture mode")


def load(cubin: bytes, name: str, device: int, *, smem_bytes: int = 0) -> Function:
    """Loads a kernel on a device and allows it its dynamic shared memory.

    Raises:
        LaunchError: the driver refuses the cubin, the name or the size.
    """
    cuda = bindings()
    with on_device(device), _relaxed_capture():
        module = check(cuda.cuModuleLoadData(cubin), f"load kernel {name} on device {device}")
        function = check(
            cuda.cuModuleGetFunction(module, name.encode()), f"find kernel {name} in its module"
        )
        # Lazy loading would otherwise load the code at the first launch, perhaps inside a capture.
        check(cuda.cuFuncLoad(function), f"load the code of kernel {name}")
        if smem_bytes:
            key = cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            what = f"give kernel {name} {smem_bytes} bytes of shared memory"
            check(cuda.cuFuncSetAttribute(function, key, smem_bytes), what)
        return Function(device, int(primary_context(device)), module, function)  # type: ignore[call-overload]


def occupancy(kernel: Function, num_threads: int, smem_bytes: int) -> int:
    """CTAs of a kernel that fit on one SM."""
    cuda = bindings()
    with on_device(kernel.device):
        query = cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor(
            kernel.function, num_threads, smem_bytes
        )
        return check_int(query, "occupancy")


def max_active_clusters(
    kernel: Function, cluster_size: int, num_threads: int, smem_bytes: int
) -> int:
    """Clusters of a kernel that can be resident on the device at once."""
    cuda = bindings()
    attribute = cuda.CUlaunchAttribute()
    attribute.id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    attribute.value.clusterDim.x = cluster_size
    attribute.value.clusterDim.y = attribute.value.clusterDim.z = 1
    grid = max(1, num_sms(kernel.device) // cluster_size) * cluster_size
    config = cuda.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = num_threads, 1, 1
    config.sharedMemBytes = smem_bytes
    config.attrs, config.numAttrs = [attribute], 1
    with on_device(kernel.device):
        return check_int(
            cuda.cuOccupancyMaxActiveClusters(kernel.function, config), "cluster occupancy"
        )


def gather_clusters(kernel: Function, *, on: bool) -> None:
    """Lets CTAs of a cluster share SMs as they find room, or spreads them again (the default)."""
    cuda = bindings()
    key = cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE
    policies = cuda.CUclusterSchedulingPolicy
    policy = (
        policies.CU_CLUSTER_SCHEDULING_POLICY_LOAD_BALANCING
        if on
        else policies.CU_CLUSTER_SCHEDULING_POLICY_DEFAULT
    )
    with on_device(kernel.device), _relaxed_capture():
        check(cuda.cuFuncSetAttribute(kernel.function, key, int(policy)), "schedule clusters")


def global_of(kernel: Function, name: str) -> int:
    """Address of a variable of a kernel's module. Raises LaunchError."""
    found = bindings().cuModuleGetGlobal(kernel.module, name.encode())
    address, _ = cast("tuple[SupportsInt, int]", check(found, f"find variable {name}"))
    return int(address)


def write(address: int, data: bytes) -> None:
    """Copies to device memory, and waits for it."""
    held = ctypes.create_string_buffer(data, len(data))
    check(bindings().cuMemcpyHtoD(address, ctypes.addressof(held), len(data)), "write a variable")


def read(address: int, buffer: ctypes.Array[ctypes.c_char]) -> None:
    """Fills a buffer from device memory."""
    size = ctypes.sizeof(buffer)
    check(bindings().cuMemcpyDtoH(ctypes.addressof(buffer), address, size), "read a variable")


def synchronize(stream: int, what: str) -> None:
    """Waits for the end of a stream's work. Raises LaunchError where some of it failed."""
    check(bindings().cuStreamSynchronize(stream), what)


def check_not_capturing(stream: int, what: str) -> None:
    """Raises LaunchError where a CUDA graph captures the stream."""
    cuda = bindings()
    status = check(cuda.cuStreamIsCapturing(stream), "state of the stream")
    if status != cuda.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE:
        raise LaunchError(f"{what}, which a CUDA graph cannot capture")
