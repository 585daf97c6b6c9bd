"""Hand-written kernels through the launcher: streams, graphs, tensor maps, scalars, clusters."""

import threading

import pytest
import torch

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
