"""A compiled kernel as C: a header, and a source file that holds the cubin and launches it.

The source needs the CUDA driver at run time and nothing but a C compiler to build: where there is
no cuda.h, it declares the few driver functions that it calls.
"""

from __future__ import annotations

from typing import assert_never

from tiledsl.codegen.module import LAUNCH_SLOTS
from tiledsl.codegen.module import GridParam
from tiledsl.codegen.module import KernelModule
from tiledsl.codegen.module import LaunchSlotParam
from tiledsl.codegen.module import PointerParam
from tiledsl.codegen.module import ScalarParam
from tiledsl.codegen.module import ShapeParam
from tiledsl.codegen.module import StrideParam
from tiledsl.codegen.module import TensorMapParam
from tiledsl.errors import CodegenError
from tiledsl.ir.specs import factors_in

BYTES_PER_LINE = 16
C_TYPES = {
    "i1": "unsigned char",
    "i8": "signed char",
    "i16": "short",
    "i32": "int",
    "i64": "long long",
    "u8": "unsigned char",
    "u16": "unsigned short",
    "u32": "unsigned int",
    "u64": "unsigned long long",
    "f32": "float",
    "f64": "double",
    "f16": "unsigned short",
    "bf16": "unsigned short",
    "e4m3": "unsigned char",
    "e5m2": "unsigned char",
}
# Ref: CUDA driver API, CUtensorMapDataType, CUtensorMapSwizzle, CUtensorMapL2promotion.
MAP_TYPES = {
    "i1": 0, "i8": 0, "u8": 0, "e4m3": 0, "e5m2": 0, "u16": 1, "i16": 1, "u32": 2, "i32": 3,
    "u64": 4, "i64": 5, "f16": 6, "f32": 7, "f64": 8, "bf16": 9,
}  # fmt: skip
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
PROMOTIONS = {0: 0, 64: 1, 128: 2, 256: 3}

DECLARATIONS = """\
#ifndef TILEDSL_TYPES
#define TILEDSL_TYPES
#if defined(__has_include)
#if __has_include(<cuda.h>)
#include <cuda.h>
#define TILEDSL_HAS_CUDA_H
#endif
#endif
#ifndef TILEDSL_HAS_CUDA_H
typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUmod_st* CUmodule;
typedef struct CUfunc_st* CUfunction;
typedef struct CUstream_st* CUstream;
typedef struct { unsigned long long opaque[16]; } CUtensorMap;
#endif
#endif
"""
FUNCTIONS = """\
#ifndef TILEDSL_HAS_CUDA_H
extern CUresult cuModuleLoadData(CUmodule*, const void*);
extern CUresult cuModuleGetFunction(CUfunction*, CUmodule, const char*);
extern CUresult cuFuncSetAttribute(CUfunction, int, int);
extern CUresult cuCtxGetDevice(CUdevice*);
extern CUresult cuDeviceGetAttribute(int*, int, CUdevice);
extern CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,
                               unsigned, unsigned, CUstream, void**, void**);
extern CUresult cuTensorMapEncodeTiled(CUtensorMap*, int, unsigned, void*,
                                       const unsigned long long*, const unsigned long long*,
                                       const unsigned*, const unsigned*, int, int, int, int);
#endif
"""
TENSOR = """\
#ifndef TILEDSL_TENSOR
#define TILEDSL_TENSOR
/* A strided tensor in device memory; shape and stride in elements. */
typedef struct {
  CUdeviceptr data;
  long long shape[8];
  long long stride[8];
} tiledsl_tensor;
#endif
"""


def c_arguments(module: KernelModule) -> dict[str, str]:
    """The C type of each argument, in the order of first use."""
    kinds: dict[str, str] = {}
    if not all(p.name for p in module.params):
        raise CodegenError("a kernel that takes a list of tensors has no C launcher")
    for param in module.params:
        match param:
            case TensorMapParam() if param.shape:
                kinds.setdefault(param.arg, "CUdeviceptr")
                for item in (*param.shape, *param.strides):
                    for name in factors_in(item)[1]:
                        kinds.setdefault(name, "long long")
            case ShapeParam() | StrideParam() | TensorMapParam():
                kinds[param.arg] = "const tiledsl_tensor*"
            case PointerParam():
                kinds.setdefault(param.arg, "CUdeviceptr")
            case ScalarParam():
                kinds[param.arg] = C_TYPES[param.dtype.name]
            case GridParam() | LaunchSlotParam():
                pass
            case _:
                assert_never(param)
    return kinds


def prototype(module: KernelModule, name: str) -> str:
    """The launch function, without the semicolon."""
    args = "".join(f", {kind} {arg}" for arg, kind in c_arguments(module).items())
    return (
        f"CUresult {name}(CUstream stream, unsigned grid_x, unsigned grid_y, unsigned grid_z{args})"
    )


def header_text(module: KernelModule, name: str, notes: str) -> str:
    """The C header. notes: what the launch is for, in the comment."""
    guard = f"{name.upper()}_H"
    comment = "\n".join(f" * {line}".rstrip() for line in notes.splitlines())
    return f"""\
/* Launches a kernel on the current context; 0 is success.
{comment}
 */
#ifndef {guard}
#define {guard}
{DECLARATIONS}{TENSOR}
#ifdef __cplusplus
extern "C" {{
#endif
{prototype(module, name)};
#ifdef __cplusplus
}}
#endif
#endif
"""


