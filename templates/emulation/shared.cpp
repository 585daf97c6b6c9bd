// shared.cpp - shared memory: addresses, generic accesses, matrix load and store, and the rules between the generic
// and the asynchronous proxy.
#include <cstdio>
#include "engine.h"

namespace emu {

namespace {

void check_no_load(Cta& cta, u32 offset, u32 bytes, const char* what) {
  for (u32 w = offset / 4; w <= (offset + bytes - 1) / 4; ++w) {
    if (!cta.loads[w]) continue;
    fault("%s of %s while a copy into it is in flight (no wait on its mbarrier)", what, name_of(cta, w * 4).c_str());
  }
}

// is_same: what is there already is written again, such as zeros by a warpgroup that clears the rows of a slot as
// another one did that multiplies by them; no reader can tell.
void check_generic_write(Cta& cta, u32 offset, u32 bytes, const char* what, bool is_same = false) {
  check_no_load(cta, offset, bytes, what);
  for (u32 g = offset / 16; g <= (offset + bytes - 1) / 16; ++g) {
    if (cta.store_reads[g]) {
      fault("%s to %s while a bulk store still reads it (no wait_group.read)", what, name_of(cta, g * 16).c_str());
    }
    if (cta.multiply_reads[g] && !is_same) {
      fault("%s to %s while a wgmma in flight reads it (no wgmma wait)", what, name_of(cta, g * 16).c_str());
    }
  }
  for (u32 w = offset / 8; w <= (offset + bytes - 1) / 8; ++w) {
    if (cta.is_barrier[w]) fault("%s to %s, which is an mbarrier", what, name_of(cta, w * 8).c_str());
  }
}

struct Row { Cta* cta; u32 offset; };

Row matrix_row(u32 addr, const char* what) {
  const Place place = locate(addr, 16, false, what);
  if (place.offset % 16) fault("%s: row address %s is no multiple of 16", what, name_of(*place.cta, place.offset).c_str());
  return {place.cta, place.offset};
}

u16 element(u8* const* rows, u32 row, u32 column) { return ((const u16*)rows[row])[column]; }

}  // namespace

std::string name_of(const Cta& cta, u32 offset) {
  char text[64];
  snprintf(text, sizeof text, "smem + %u (%#x) of block rank %u", offset, offset, cta.rank);
  return text;
}

Place locate(u32 addr, u32 bytes, bool is_cluster, const char* what) {
  Cta* cta = current().cta;
  u32 offset = addr;
  if (addr >= CLUSTER_WINDOW) {
    const u32 rank = addr / CLUSTER_WINDOW - 1;
    if (!is_cluster) fault("%s of the cluster address %#x, where an address of the own block is needed", what, addr);
    if (rank >= cta->cluster->ctas.size()) fault("%s of block %u, which the cluster does not have", what, rank);
    cta = cta->cluster->ctas[rank].get();
    offset = addr % CLUSTER_WINDOW;
    if (cta->num_done == cta->fibers.size()) fault("%s of block rank %u, which has left the kernel", what, rank);
  }
  if (offset < SHARED_BASE || offset - SHARED_BASE + bytes > machine.launch.shared_bytes) {
    fault("%s out of bounds: smem + %lld, %u bytes; the block has %u", what, (i64)offset - SHARED_BASE, bytes,
          machine.launch.shared_bytes);
  }
  return {cta, offset - SHARED_BASE};
}

u8* dynamic_shared() { return current().cta->shared; }
u32 shared_address(const void* p) {
  Cta& cta = *current().cta;
  const u8* byte = (const u8*)p;
  if (byte < cta.shared || byte > cta.shared + cta.shared_bytes) fault("%p is no shared memory of this block", p);
  return SHARED_BASE + (u32)(byte - cta.shared);
}
u32 mapa(u32 addr, u32 cta) {
  current().pc = EMU_HERE;
  if (cta >= machine.launch.cluster_size) fault("mapa to block %u of a cluster of %u", cta, machine.launch.cluster_size);
  return (cta + 1) * CLUSTER_WINDOW + addr % CLUSTER_WINDOW;
}

// ------------------------------------------------------------------ generic accesses
static u64 moment = 0;                    // of writes and fences

void generic_write(Fiber& by, Cta& cta, u32 offset, const void* from, u32 bytes) {
  memcpy(cta.shared + offset, from, bytes);
  for (u32 w = offset / 4; w <= (offset + bytes - 1) / 4; ++w) cta.writers[w] = {by.id, by.async_fences, ++moment};
}
void load(void* to, u32 addr, u32 bytes, bool is_cluster) {
  Fiber& fiber = current();
  fiber.pc = EMU_HERE;
  const Place place = locate(addr, bytes, is_cluster, "load");
  if (place.offset % bytes) fault("load of %u bytes from %s", bytes, name_of(*place.cta, place.offset).c_str());
  check_no_load(*place.cta, place.offset, bytes, "load");
  memcpy(to, place.cta->shared + place.offset, bytes);
}
void store(u32 addr, const void* from, u32 bytes, bool is_cluster) {
  Fiber& fiber = current();
  fiber.pc = EMU_HERE;
  const Place place = locate(addr, bytes, is_cluster, "store");
  if (place.offset % bytes) fault("store of %u bytes to %s", bytes, name_of(*place.cta, place.offset).c_str());
  const bool is_same = memcmp(place.cta->shared + place.offset, from, bytes) == 0;
  check_generic_write(*place.cta, place.offset, bytes, "store", is_same);
  generic_write(fiber, *place.cta, place.offset, from, bytes);
}
void before_atomic() {
  current().pc = EMU_HERE;
  preempt();
}
u8* atomic_shared(u32 addr, u32 bytes, bool is_cluster) {
  Fiber& fiber = current();
  fiber.pc = EMU_HERE;
  preempt();
  const Place place = locate(addr, bytes, is_cluster, "atomic");
  if (place.offset % bytes) fault("atomic of %u bytes at %s", bytes, name_of(*place.cta, place.offset).c_str());
  check_generic_write(*place.cta, place.offset, bytes, "atomic");
  for (u32 w = place.offset / 4; w <= (place.offset + bytes - 1) / 4; ++w) {
    place.cta->writers[w] = {fiber.id, fiber.async_fences, ++moment};
  }
  return place.cta->shared + place.offset;
}
void store_async(u32 addr, const void* from, u32 bytes, u32 bar) {
  Fiber& fiber = current();
  fiber.pc = EMU_HERE;
  const Place place = locate(addr, bytes, true, "st.async"), barrier = locate(bar, 8, true, "st.async");
  if (place.cta != barrier.cta) fault("st.async: data and mbarrier lie in different blocks");
  check_generic_write(*place.cta, place.offset, bytes, "st.async");
  begin_load(*place.cta, place.offset, bytes, "st.async");
  std::vector<u8> data((const u8*)from, (const u8*)from + bytes);
  auto run = [=, &fiber] {
    end_load(*place.cta, place.offset, bytes);
    generic_write(fiber, *place.cta, place.offset, data.data(), bytes);
    complete_tx(*barrier.cta, barrier.offset, bytes);
  };
  add_arrival(run);
}
void fence_async() {
  ++current().async_fences;
  current().fenced_at = ++moment;
}
void fence() { preempt(); }

void load_matrix(u32 addr, u32* const* regs, u32 num, bool is_transposed) {
  Fiber& fiber = current();
  fiber.pc = EMU_HERE;
  u64 addresses[32];
  exchange(addr, addresses, EMU_HERE);
  for (u32 m = 0; m < num; ++m) {
    u8* rows[8];
    for (u32 r = 0; r < 8; ++r) {
      const Row row = matrix_row((u32)addresses[m * 8 + r], "ldmatrix");
      check_no_load(*row.cta, row.offset, 16, "ldmatrix");
      rows[r] = row.cta->shared + row.offset;
    }
    const u32 i = fiber.lane / 4, j = fiber.lane % 4 * 2;
    const u16 low = is_transposed ? element(rows, j, i) : element(rows, i, j);
    const u16 high = is_transposed ? element(rows, j + 1, i) : element(rows, i, j + 1);
    *regs[m] = pair16(low, high);
  }
  warp_converge(EMU_HERE);
}

void store_matrix(u32 addr, const u32* regs, u32 num, bool is_transposed) {
  Fiber& fiber = current();
  fiber.pc = EMU_HERE;
  u64 addresses[32];                       // every lane stores its own pairs into the rows that others name
  exchange(addr, addresses, EMU_HERE);
  const u32 i = fiber.lane / 4, j = fiber.lane % 4 * 2;
  for (u32 m = 0; m < num; ++m) {
    for (u32 k = 0; k < 2; ++k) {
      const Row row = matrix_row((u32)addresses[m * 8 + (is_transposed ? j + k : i)], "stmatrix");
      const u32 offset = row.offset + (is_transposed ? i : j + k) * 2;
      const u16 value = (u16)(regs[m] >> (16 * k));
      check_generic_write(*row.cta, offset, 2, "stmatrix");
      generic_write(fiber, *row.cta, offset, &value, 2);
    }
  }
  warp_converge(EMU_HERE);
}

// D += A * B of a warp: every lane sees the fragments of all others.
void warp_mma(float* d, const u32* a, const u32* b, bool is_bf16) {
  Fiber& fiber = current();
  fiber.pc = EMU_HERE;
  u64 rows[2][32], cols[32];
  for (u32 half = 0; half < 2; ++half) exchange(a[2 * half] | (u64)a[2 * half + 1] << 32, rows[half], EMU_HERE);
  exchange(b[0] | (u64)b[1] << 32, cols, EMU_HERE);
  const auto number = [&](u64 pair, u32 k) {
    const u32 bits = (u32)(pair >> (16 * k)) & 0xffff;
    return is_bf16 ? from_bf16(bits) : from_f16(bits);
  };
  for (u32 i = 0; i < 4; ++i) {
    const u32 row = fiber.lane / 4, col = fiber.lane % 4 * 2 + i % 2;
    float sum = 0.0f;
    for (u32 k = 0; k < 16; ++k) {
      const u64 left = rows[k / 8][row * 4 + k % 8 / 2] >> (32 * (i / 2));
      const u64 right = cols[col * 4 + k % 8 / 2] >> (32 * (k / 8));
      sum += number(left, k % 2) * number(right, k % 2);
    }
    d[i] += sum;
  }
  warp_converge(EMU_HERE);
}

void warp_mma(u32* d, const u32* a, const u32* b, bool is_bf16) {
  float sums[4] = {from_f16(d[0]), from_f16(d[0] >> 16), from_f16(d[1]), from_f16(d[1] >> 16)};
  warp_mma(sums, a, b, is_bf16);
  for (u32 i = 0; i < 2; ++i) d[i] = pair16(to_f16(sums[2 * i]), to_f16(sums[2 * i + 1]));
}

// ------------------------------------------------------------------ the asynchronous proxy
// fenced_at: when the reader executed its last proxy fence, which covers the writes that it then knew of.
void check_async_read(Cta& cta, u32 granule, const char* what, u64 fenced_at) {
  check_no_load(cta, granule * 16, 16, what);
  for (u32 w = granule * 4; w < granule * 4 + 4; ++w) {
    const Writer& writer = cta.writers[w];
    if (writer.fiber == NO_FIBER) continue;
    const Fiber& by = *cta.cluster->fibers[writer.fiber];
    if (by.async_fences != writer.fences || writer.at < fenced_at) continue;
    fault("%s reads %s, which %s wrote without fence.proxy.async since", what, name_of(cta, w * 4).c_str(),
          place_of(by).c_str());
  }
}

// A copy into memory begins: what was there is lost from now on.
void begin_load(Cta& cta, u32 offset, u32 bytes, const char* what) {
  check_generic_write(cta, offset, bytes, what);
  for (u32 w = offset / 4; w <= (offset + bytes - 1) / 4; ++w) ++cta.loads[w];
  memset(cta.shared + offset, 0xff, bytes);
  ++cta.loads_in_flight;
}
void end_load(Cta& cta, u32 offset, u32 bytes) {
  for (u32 w = offset / 4; w <= (offset + bytes - 1) / 4; ++w) --cta.loads[w], cta.writers[w] = {NO_FIBER, 0};
  --cta.loads_in_flight;
}

}  // namespace emu
