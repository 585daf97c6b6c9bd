"""Every function of the device headers and every WGMMA form compiles for sm_90a without spills."""

from __future__ import annotations

import itertools
import re
from functools import cache
from pathlib import Path

import pytest

from tiledsl import dtypes as dt
from tiledsl.codegen.environment import headers
from tiledsl.codegen.names import BUILT_IN
from tiledsl.codegen.names import kernel_name
from tiledsl.codegen.wgmma import WgmmaShape
from tiledsl.codegen.wgmma import render_wgmma
from tiledsl.codegen.wgmma import wgmma_shape

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.nvrtc

TYPES = """
extern "C" __global__ void types(float* out, u32* words, int n) {
  float a = out[threadIdx.x], b = out[threadIdx.x + 128], lo, hi;
  words[0] = pack_bf16x2(a, b) + pack_f16x2(a, b) + pack_e4m3x2(a, b) + pack_e5m2x2(a, b);
  unpack_bf16x2(words[1], lo, hi); out[0] = lo + hi;
  unpack_f16x2(words[2], lo, hi); out[1] = lo + hi;
  unpack_e4m3x2((u16)words[3], lo, hi); out[2] = lo + hi;
  unpack_e5m2x2((u16)words[4], lo, hi); out[3] = lo + hi;
  out[4] = to_float(from_float<bf16>(a)) + to_float(from_float<f16>(a)) +
           to_float(from_float<e4m3>(a)) + to_float(from_float<e5m2>(a)) + to_float(from_float<float>(a));
  words[5] = bits_as<u32>(a);
  words[6] = cast<i8>(a) + cast<u8>(a) + cast<i32>(cast<bf16>(n)) +
             cast<i64>(cast<f16>(2.0)) + cast<u16>(n);
  out[5] = cast<float>(cast<e4m3>(cast<f16>(n))) + (float)cast<double>(cast<e5m2>(b));
}
"""

REGS = """
template <class T> __device__ __forceinline__ void tile(const float* in, u32* out) {
  Packed<T, 32> p;
  p.zero();
#pragma unroll
  for (int i = 0; i < 8; ++i) p.set(i, in[i]);
#pragma unroll
  for (int j = 4; j < 8; ++j) p.pack2(j, in[2 * j], in[2 * j + 1]);
#pragma unroll
  for (int j = 4; j < 8; ++j) p.pack4(j, in[4 * j], in[4 * j + 1], in[4 * j + 2], in[4 * j + 3]);
  p.set_word(1, p.word(0) ^ 1u);
  keep(p);
  typename Packed<T, 32>::Value sum = 0, lo, hi;
#pragma unroll
  for (int i = 0; i < 32; ++i) sum += p.get(i);
#pragma unroll
  for (int j = 0; j < 16; ++j) { p.get2(j, lo, hi); sum += lo * hi; }
  out[0] += (u32)sum;
#pragma unroll
  for (int j = 0; j < 4; ++j) out[1 + j] += p.quad(1)[j] + quad(p.w, 0)[j];
}
extern "C" __global__ void __launch_bounds__(384, 1) regs(const float* in, u32* out) {
  tile<bf16>(in, out); tile<f16>(in, out); tile<e4m3>(in, out); tile<e5m2>(in, out);
  tile<i8>(in, out); tile<u8>(in, out); tile<i16>(in, out); tile<u16>(in, out);
  float f[2][4]; u32 u[4]; i32 s[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    f[0][i] = in[i]; f[1][i] = in[i]; u[i] = out[i]; s[i] = (int)out[i];
  }
  keep(f); keep(f[0]); keep(u); keep(s);
  out[8] = lane_id() + warp_id() + warp_in_group() + thread_in_group() + uniform(out[0]) +
           u[0] + s[0] + (u32)f[1][0];
  warp_sync(); block_sync();
  if (warpgroup_id() == 0) {
    reg_dec<24>();
    if (elect_one()) out[9] = 1;
  } else {
    reg_inc<240>();
  }
}
"""

