"""Hand-written kernels through the launcher: streams, graphs, tensor maps, scalars, clusters."""

import subprocess
import sys
import threading

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tiledsl import dtypes
from tiledsl.codegen.module import GridParam
from tiledsl.codegen.module import GridSpec
from tiledsl.codegen.module import KernelModule
from tiledsl.codegen.module import PointerParam
from tiledsl.codegen.module import ScalarParam
from tiledsl.codegen.module import ShapeParam
from tiledsl.codegen.module import StrideParam
from tiledsl.codegen.module import TensorMapParam
from tiledsl.errors import LaunchError
from tiledsl.runtime import doctor
from tiledsl.runtime import driver
from tiledsl.runtime.launcher import Launcher
from tiledsl.runtime.nvrtc import compile_module
from tiledsl.runtime.signature import signature

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]

N = 100_003
ADD = KernelModule(
    name="vector_add",
    source=r"""
extern "C" __global__ void vector_add(const float* x, const float* y, float* out, long long n, long long s, float a) {
  for (long long i = blockIdx.x * 256ll + threadIdx.x; i < n; i += 256ll * gridDim.x) out[i] = a * x[i * s] + y[i];
}
""",
    headers=(),
    params=(
        PointerParam("x", "x", dtypes.float32),
        PointerParam("y", "y", dtypes.float32),
        PointerParam("out", "out", dtypes.float32),
        ShapeParam("n", "x", 0),
        StrideParam("s", "x", 0),
        ScalarParam("a", "a", dtypes.float32),
    ),
    num_threads=256,
)
ROWS, COLS = 40, 64
COPY = KernelModule(
    name="map_copy",
    source=r"""
struct alignas(64) TensorMap { char bytes[128]; };
extern "C" __global__ void map_copy(int gx, const __grid_constant__ TensorMap map, unsigned short* out) {
  extern __shared__ __align__(128) unsigned short tile[];
  __shared__ __align__(8) unsigned long long bar;
  unsigned b = __cvta_generic_to_shared(&bar), t = __cvta_generic_to_shared(tile);
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(b) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(b), "r"(8 * 64 * 2) : "memory");
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
        ::"r"(t), "l"(&map), "r"(0), "r"((int)blockIdx.x * 8), "r"(b) : "memory");
  }
  __syncthreads();
  unsigned done = 0;
  while (!done)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(b) : "memory");
  for (int i = threadIdx.x; i < 8 * 64; i += 128) out[blockIdx.x * 512 + i] = tile[i] * (gx == gridDim.x);
}
""",
    headers=(),
    params=(
        GridParam("gx", 0),
        TensorMapParam("map", "x", dtypes.bfloat16, (1, 0), (64, 8), swizzle_bytes=0),
        PointerParam("out", "out", dtypes.bfloat16),
    ),
    num_threads=128,
    smem_bytes=100_000,
)


def cluster_source(size: int) -> str:
    return (
        f'extern "C" __global__ void __cluster_dims__({size}, 1, 1) where(int* out) {{\n'
        "  unsigned rank, count;\n"
        '  asm volatile("griddepcontrol.wait;" ::: "memory");\n'
        '  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));\n'
        '  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(count));\n'
        "  if (threadIdx.x == 0) { atomicAdd(out + rank, 1); atomicMax(out + 15, (int)count); }\n}\n"
    )


def launcher_of(module: KernelModule) -> Launcher:
    return Launcher(module, compile_module(module))


@pytest.fixture(scope="module")
def add():
    return launcher_of(ADD)


def add_args():
    x, y = torch.randn(N, device="cuda"), torch.randn(N, device="cuda")
    return {"x": x, "y": y, "out": torch.zeros_like(x), "a": 2.0}


def check_add(args):
    torch.testing.assert_close(args["out"], args["a"] * args["x"] + args["y"])


def test_default_stream(add):
    args = add_args()
    add.launch(args, (100, 1, 1), 0, driver.current_stream())
    check_add(args)


def test_strided_and_bound(add):
    args = add_args()
    args["x"] = torch.randn(2 * N, device="cuda")[::2]
    submit = add.bind(args, (100, 1, 1), 0)
    submit(driver.current_stream())
    check_add(args)


def test_side_stream(add):
    args = add_args()
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(10_000_000)
        args["x"].fill_(3.0)
        assert driver.current_stream() == side.cuda_stream
        add.launch(args, (100, 1, 1), 0, driver.current_stream())
    side.synchronize()
    check_add(args)


