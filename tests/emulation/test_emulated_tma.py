"""TMA and bulk copies against a numpy model: ranks, swizzles, edges, multicast, reductions."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

from tests.emulation.harness import bits_of
from tests.emulation.harness import kernel
from tests.emulation.harness import launch
from tests.emulation.harness import pointer
from tests.emulation.harness import tensor_map
from tiledsl import dtypes as dt
from tiledsl import emulate

BAR = "if (threadIdx.x == 0) { mbarrier_init(smem, 1); mbarrier_init_fence(); }\n  block_sync();\n"
DATA = 1024
DTYPES = {1: dt.uint8, 2: dt.bfloat16, 4: dt.float32, 8: dt.int64}


def swizzle(offset: np.ndarray, span: int) -> np.ndarray:
    """16-byte chunks permuted by address bits 7 and up; the tile is aligned to 1024 bytes."""
    bits = {0: 0, 32: 1, 64: 3, 128: 7}[span]
    return offset ^ ((offset >> 7 & bits) << 4)


def box_of(array: np.ndarray, box: tuple[int, ...], at: tuple[int, ...]) -> np.ndarray:
    """The box as an array, outermost first; zeros outside. box, at: innermost first."""
    out = np.zeros(box[::-1], array.dtype)
    for index in itertools.product(*(range(n) for n in box[::-1])):
        place = tuple(i + a for i, a in zip(index, at[::-1], strict=True))
        if all(0 <= p < n for p, n in zip(place, array.shape, strict=True)):
            out[index] = array[place]
    return out


def in_shared(tile: np.ndarray, span: int) -> np.ndarray:
    """The bytes of a tile as they lie in shared memory."""
    data = np.frombuffer(tile.tobytes(), np.uint8)
    out = np.zeros_like(data)
    out[swizzle(np.arange(len(data)), span)] = data
    return out


LOADS = {
    "1d": (2, (100,), (64,), 0, (72,)),
    "2d 128": (2, (37, 80), (64, 32), 128, (32, -3)),
    "2d 64": (2, (37, 80), (32, 24), 64, (-8, 30)),
    "2d 32": (1, (40, 96), (32, 16), 32, (80, 5)),
    "2d none": (4, (11, 20), (12, 8), 0, (12, 6)),
    "3d 128": (4, (5, 7, 40), (32, 4, 3), 128, (16, 5, -1)),
    "4d": (2, (3, 4, 5, 16), (16, 2, 3, 2), 32, (0, 4, 2, 1)),
    "5d": (8, (2, 3, 2, 5, 4), (2, 4, 1, 2, 2), 0, (2, 2, 1, 2, 1)),
    "all outside": (2, (8, 64), (64, 8), 128, (0, 8)),
}


@pytest.mark.parametrize("name", LOADS)
def test_loads(name: str) -> None:
    size, shape, box, span, at = LOADS[name]
    dtype = DTYPES[size]
    rng = np.random.default_rng(1)
    x = rng.integers(0, 256, (*shape, size), np.uint8).view(dtype.numpy)[..., 0]
    num_bytes = int(np.prod(box)) * size
    coords = ", ".join(map(str, at))
    body = f"""{BAR}
  if (threadIdx.x == 0) {{
    mbarrier_expect_tx(smem, {num_bytes});
    tma_load(smem + {DATA}, &x_map, smem, {coords});
  }}
  mbarrier_wait(smem, 0);
  for (u32 i = threadIdx.x; i < {num_bytes}; i += 32) out[i] = ld_shared<u8>(smem + {DATA} + i);"""
    params = (tensor_map("x", dtype, box, span), pointer("out", dt.uint8))
    out = np.full(num_bytes, 7, np.uint8)
    module = kernel(body, params, smem_bytes=DATA + num_bytes)
    for seed in range(3):
        launch(module, {"x": x, "out": out}, seed=seed)
        np.testing.assert_array_equal(out, in_shared(box_of(x, box, at), span))


@pytest.mark.parametrize("name", [n for n in LOADS if n != "1d"])
def test_stores_clip(name: str) -> None:
    size, shape, box, span, at = LOADS[name]
    at = tuple(max(0, c) for c in at)  # a store before the tensor is an illegal instruction
    dtype = DTYPES[size]
    num_bytes = int(np.prod(box)) * size
    coords = ", ".join(map(str, at))
    body = f"""
  for (u32 i = threadIdx.x; i < {num_bytes}; i += 32) st_shared<u8>(smem + i, in[i]);
  fence_async_smem();
  warp_sync();
  if (threadIdx.x == 5) {{
    tma_store(&x_map, smem, {coords});
    tma_commit();
    tma_wait_read<0>();
  }}"""
    params = (pointer("in", dt.uint8), tensor_map("x", dtype, box, span))
    rng = np.random.default_rng(2)
    tile = rng.integers(0, 256, (*box[::-1], size), np.uint8).view(dtype.numpy)[..., 0]
    module = kernel(body, params, smem_bytes=num_bytes)
    for seed in range(3):
        x = np.zeros(shape, dtype.numpy)
        launch(module, {"in": in_shared(tile, span), "x": x}, seed=seed)
        want = np.zeros(shape, dtype.numpy)
        for index in itertools.product(*(range(n) for n in box[::-1])):
            place = tuple(i + a for i, a in zip(index, at[::-1], strict=True))
            if all(0 <= p < n for p, n in zip(place, shape, strict=True)):
                want[place] = tile[index]
        np.testing.assert_array_equal(bits_of(x), bits_of(want))


def test_a_pitched_tensor_and_another_order_of_dimensions() -> None:
    x = np.arange(40 * 48, dtype=np.float32).reshape(40, 48)[:30, :20].T
    body = f"""{BAR}
  if (threadIdx.x == 0) {{
    mbarrier_expect_tx(smem, 8 * 16 * 4);
    tma_load(smem + {DATA}, &x_map, smem, 4, 3);
  }}
  mbarrier_wait(smem, 0);
  for (u32 i = threadIdx.x; i < 128; i += 32) out[i] = ld_shared<float>(smem + {DATA} + i * 4);"""
    params = (tensor_map("x", dt.float32, (16, 8), 0, dims=(0, 1)), pointer("out", dt.float32))
    out = np.zeros((8, 16), np.float32)
    launch(kernel(body, params, smem_bytes=2048), {"x": x, "out": out})
    np.testing.assert_array_equal(out, x.T[3:11, 4:20])


@pytest.mark.parametrize("seed", range(4))
def test_multicast_reaches_every_block_of_the_mask(seed: int) -> None:
    body = f"""
  if (threadIdx.x == 0) {{ mbarrier_init(smem, 1); mbarrier_init_fence(); }}
  cluster_sync();
  const u32 rank = cluster_rank();
  if (threadIdx.x == 0) {{
    mbarrier_expect_tx(smem, 2 * 512);
    tma_load_multicast(smem + {DATA} + rank * 512, &x_map, smem, (u16)3, 0, (i32)rank * 8);
  }}
  mbarrier_wait(smem, 0);
  for (u32 i = threadIdx.x; i < 256; i += 32) out[blockIdx.x * 256 + i] = ld_shared<float>(smem + {DATA} + i * 4);
  cluster_sync();"""
    params = (tensor_map("x", dt.float32, (16, 8), 0), pointer("out", dt.float32))
    x, out = np.arange(256, dtype=np.float32).reshape(16, 16), np.zeros((2, 16, 16), np.float32)
    launch(kernel(body, params, smem_bytes=2048 + DATA, cluster=2), {"x": x, "out": out}, seed=seed)
    np.testing.assert_array_equal(out, np.stack([x, x]))


def test_reductions_add() -> None:
    body = """
  for (u32 i = threadIdx.x; i < 64; i += 32) st_shared(smem + i * 4, (float)i);
  for (u32 i = threadIdx.x; i < 64; i += 32) st_shared(smem + 256 + i * 2, from_float<bf16>((float)i));
  fence_async_smem();
  warp_sync();
  if (threadIdx.x == 0) {
    tma_reduce_add(&x_map, smem, 8, 2);
    bulk_reduce_add(y, smem + 256, 128);
    bulk_reduce_add(z, smem, 256);
    tma_commit();
    tma_wait<0>();
  }"""
    params = (
        tensor_map("x", dt.float32, (16, 4), 0),
        pointer("y", dt.bfloat16),
        pointer("z", dt.float32),
    )
    x, y, z = np.ones((4, 20), np.float32), np.ones(64, ml_dtypes.bfloat16), np.ones(64, np.float32)
    launch(kernel(body, params, smem_bytes=512), {"x": x, "y": y, "z": z}, (3,))
    want = np.ones((4, 20), np.float32)
    want[2:, 8:] += 3 * np.arange(64, dtype=np.float32).reshape(4, 16)[:2, :12]
    np.testing.assert_array_equal(x, want)
    np.testing.assert_array_equal(z, 1 + 3 * np.arange(64))
    rounded = np.ones(64, ml_dtypes.bfloat16)
    for _ in range(3):
        rounded = (rounded.astype(np.float32) + np.arange(64)).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(y, rounded)


@pytest.mark.parametrize("seed", range(4))
def test_bulk_copies(seed: int) -> None:
    body = f"""
  if (threadIdx.x == 0) {{ mbarrier_init(smem, 1); mbarrier_init_fence(); }}
  cluster_sync();
  const u32 rank = cluster_rank();
  if (threadIdx.x == 0) {{
    if (rank == 0) bulk_load(smem + {DATA}, x, 512, smem);
    mbarrier_expect_tx(smem, 512);
    if (rank == 0) {{
      mbarrier_wait(smem, 0);
      bulk_push(mapa(smem + {DATA}, 1), smem + {DATA}, 512, mapa(smem, 1));
    }} else {{
      mbarrier_wait_cluster(smem, 0);
      bulk_store(out, smem + {DATA}, 512);
      tma_commit();
      tma_wait<0>();
    }}
  }}
  cluster_sync();"""
    params = (pointer("x", dt.float32), pointer("out", dt.float32))
    x, out = np.arange(128, dtype=np.float32), np.zeros(128, np.float32)
    launch(kernel(body, params, smem_bytes=DATA + 512, cluster=2), {"x": x, "out": out}, seed=seed)
    np.testing.assert_array_equal(out, x)


LOAD = f"mbarrier_expect_tx(smem, 1024); tma_load(smem + {DATA}, &x_map, smem, 0, 0);"
STORE = f"tma_store(&x_map, smem + {DATA}, 0, 0); tma_commit();"
FAULTS = {
    "load of smem .* while a copy into it is in flight": f"{LOAD} ld_shared<float>(smem + {DATA + 512});",
    "store to smem .* while a copy|store of smem .* while a copy": f"{LOAD} st_shared(smem + {DATA + 512}, 1.0f);",
    "TMA load to smem .* while a bulk store still reads it": f"{STORE} {LOAD}",
    "store to smem .* while a bulk store still reads it": f"{STORE} st_shared(smem + {DATA}, 1.0f);",
    "which block 0,0,0 thread 0 .* wrote without fence.proxy.async": f"st_shared(smem + {DATA}, 1.0f); {STORE}",
    "TMA load: starts 2 elements into a row": f"mbarrier_expect_tx(smem, 1024); tma_load(smem + {DATA}, &x_map, smem, 2, 0);",
    "TMA store: starts 2 elements into a row": f"tma_store(&x_map, smem + {DATA}, 2, 0); tma_commit();",
    "TMA store: starts 8 before coordinate 0 of dimension 0": f"tma_store(&x_map, smem + {DATA}, -8, 0);",
    "TMA store: starts 1 before coordinate 0 of dimension 1": f"tma_store(&x_map, smem + {DATA}, 0, -1);",
    "no multiple of 128": "tma_store(&x_map, smem + 16, 0, 0);",
    "2 coordinates for a map of rank 2|1 coordinates for a map of rank 2": "tma_store(&x_map, smem, 0);",
    "ends while copies into its shared memory are in flight": LOAD,
    "ends while a bulk store still reads": STORE,
    "multicast mask 0x2 in a cluster of 1": f"tma_load_multicast(smem + {DATA}, &x_map, smem, (u16)2, 0, 0);",
    "out of bounds": f"tma_load(smem + {DATA + 1024}, &x_map, smem, 0, 0);",
}


@pytest.mark.parametrize("text", FAULTS)
def test_misuse_is_reported(text: str) -> None:
    params = (tensor_map("x", dt.float32, (32, 8), 128),)
    body = f"{BAR} if (threadIdx.x == 0) {{ {FAULTS[text]} }}"
    with pytest.raises(emulate.EmulationFault, match=text):
        launch(kernel(body, params, smem_bytes=DATA + 1024), {"x": np.zeros((8, 32), np.float32)})


def test_a_fence_by_the_writer_is_enough_and_one_by_another_thread_is_not() -> None:
    params = (tensor_map("x", dt.float32, (32, 8), 128),)
    text = """
  if (threadIdx.x == 7) st_shared(smem + 512, 1.0f);
  if (threadIdx.x == FENCED) fence_async_smem();
  warp_sync();
  if (threadIdx.x == 0) { tma_store(&x_map, smem, 0, 0); tma_commit(); tma_wait<0>(); }"""
    for fenced in (7, 0):
        module = kernel(text.replace("FENCED", str(fenced)), params, smem_bytes=1024)
        args = {"x": np.zeros((8, 32), np.float32)}
        if fenced == 7:
            launch(module, args)
        else:
            with pytest.raises(emulate.EmulationFault, match=r"thread 7 .* wrote without fence"):
                launch(module, args)