MBARRIER = """
template <int D> __device__ __forceinline__ u32 ring(u32 bar, u32 n) {
  Cursor<D> c;
  for (u32 i = 0; i < n; ++i, c.next()) mbarrier_wait(bar + 8 * c.slot, c.parity);
  c.skip(n);
  return c.slot + c.parity;
}
extern "C" __global__ void __cluster_dims__(2, 1, 1) mbarrier(u32* out, u32 n) {
  __shared__ u64 bars[8];
  const u32 bar = smem_addr(bars);
  if (threadIdx.x == 0) {
    mbarrier_init(bar, 1);
    mbarrier_init_fence();
  }
  cluster_arrive_relaxed(); cluster_wait(); cluster_arrive(); cluster_wait(); cluster_sync();
  mbarrier_expect_tx(bar, 64); mbarrier_expect_tx_only(bar, 64); mbarrier_arrive(bar);
  mbarrier_arrive_cluster(bar, cluster_rank() ^ 1); mbarrier_arrive_cp_async(bar);
  if (mbarrier_try_wait(bar, 0) || mbarrier_try_wait_cluster(bar, 0)) out[0] = cluster_size();
  mbarrier_wait(bar, 1); mbarrier_wait_cluster(bar, 1);
  out[1] = ring<1>(bar, n) + ring<2>(bar, n) + ring<3>(bar, n) + ring<4>(bar, n);
  named_barrier_sync(1, 128); named_barrier_arrive(2, 256);
  mbarrier_inval(bar); pause_thread(n);
}
"""

FENCE = """
extern "C" __global__ void fence(const __grid_constant__ TensorMap map) {
  fence_async_smem(); fence_async_cluster(); fence_async_global(); fence_async();
  fence_cta(); fence_cluster(); fence_gpu(); fence_tensormap_acquire(&map);
  grid_dependency_wait(); grid_launch_dependents(); grid_launch_dependents_by_last<132>();
}
"""

SMEM = """
template <class T> __device__ __forceinline__ void scalar(u32 addr) {
  st_shared(addr, ld_shared<T>(addr + 64));
}
template <class T> __device__ __forceinline__ void vectors(u32 s, T* g) {
  T a, b, c, d;
  ld_shared_v2(s, a, b); st_shared_v2(s + 64, a, b);
  ld_shared_v4(s, a, b, c, d); st_shared_v4(s + 64, a, b, c, d);
  ld_dsmem_v4(s, 1, a, b, c, d); st_dsmem_v4(s, 1, a, b, c, d);
  st_dsmem(s, 1, ld_dsmem<T>(s, 1));
  ld_global_v2(g, a, b); st_global_v2(g + 4, a, b);
  ld_global_v4(g, a, b, c, d); st_global_v4(g + 4, a, b, c, d);
  ld_global_stream_v2(g, a, b); st_global_stream_v2(g + 4, a, b);
  ld_global_stream_v4(g, a, b, c, d); st_global_stream_v4(g + 4, a, b, c, d);
  ld_global_nc_v4(g, a, b, c, d); st_global_v4(g + 4, a, b, c, d);
}
extern "C" __global__ void __cluster_dims__(2, 1, 1) smem(u32* out, float* f) {
  extern __shared__ __align__(1024) u8 memory[];
  const u32 s = smem_addr(memory) + threadIdx.x * 16;
  scalar<u8>(s); scalar<e4m3>(s); scalar<bf16>(s); scalar<i16>(s); scalar<float>(s); scalar<u32>(s);
  scalar<double>(s); scalar<i64>(s);
  vectors<u32>(s, out); vectors<float>(s, f); vectors<i32>(s, (i32*)out);
  u32 a, b, c, d;
  ldmatrix_x1(s, a); ldmatrix_x2(s, a, b); ldmatrix_x4(s, a, b, c, d);
  stmatrix_x1(s, a); stmatrix_x2(s, a, b); stmatrix_x4(s, a, b, c, d);
  ldmatrix_x1_trans(s, a); ldmatrix_x2_trans(s, a, b); ldmatrix_x4_trans(s, a, b, c, d);
  stmatrix_x1_trans(s, a); stmatrix_x2_trans(s, a, b); stmatrix_x4_trans(s, a, b, c, d);
  cp_async<4>(s, out); cp_async<8>(s, out); cp_async<16>(s, out);
  cp_async_zfill<4>(s, out, a); cp_async_zfill<8>(s, out, a); cp_async_zfill<16>(s, out, a);
  cp_async_part<4>(s, out, 2); cp_async_part<8>(s, out, 4); cp_async_part<16>(s, out, 6);
  cp_async_commit(); cp_async_wait<0>();
  out[0] = mapa(s, 1);
}
"""