def test_empty_grid(add):
    args = add_args()
    for grid in ((0, 1, 1), (1, 0, 1)):
        add.launch(args, grid, 0, 0)
        add.bind(args, grid, 0)(0)
    assert not args["out"].any()


def test_other_thread_without_a_context(add):
    args = add_args()
    torch.cuda.synchronize()
    worker = threading.Thread(target=lambda: add.launch(args, (100, 1, 1), 0, 0))
    worker.start()
    worker.join()
    torch.cuda.synchronize()
    check_add(args)


def test_graph_capture_of_a_first_launch():
    add, args = launcher_of(ADD), add_args()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        add.launch(args, (100, 1, 1), 0, driver.current_stream())
    assert not args["out"].any()
    args["x"].fill_(5.0)
    graph.replay()
    check_add(args)


@pytest.mark.parametrize("pitch", [64, 72])
def test_tensor_map(pitch):
    base = torch.randn(ROWS - 3, pitch, device="cuda").to(torch.bfloat16)
    x = base[:, :60]
    out = torch.ones(ROWS, COLS, dtype=torch.bfloat16, device="cuda")
    launcher_of(COPY).launch({"x": x, "out": out}, (ROWS // 8, 1, 1), 0, driver.current_stream())
    assert torch.equal(out[: ROWS - 3, :60], x)
    assert not out[ROWS - 3 :].any()
    assert not out[:, 60:].any()


def test_tensor_map_of_one_row():
    x = torch.randn(1, 64, device="cuda").to(torch.bfloat16).as_strided((1, 64), (7, 1))
    out = torch.ones(8, COLS, dtype=torch.bfloat16, device="cuda")
    launcher_of(COPY).launch({"x": x, "out": out}, (1, 1, 1), 0, driver.current_stream())
    assert torch.equal(out[:1], x)
    assert not out[1:].any()


def test_tensor_map_in_a_graph():
    x = torch.randn(ROWS, COLS, device="cuda").to(torch.bfloat16)
    out = torch.zeros_like(x)
    copy, graph = launcher_of(COPY), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        copy.launch({"x": x, "out": out}, (ROWS // 8, 1, 1), 0, driver.current_stream())
    copy.launch({"x": out, "out": x.clone()}, (ROWS // 8, 1, 1), 0, driver.current_stream())
    graph.replay()
    assert torch.equal(out, x)


SCALARS = ["i1", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f32", "f64", "f16", "bf16"]
C_TYPES = {
    1: "unsigned char",
    2: "unsigned short",
    4: "unsigned int",
    8: "unsigned long long",
}


@pytest.mark.parametrize("name", SCALARS)
def test_scalar_dtypes(name):
    dtype = dtypes.BY_NAME[name]
    c_type = {"f32": "float", "f64": "double"}.get(name, C_TYPES[dtype.bytes])
    module = KernelModule(
        name="put",
        source=f'extern "C" __global__ void put(unsigned char c, {c_type} v, {c_type}* out)'
        " { *out = c == 1 ? v : 0; }",
        headers=(),
        params=(
            ScalarParam("c", "c", dtypes.int1),
            ScalarParam("v", "v", dtype),
            PointerParam("out", "out", dtype),
        ),
        num_threads=1,
    )
    value = 1.5 if dtype.is_float else 1 if dtype.kind == "bool" else 100
    out = torch.zeros(dtype.bytes, dtype=torch.uint8, device="cuda")
    args = {"c": True, "v": value, "out": out}
    launcher_of(module).launch(args, (1, 1, 1), 0, driver.current_stream())
    assert out.cpu().numpy().view(dtype.numpy)[0] == value


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("pdl", [False, True])
def test_persistent_clusters(size, pdl):
    module = KernelModule(
        name="where",
        source=cluster_source(size),
        headers=(),
        params=(PointerParam("out", "out", dtypes.int32),),
        num_threads=128,
        smem_bytes=200_000,
        cluster_size=size,
        grid=GridSpec("persistent", cluster_axis=0, cluster_size=size),
        pdl=pdl,
    )
    launcher = launcher_of(module)
    out = torch.zeros(16, dtype=torch.int32, device="cuda")
    launcher.launch({"out": out}, (3, 7, 1), 0, driver.current_stream())
    counts = out.tolist()
    clusters = -(-3 // size) * 7
    assert counts[15] == size
    assert counts[:size] == [min(clusters, launcher.load(0).resident_clusters)] * size
    out.zero_()
    launcher.launch({"out": out}, (5000, 7, 1), 0, driver.current_stream())
    assert out[:size].tolist() == [launcher.load(0).resident_clusters] * size
    assert 100 // size <= launcher.load(0).resident_clusters <= driver.num_sms(0) // size


def test_misaligned_tensor_is_refused():
    base = torch.zeros(8 * 64 + 1, dtype=torch.bfloat16, device="cuda")
    x = base[1:].view(8, 64)
    with pytest.raises(LaunchError, match="not 16-byte aligned"):
        launcher_of(COPY).launch({"x": x, "out": x}, (1, 1, 1), 0, 0)


def test_launch_error_names_the_kernel(add):
    module = KernelModule("vector_add", ADD.source, (), ADD.params, 4096)
    with pytest.raises(LaunchError, match="launch kernel vector_add, grid"):
        Launcher(module, add.compiled).launch(add_args(), (1, 1, 1), 0, 0)


def test_signature_of_cuda_tensors():
    found, device = signature(add_args())
    assert str(device) == "cuda:0"
    assert found["x"].tma
    with pytest.raises(LaunchError, match="argument b is on cuda:0 but argument a is on cpu"):
        signature({"a": torch.zeros(1), "b": torch.zeros(1, device="cuda")})


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_second_device(add):
    args = {k: v.to("cuda:1") if k != "a" else v for k, v in add_args().items()}
    add.launch(args, (100, 1, 1), 1, driver.current_stream(1))
    torch.cuda.synchronize(1)
    assert torch.cuda.current_device() == 0
    check_add(args)


# ---------------------------------------------------------------------- kernels through the front door
@tiledsl.jit
def scaled(x, y, o, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o + i, tl.load(x + i, mask=i < n) * 2 + tl.load(y + i, mask=i < n), mask=i < n)


@tiledsl.jit
def product(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor,
            BM: tl.constexpr = tl.auto, BN: tl.constexpr = tl.auto, BK: tl.constexpr = 64):  # fmt: skip
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, a.shape[1], BK):
        acc = tl.dot(a.load((m, k), (BM, BK)), b.load((k, n), (BK, BN)), acc)
    c.store((m, n), acc)


@tiledsl.jit
def blocks(src, dst, n):
    m, k = tl.program_id(0) * src.block_shape[0], tl.program_id(1) * src.block_shape[1]
    dst.store([m, k], src.load([m, k]) + n)


def by_block(meta):
    return (tl.cdiv(N, meta["BLOCK"]),)


def by_tile(meta):
    return tl.cdiv(512, meta["BM"]), tl.cdiv(512, meta["BN"])


def vectors(device="cuda"):
    x, y = torch.randn(N, device=device), torch.randn(N, device=device)
    return x, y, torch.zeros_like(x)


def matrices(device="cuda"):
    a, b = (torch.randn(512, 512, device=device).bfloat16() for _ in range(2))
    return a, b, torch.zeros_like(a)


def check_product(a, b, c):
    torch.testing.assert_close(c.float(), a.float() @ b.float(), rtol=2e-2, atol=1.0)


def test_slow_and_fast_path():
    scaled.forget()
    for _ in range(3):
        x, y, o = vectors()
        scaled[by_block](x, y, o, N, BLOCK=1024)
        torch.testing.assert_close(o, 2 * x + y)
    for _ in range(3):
        a, b, c = matrices()
        product[by_tile](a, b, c)
        check_product(a, b, c)


def test_handles_follow_the_current_stream_and_new_values():
    x, y, o = vectors()
    handle = scaled.bind(x, y, o, N, BLOCK=1024, grid=by_block)
    a, b, c = matrices()
    multiply = product.bind(a, b, c, grid=by_tile)
    side = torch.cuda.Stream()
    for stream in (torch.cuda.current_stream(), side):
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            x.normal_()
            a.normal_()
            handle()
            multiply()
        stream.synchronize()
        torch.testing.assert_close(o, 2 * x + y)
        check_product(a, b, c)
    x.resize_(8)
    with pytest.raises(LaunchError, match="argument x has other memory"):
        handle()


def test_front_door_in_a_thread_and_a_graph():
    scaled.forget()
    product.forget()
    x, y, o = vectors()
    a, b, c = matrices()
    torch.cuda.synchronize()
    worker = threading.Thread(target=lambda: scaled[by_block](x, y, o, N, BLOCK=1024))
    worker.start()
    worker.join()
    torch.cuda.synchronize()
    torch.testing.assert_close(o, 2 * x + y)
    product[by_tile](a, b, c)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        scaled[by_block](x, y, o, N, BLOCK=1024)
        product[by_tile](a, b, c)
    x.normal_()
    a.normal_()
    graph.replay()
    torch.testing.assert_close(o, 2 * x + y)
    check_product(a, b, c)


FIRST_CALL = """
import threading, torch
from tests.gpu.matmul_kernels import grid_of, matmul
a, b = (torch.randn(128, 128, device="cuda").bfloat16() for _ in "ab")
c = torch.full((128, 128), float("nan"), device="cuda", dtype=torch.bfloat16)
torch.cuda.synchronize()
faults = []
def launch():
    try:
        matmul[grid_of(128, 128)](a, b, c)
    except BaseException as fault:
        faults.append(fault)
for _ in range(2):
    worker = threading.Thread(target=launch)
    worker.start()
    worker.join()
assert not faults, faults
torch.testing.assert_close(c.float(), a.float() @ b.float(), rtol=2e-2, atol=0.2)
"""


def test_the_first_call_of_a_thread_makes_a_tensor_map():
    """A thread has no current context before its first call of CUDA's, such as autograd's."""
    command = [sys.executable, "-c", FIRST_CALL]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr


def test_host_descriptors():
    x = torch.randn(100, 72, device="cuda").half()
    out = torch.zeros(128, 128, device="cuda").half()
    src = tiledsl.TensorDescriptor.from_tensor(x, [64, 64])
    dst = tiledsl.TensorDescriptor(out, [100, 72], [128, 1], [64, 64])
    for n in (1, 2, 3):
        blocks[(2, 2)](src, dst, n)
        torch.testing.assert_close(out[:100, :72], x + n)
    assert not out[100:].any()
    assert not out[:, 72:].any()


def test_autotune_without_configs(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEDSL_CACHE_DIR", str(tmp_path))
    tuned = tiledsl.autotune(rep=5, warmup=2)(product)
    a, b, c = matrices()
    tuned[by_tile](a, b, c)
    check_product(a, b, c)
    assert len(tuned.configs_timings) > 1
    again = tiledsl.autotune(rep=5, warmup=2)(product)
    monkeypatch.setattr(again, "_race", lambda *_: pytest.fail("timed again") if _[0] else {})
    c.zero_()
    again[by_tile](a, b, c)
    check_product(a, b, c)
    assert again.best_config == tuned.best_config


def test_autotune_in_place_kernels_and_under_capture():
    @tiledsl.jit
    def twice(x, n, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(x + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)

    configs = [tiledsl.Config({"BLOCK": b}, num_warps=4) for b in (256, 1024)]
    x = torch.ones(N, device="cuda")
    tuned = tiledsl.autotune(configs, key=["n"], restore_value=["x"], rep=5, warmup=1)(twice)
    twice[(tl.cdiv(N, 256),)](x, 0, BLOCK=256)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with pytest.warns(UserWarning, match="while a graph is captured"), torch.cuda.graph(graph):
        tuned[by_block](x, N)
    graph.replay()
    assert x.eq(2).all()
    tuned[by_block](x, N)
    assert x.eq(4).all()


def test_operator_on_the_gpu():
    @tiledsl.op("tiledsl_gpu::scaled", out={"o": "x"}, backward=lambda s, g: (2 * g, g))
    def op(x: torch.Tensor, y: torch.Tensor, o: torch.Tensor) -> None:
        scaled[by_block](x, y, o, N, BLOCK=1024)

    x, y, _ = vectors()
    x.requires_grad_()
    compiled = torch.compile(lambda x, y: op(x, y).sum(), fullgraph=True, backend="aot_eager")
    compiled(x, y).backward()
    torch.testing.assert_close(x.grad, torch.full_like(x, 2.0))


def test_doctor_launches():
    assert "ok   launch       right values" in doctor.report()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_front_door_on_a_second_device():
    for device in ("cuda:1", "cuda:0", "cuda:1"):
        x, y, o = vectors(device)
        scaled[by_block](x, y, o, N, BLOCK=1024)
        torch.testing.assert_close(o, 2 * x + y)
        a, b, c = matrices(device)
        product[by_tile](a, b, c)
        product.bind(a, b, c, grid=by_tile)()
        check_product(a, b, c)
    with pytest.raises(LaunchError, match="argument o is on cuda:0 but argument x is on cuda:1"):
        scaled[by_block](x, y, torch.zeros(N, device="cuda:0"), N, BLOCK=1024)