def source_text(module: KernelModule, cubin: bytes, name: str) -> str:
    """The C source with the cubin in it."""
    rows = [cubin[at : at + BYTES_PER_LINE] for at in range(0, len(cubin), BYTES_PER_LINE)]
    data = ",\n".join("  " + ", ".join(map(str, row)) for row in rows)
    kinds = c_arguments(module)
    lines: list[str] = []
    pointers: list[str] = []
    for at, param in enumerate(module.params):
        local = f"param_{at}"
        if isinstance(param, TensorMapParam):
            lines += _map_lines(param, local)
        else:
            kind, value = _scalar(param, kinds)
            lines.append(f"{kind} {local} = {value};")
        pointers.append(f"&{local}")
    body = "\n".join(f"  {line}" for line in [*lines, *_grid_lines(module)])
    return f"""\
#include "{name}.h"
{FUNCTIONS}
static const unsigned char cubin[] __attribute__((aligned(16))) = {{
{data}
}};

static CUresult load(CUfunction* function) {{
  CUmodule module;
  CUresult status = cuModuleLoadData(&module, cubin);
  if (status == 0) status = cuModuleGetFunction(function, module, "{module.name}");
  if (status == 0) status = cuFuncSetAttribute(*function, 8, {module.smem_bytes});
  return status;
}}

{prototype(module, name)} {{
  /* One device per process: call from the context that the program uses throughout. */
  static CUfunction function;
  static unsigned launches;
  CUresult status = 0;
  if (grid_x == 0 || grid_y == 0 || grid_z == 0) return 0;
  if (!function && (status = load(&function)) != 0) return status;
  (void)launches;
{body}
  void* params[] = {{{", ".join(pointers) or "0"}}};
  return cuLaunchKernel(function, launch_x, launch_y, launch_z, {module.num_threads}, 1, 1,
                        {module.smem_bytes}, stream, params, 0);
}}
"""


def _scalar(
    param: PointerParam | ShapeParam | StrideParam | GridParam | ScalarParam | LaunchSlotParam,
    kinds: dict[str, str],
) -> tuple[str, str]:
    """C type and value of a parameter."""
    match param:
        case PointerParam(arg=arg):
            return "CUdeviceptr", f"{arg}->data" if "*" in kinds[arg] else arg
        case ShapeParam(arg=arg, dim=dim):
            return "long long", f"{arg}->shape[{dim}]"
        case StrideParam(arg=arg, dim=dim):
            return "long long", f"{arg}->stride[{dim}]"
        case GridParam(axis=axis):
            return "int", f"(int)grid_{'xyz'[axis]}"
        case ScalarParam(arg=arg, dtype=dtype):
            return C_TYPES[dtype.name], arg
        case LaunchSlotParam():
            return "int", f"(int)(launches++ % {LAUNCH_SLOTS}u)"
        case _:
            assert_never(param)


def _map_lines(param: TensorMapParam, local: str) -> list[str]:
    rank, size, arg = len(param.dims), param.dtype.bytes, param.arg
    shape = param.shape or tuple(f"{arg}->shape[{d}]" for d in range(rank))
    strides = param.strides or tuple(f"{arg}->stride[{d}]" for d in range(rank))
    data = arg if param.shape else f"{arg}->data"
    checks: list[str] = []
    extents: list[str] = []
    for d, extent, per in param.axes:
        whole = f"(unsigned long long)({shape[d]})"
        extents.append(str(extent) if extent else whole if per == 1 else f"{whole} / {per}")
        checks += [f"if ({whole} % {per} != 0) return 1;"] if per > 1 else []
    pitches = [f"(unsigned long long)({strides[d]}) * {per * size}" for d, _, per in param.axes[1:]]
    facts = f"0, {SWIZZLES[param.swizzle_bytes]}, {PROMOTIONS[param.l2_promotion_bytes]}, 0"
    return [
        *checks,
        f"CUtensorMap {local} __attribute__((aligned(64)));",
        f"unsigned long long extents_{local}[] = {{{', '.join(extents)}}};",
        f"unsigned long long pitches_{local}[] = {{{', '.join([*pitches, '0'])}}};",
        f"unsigned box_{local}[] = {{{', '.join(map(str, param.box))}}};",
        f"unsigned steps_{local}[] = {{{', '.join(['1'] * rank)}}};",
        f"status = cuTensorMapEncodeTiled(&{local}, {MAP_TYPES[param.dtype.name]}, {rank},",
        f"    (void*){data}, extents_{local}, pitches_{local}, box_{local}, steps_{local},",
        f"    {facts});",
        "if (status != 0) return status;",
    ]


def _grid_lines(module: KernelModule) -> list[str]:
    grid = module.grid
    if grid.mode == "plain":
        split = f" * {grid.split_k}" if grid.split_k > 1 else ""
        return [
            f"unsigned launch_x = grid_x{split}, launch_y = grid_y, launch_z = grid_z;",
            "(void)status;",
        ]
    ctas = max(grid.cluster_size, grid.split_k)
    tiles = " * ".join(
        f"((unsigned long long)grid_{a} + {ctas - 1}) / {ctas}"
        if axis == grid.cluster_axis
        else f"(unsigned long long)grid_{a}"
        for axis, a in enumerate("xyz")
    )
    return [
        "CUdevice device;",
        "int sms;",
        "if ((status = cuCtxGetDevice(&device)) != 0) return status;",
        "if ((status = cuDeviceGetAttribute(&sms, 16, device)) != 0) return status;",
        f"unsigned long long tiles = {tiles};",
        f"unsigned long long resident = (unsigned long long)sms * {grid.ctas_per_sm} / {ctas};",
        f"unsigned launch_x = (unsigned)(tiles < resident ? tiles : resident) * {ctas};",
        "unsigned launch_y = 1, launch_z = 1;",
    ]