TMA_RANKED = (
    "tma_load(s, &map, bar, {c});",
    "tma_load_hint(s, &map, bar, first, {c});",
    "tma_load_multicast(s, &map, bar, 3, {c});",
    "tma_load_multicast_hint(s, &map, bar, 3, last, {c});",
    "tma_prefetch(&map, {c});",
    "tma_store(&map, s, {c});",
    "tma_store_hint(&map, s, normal, {c});",
    "tma_reduce_add(&map, s, {c});",
    "tma_reduce_add_hint(&map, s, last, {c});",
)
TMA = """
extern "C" __global__ void __cluster_dims__(2, 1, 1) tma(
    const __grid_constant__ TensorMap map, float* g, int x) {
  extern __shared__ __align__(1024) u8 memory[];
  const u32 s = smem_addr(memory), bar = s + 4096;
  const u64 first = policy_evict_first(), last = policy_evict_last();
  const u64 normal = policy_evict_normal();
  tma_prefetch_map(&map);
  RANKED
  tma_commit(); tma_wait_read<1>(); tma_wait<0>();
  bulk_load(s, g, 64, bar); bulk_load_hint(s, g, 64, bar, first);
  bulk_load_multicast(s, g, 64, bar, 3);
  bulk_push(mapa(s, 1), s, 64, mapa(bar, 1)); bulk_store(g, s, 64); bulk_prefetch(g, 64);
  bulk_reduce_add(g, s, 64); bulk_reduce_add((double*)g, s, 64); bulk_reduce_add((u32*)g, s, 64);
  bulk_reduce_add((i32*)g, s, 64); bulk_reduce_add((u64*)g, s, 64); bulk_reduce_add((f16*)g, s, 64);
  bulk_reduce_add((bf16*)g, s, 64); bulk_reduce_add_hint(g, s, 64, last);
}
""".replace(
    "RANKED",
    "\n  ".join(
        call.format(c=", ".join(["x"] * rank)) for call in TMA_RANKED for rank in range(1, 6)
    ),
)

MATH = """
template <class T> __device__ __forceinline__ T all(T x, T y) {
  return tdsl::exp(x) + tdsl::exp2(x) + tdsl::log(x) + tdsl::log2(x) + tdsl::tanh(x) +
         tdsl::erf(x) + tdsl::pow(x, y) + tdsl::sin(x) + tdsl::cos(x) + tdsl::sqrt(x) + tdsl::rsqrt(x) +
         tdsl::div_rn(x, y) + tdsl::fma(x, y, x) + tdsl::floor(x) + tdsl::ceil(x) + tdsl::abs(x) + max_nan(x, y) +
         min_nan(x, y) + max_num(x, y) + min_num(x, y);
}
template <class T> __device__ __forceinline__ T ints(T x, T y) {
  return cdiv(x, y) + div_trunc(x, y) + mod_trunc(x, y) + div_floor(x, y) + mod_floor(x, y) +
         max_num(x, y) + min_num(x, y);
}
extern "C" __global__ void math(float* f, double* d, i32* i, i64* l, u32* u) {
  f[0] = all(f[0], f[1]) + exp2_approx(f[2]) + log2_approx(f[3]) + rcp_approx(f[4]) +
         div_full(f[5], f[6]) + reciprocal(f[6]) + erf_absolute(f[7], 0.5f) + tanh_absolute(f[7], 0.5f) + tanh_approx(f[7]) + rsqrt_approx(f[8]);
  d[0] = all(d[0], d[1]);
  i[0] = ints(i[0], i[1]) + tdsl::abs(i[2]);
  l[0] = ints(l[0], l[1]) + tdsl::abs(l[2]);
  u[0] = ints(u[0], u[1]);
}
"""

REDUCE = """
template <class T> __device__ __forceinline__ void lanes(T* p) {
  const T v = p[threadIdx.x];
  p[threadIdx.x] = shfl_xor(v, 1) + shfl_idx(v, 2) + shfl_up(v, 1) + shfl_down(v, 1);
}
extern "C" __global__ void reduce(float* f, double* d, i32* i, u32* u, i64* l, u64* m) {
  lanes(f); lanes(d); lanes(i); lanes(u); lanes(l); lanes(m);
  i[0] = warp_add(i[1]) + warp_max(i[2]) + warp_min(i[3]);
  u[0] = warp_add(u[1]) + warp_max(u[2]) + warp_min(u[3]) + warp_any(u[4]) + warp_all(u[5]) +
         warp_ballot(u[6]);
}
"""

WGMMA = """
extern "C" __global__ void __launch_bounds__(128, 1) wgmma(u64* out, u32 s) {
  out[0] = smem_desc_k(s) + smem_desc_k<64>(s) + smem_desc_mn(s, 8192) + smem_desc_mn<32>(s, 8192) +
           smem_desc<128>(s, 16, 1024) + smem_desc_add(out[1], 32);
  wgmma_fence(); wgmma_commit(); wgmma_wait<1>(); wgmma_wait<0>();
}
"""

KERNELS = {
    "types": TYPES,
    "regs": REGS,
    "mbarrier": MBARRIER,
    "fence": FENCE,
    "smem": SMEM,
    "tma": TMA,
    "math": MATH,
    "reduce": REDUCE,
    "wgmma": WGMMA,
}
PRELUDE = '#include "tiledsl/tiledsl.cuh"\n'


@cache
def compile_log(source: str, *options: str) -> str:
    """Compiles to an sm_90a cubin and returns the log; fails the test on an error."""
    from cuda.bindings import nvrtc

    names = [name.encode() for name, _ in headers()]
    texts = [text.encode() for _, text in headers()]
    err, program = nvrtc.nvrtcCreateProgram(source.encode(), b"k.cu", len(names), texts, names)
    assert int(err) == 0, err
    flags = [b"--gpu-architecture=sm_90a", b"--std=c++17", b"--ptxas-options=-v"]
    flags += [option.encode() for option in options]
    (err,) = nvrtc.nvrtcCompileProgram(program, len(flags), flags)
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    log = b" " * size
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(program)
    text = log.decode(errors="replace").strip("\0 \n")
    assert int(err) == 0, text
    return text


def assert_clean(log: str, *, stack: bool = False) -> None:
    """No warning, no spill, no injected WGMMA wait, and no local memory unless `stack`."""
    assert "warning" not in log, log
    assert not re.search(r"C75\d\d", log), log
    assert set(re.findall(r"(\d+) bytes spill", log)) == {"0"}, log
    if not stack:
        assert set(re.findall(r"(\d+) bytes stack frame", log)) == {"0"}, log


def test_kernels_may_be_called_like_functions_of_nvrtc_and_the_headers() -> None:
    names = {
        kernel_name(n)
        for n in (*BUILT_IN, "sqrt", "decltype", "fence_proxy_async", "main", "__syncthreads")
    }
    assert names.isdisjoint(BUILT_IN)
    empty = "".join(f'extern "C" __global__ void {n}(float* x) {{}}\n' for n in sorted(names))
    compile_log(f"{PRELUDE}using namespace tdsl;\n{empty}")


@pytest.mark.parametrize("name", KERNELS)
def test_header_functions_compile(name: str) -> None:
    source = PRELUDE + "using namespace tdsl;\n" + KERNELS[name]
    assert_clean(compile_log(source), stack=name == "math")


def test_every_header_function_is_used() -> None:
    text = "\n".join(text for _, text in headers())
    pattern = r"^\s*(?:template .*> |static )?TDSL_FN (?:\w+ )+?(?:\(&|[&*])?(\w+)\("
    declared = set(re.findall(pattern, text, re.MULTILINE))
    internal = {"pack", "unpack", "pair", "unpair", "watchdog"}
    internal |= {"fence_sys", "sub_wrap"}  # The compiler composes these names.
    # By a kernel of this file, by another device function, or by what the compiler emits.
    bodies = re.sub(pattern, "", text, flags=re.MULTILINE)
    emitted = [*ROOT.glob("templates/**/*.j2"), *ROOT.glob("tiledsl/codegen/**/*.py")]
    emitted.append(ROOT / "tiledsl/ir/library.py")
    texts = [*KERNELS.values(), bodies, *(path.read_text(encoding="utf-8") for path in emitted)]
    used = set(re.findall(r"\w+", " ".join(texts)))
    assert len(declared) > 100
    assert declared - internal - used == set()


@pytest.mark.parametrize("name", [name for name, _ in headers()])
def test_header_stands_alone(name: str) -> None:
    source = f'#include "{name}"\n#include "{name}"\nextern "C" __global__ void k() {{}}\n'
    assert_clean(compile_log(source))


def test_header_includes_only_ours() -> None:
    known = {name for name, _ in headers()}
    for name, text in headers():
        assert "#pragma once" in text, name
        assert set(re.findall(r'#include\s+[<"]([^>"]+)', text)) <= known, name


def test_debug_build_compiles_without_trap() -> None:
    source = PRELUDE + "using namespace tdsl;\n" + MBARRIER
    assert_clean(compile_log(source, "-DTDSL_DEBUG"))


def _operands() -> list[tuple[dt.DType, dt.DType, dt.DType]]:
    fp8 = (dt.float8e4nv, dt.float8e5)
    int8 = (dt.int8, dt.uint8)
    forms = [
        (dt.float32, dt.bfloat16, dt.bfloat16),
        (dt.float32, dt.float16, dt.float16),
        (dt.float16, dt.float16, dt.float16),
        (dt.float32, dt.float32, dt.float32),
    ]
    forms += [(acc, a, b) for acc in (dt.float32, dt.float16) for a in fp8 for b in fp8]
    forms += [(dt.int32, a, b) for a in int8 for b in int8]
    return forms


def _shapes(acc: dt.DType, a: dt.DType, b: dt.DType) -> list[WgmmaShape]:
    majors = (False, True) if a.bits == 16 else (False,)
    return [
        wgmma_shape(acc, a, b, n, a_in_regs=in_regs, trans_a=trans_a, trans_b=trans_b)
        for n in (8, 24, 64, 176, 256)
        for in_regs, trans_a, trans_b in itertools.product((False, True), majors, majors)
        if not (in_regs and trans_a)
    ]


def _wgmma_kernel(shape: WgmmaShape) -> str:
    """Two steps into one accumulator, as a main loop does, then all registers stored."""
    a = "a + 2 * k"
    setup = ""
    if shape.a_in_regs:
        a = "ar[k]"
        setup = (
            "u32 ar[2][4];\n#pragma unroll\n"
            "for (int i = 0; i < 8; ++i) ar[i / 4][i % 4] = in[i];\n"
            "tdsl::keep(ar);"
        )
    return f"""
extern "C" __global__ void __launch_bounds__(128, 1) k_{shape.name}(
    {shape.acc_type}* out, const u32* in, u64 a, u64 b, int n) {{
  {shape.acc_type} d[{shape.num_acc}];
  {setup}
  for (int i = 0; i < n; ++i) {{
    tdsl::wgmma_fence();
#pragma unroll
    for (int k = 0; k < 2; ++k) tdsl::{shape.name}(d, {a}, b + 2 * k, k || i);
    tdsl::wgmma_commit();
    tdsl::wgmma_wait<0>();
  }}
  tdsl::keep(d);
#pragma unroll
  for (int i = 0; i < {shape.num_acc}; ++i) out[i * 128 + threadIdx.x] = d[i];
}}
"""


@pytest.mark.parametrize("form", _operands(), ids=lambda f: "_".join(t.name for t in f))
def test_wgmma_forms_compile(form: tuple[dt.DType, dt.DType, dt.DType]) -> None:
    shapes = _shapes(*form)
    source = PRELUDE + render_wgmma(shapes) + "using namespace tdsl;\n"
    source += "".join(_wgmma_kernel(shape) for shape in shapes)
    log = compile_log(source)
    assert_clean(log)
    assert log.count("Compiling entry function") == len(shapes)


PIPELINE = """
using namespace tdsl;
extern "C" __global__ void __launch_bounds__(384, 1) pipeline(
    const __grid_constant__ TensorMap ta, const __grid_constant__ TensorMap tb,
    const __grid_constant__ TensorMap tc, int steps) {
  extern __shared__ __align__(1024) u8 memory[];
  const u32 a = smem_addr(memory), b = a + 4 * 16384, c = b + 4 * 16384;
  const u32 full = c + 16384, empty = full + 32;
  if (threadIdx.x == 0) {
    for (u32 i = 0; i < 4; ++i) {
      mbarrier_init(full + 8 * i, 1);
      mbarrier_init(empty + 8 * i, 8);
    }
    mbarrier_init_fence();
  }
  block_sync();
  if (warpgroup_id() == 0) {
    reg_dec<24>();
    if (warp_id() == 0 && elect_one()) {
      Cursor<4> p;
      for (int i = 0; i < steps; ++i, p.next()) {
        mbarrier_wait(empty + 8 * p.slot, p.parity ^ 1);
        mbarrier_expect_tx(full + 8 * p.slot, 32768);
        tma_load(a + p.slot * 16384, &ta, full + 8 * p.slot, i * 64, 0);
        tma_load(b + p.slot * 16384, &tb, full + 8 * p.slot, 0, i * 64);
      }
    }
  } else {
    reg_inc<240>();
    const u32 me = warpgroup_id() - 1;
    Cursor<4> p;
    float acc[64];
    for (int i = 0; i < steps; ++i, p.next()) {
      mbarrier_wait(full + 8 * p.slot, p.parity);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; ++k)
        wgmma_m64n128k16_f32_bf16_bf16_ss_tb(
            acc, smem_desc_k(a + p.slot * 16384 + me * 8192 + k * 32),
            smem_desc_mn(b + p.slot * 16384 + k * 2048, 8192), i || k);
      wgmma_commit();
      wgmma_wait<0>();
      if (elect_one()) mbarrier_arrive(empty + 8 * p.slot);
    }
    Packed<bf16, 64> out;
#pragma unroll
    for (int j = 0; j < 32; ++j) out.pack2(j, acc[2 * j], acc[2 * j + 1]);
#pragma unroll
    for (int j = 0; j < 4; ++j)
      stmatrix_x4(c + me * 8192 + threadIdx.x % 128 * 16 + j * 2048, out.word(4 * j),
                  out.word(4 * j + 1), out.word(4 * j + 2), out.word(4 * j + 3));
    float o[64];
#pragma unroll
    for (int k = 0; k < 8; ++k) keep(out.quad(k % 8));
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 8; ++k)
      wgmma_m64n128k16_f32_bf16_bf16_rs_tb(o, out.quad(k), smem_desc_mn(b + k * 2048, 8192), k);
    wgmma_commit();
    wgmma_wait<0>();
#pragma unroll
    for (int j = 0; j < 32; ++j)
      st_shared_v2(a + threadIdx.x * 8 + j * 4096, o[2 * j], o[2 * j + 1]);
    fence_async_smem();
    named_barrier_sync(1 + me, 128);
    if (threadIdx.x % 128 == 0) {
      tma_store(&tc, c + me * 8192, 0, (int)me * 64);
      tma_commit();
      tma_wait_read<0>();
    }
  }
}
"""


def test_warp_specialised_pipeline_has_no_local_memory() -> None:
    forms = [
        wgmma_shape(
            dt.float32,
            dt.bfloat16,
            dt.bfloat16,
            128,
            a_in_regs=in_regs,
            trans_a=False,
            trans_b=True,
        )
        for in_regs in (False, True)
    ]
    log = compile_log(PRELUDE + render_wgmma(forms) + PIPELINE)
    assert_clean(log)
    assert "Used 168 registers" in log
