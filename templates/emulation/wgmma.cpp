// wgmma.cpp - warpgroup matrix multiply: descriptors, operand layouts, register fragments, groups.
// A warp computes its own 16 rows; what the four warps of a group do is independent but for the check that they issue the
// same instructions. An instruction is issued when its 32 lanes have come, runs at some time before the wait that
// covers it, and its accumulator registers hold POISON in between.
#include <algorithm>
#include "engine.h"

namespace emu {
namespace {

constexpr u32 ROWS = 16, MAX_N = 256, MAX_K = 32;
constexpr u32 POISON = 0x7fa50bad;          // a signalling NaN

// ------------------------------------------------------------------ descriptors
struct Descriptor {
  u32 start, leading, stride, swizzle;      // bytes
};

Descriptor decode(u64 bits) {
  static const u32 swizzles[] = {0, 128, 64, 32};
  Descriptor d;
  d.start = (u32)(bits & 0x3fff) << 4;
  d.leading = (u32)(bits >> 16 & 0x3fff) << 4;
  d.stride = (u32)(bits >> 32 & 0x3fff) << 4;
  d.swizzle = swizzles[bits >> 62];
  if (bits >> 49 & 7) fault("wgmma: a matrix descriptor with a base offset is not emulated");
  return d;
}

// Offset in shared memory of a 16-byte chunk. K-major: row `mn`, chunk `k` (0, 1) along K. MN-major: row `k` of K,
// chunk `mn` of 8 elements along M or N.
u32 chunk_at(const Descriptor& d, bool is_mn_major, u32 mn, u32 k) {
  u32 addr = d.start;
  const u32 span = d.swizzle ? d.swizzle : 16;
  if (!is_mn_major) {
    addr += mn % 8 * span + mn / 8 * d.stride + (d.swizzle ? k * 16 : k * d.leading);
  } else if (d.swizzle) {
    const u32 across = span / 16;           // chunks side by side
    addr += k % 8 * span + k / 8 * d.stride + mn % across * 16 + mn / across * d.leading;
  } else {
    addr += k % 8 * 16 + k / 8 * d.leading + mn * d.stride;
  }
  addr = swizzled(addr, d.swizzle) & 0x3ffff;
  if (addr < SHARED_BASE || addr - SHARED_BASE + 16 > machine.launch.shared_bytes) {
    fault("wgmma reads smem + %lld, outside the block's %u bytes", (i64)addr - SHARED_BASE, machine.launch.shared_bytes);
  }
  return addr - SHARED_BASE;
}

// ------------------------------------------------------------------ elements
u32 bytes_of(Operand type) {
  switch (type) {
    case Operand::bf16: case Operand::f16: return 2;
    case Operand::tf32: return 4;
    default: return 1;
  }
}
float value_of(Operand type, const u8* p) {
  switch (type) {
    case Operand::bf16: return from_bf16(p[0] | p[1] << 8);
    case Operand::f16: return from_f16(p[0] | p[1] << 8);
    case Operand::e4m3: return from_e4m3(*p);
    case Operand::e5m2: return from_e5m2(*p);
    case Operand::s8: return (float)(signed char)*p;
    case Operand::u8_: return (float)*p;
    default: {
      u32 bits;
      memcpy(&bits, p, 4);
      return bits_as<float>(bits & ~0x1fffu);   // tf32 keeps 10 bits of mantissa
    }
  }
}

// Calls f(chunk's offset, first mn, first k) for every chunk of `extent` rows or columns from `first` on.
template <class F>
void each_chunk(const Descriptor& d, bool is_mn_major, u32 first, u32 extent, u32 K, F f) {
  if (is_mn_major) {
    for (u32 k = 0; k < K; ++k) {
      for (u32 c = first / 8; c < (first + extent) / 8; ++c) f(chunk_at(d, true, c, k), c * 8, k);
    }
  } else {
    for (u32 mn = first; mn < first + extent; ++mn) {
      for (u32 c = 0; c < 2; ++c) f(chunk_at(d, false, mn, c), mn, c * K / 2);
    }
  }
}

// Operand values as out[k * pitch + mn - first].
void read_operand(const Cta& cta, u64 bits, bool is_mn_major, Operand type, u32 first, u32 extent, u32 K, float* out,
                  u32 pitch) {
  const u32 size = bytes_of(type);
  each_chunk(decode(bits), is_mn_major, first, extent, K, [&](u32 offset, u32 mn, u32 k) {
    for (u32 i = 0; i < 16 / size; ++i) {
      const float v = value_of(type, cta.shared + offset + i * size);
      if (is_mn_major) out[k * pitch + mn - first + i] = v;
      else out[(k + i) * pitch + mn - first] = v;
    }
  });
}

// A from registers, out[k * ROWS + row] of the warp's 16 rows.
void read_fragments(const WarpMultiply& m, float* out) {
  const u32 size = bytes_of(m.form->a), num = 16 / size;
  for (u32 lane = 0; lane < 32; ++lane) {
    const u8* bytes = (const u8*)m.a_regs[lane];
    for (u32 v = 0; v < num; ++v) {
      u32 row, k;
      if (size == 2) {
        row = lane / 4 + 8 * (v / 2 & 1);
        k = 2 * (lane % 4) + (v & 1) + 8 * (v / 4);
      } else if (size == 1) {
        row = lane / 4 + 8 * (v / 4 & 1);
        k = 4 * (lane % 4) + (v & 3) + 16 * (v / 8);
      } else {
        row = lane / 4 + 8 * (v & 1);
        k = lane % 4 + 4 * (v / 2);
      }
      out[k * ROWS + row] = value_of(m.form->a, bytes + v * size);
    }
  }
}

// ------------------------------------------------------------------ the multiply
// Where register r of a lane lies in the warp's rows.
u32 row_of(u32 lane, u32 r) { return lane / 4 + 8 * (r / 2 & 1); }
u32 column_of(u32 lane, u32 r) { return 8 * (r / 4) + 2 * (lane % 4) + (r & 1); }

template <class T> void multiply(const Multiply& form, const float* a, const float* b, T (*d)[MAX_N]) {
  const u32 N = form.N;
  const float scale = (float)(form.scale_a * form.scale_b);
  for (u32 k = 0; k < form.K; ++k) {
    const float* __restrict y = b + k * MAX_N;
    for (u32 row = 0; row < ROWS; ++row) {
      const T x = (T)(a[k * ROWS + row] * scale);
      T* __restrict z = d[row];
      for (u32 n = 0; n < N; ++n) z[n] += x * (T)y[n];
    }
  }
}

template <class T> void run_as(WarpMultiply& m, const float* a, const float* b) {
  static T d[ROWS][MAX_N];
  const Multiply& form = *m.form;
  const bool is_f16 = form.acc == Acc::f16;
  std::vector<u32>& values = m.flight->values;
  for (u32 lane = 0; lane < 32; ++lane) {
    for (u32 r = 0; r < form.N / 2u; ++r) {
      T& x = d[row_of(lane, r)][column_of(lane, r)];
      const u32 bits = values[lane * m.num_acc + (is_f16 ? r / 2 : r)];
      if (!m.accumulate) x = 0;
      else if (is_f16) x = (T)from_f16(bits >> (16 * (r & 1)));
      else memcpy(&x, &bits, 4);
    }
  }
  multiply(form, a, b, d);
  for (u32 lane = 0; lane < 32; ++lane) {
    for (u32 r = 0; r < form.N / 2u; ++r) {
      const T x = d[row_of(lane, r)][column_of(lane, r)];
      u32& bits = values[lane * m.num_acc + (is_f16 ? r / 2 : r)];
      if (!is_f16) memcpy(&bits, &x, 4);
      else if (r & 1) bits = pair16(bits, to_f16((float)x));
      else bits = to_f16((float)x);
    }
  }
}

void land(Warp& warp, Flight* flight) {
  for (u32 lane = 0; lane < 32; ++lane) {
    for (u32 r = 0; r < flight->num_regs; ++r) {
      u32& reg = flight->d[lane][r];
      if (reg != POISON) {
        fault("accumulator register %u of %s was written while a wgmma on it was in flight", r,
              place_of(*warp.lanes[lane]).c_str());
      }
      reg = flight->values[lane * flight->num_regs + r];
    }
  }
  for (size_t i = 0; i < warp.flights.size(); ++i) {
    if (warp.flights[i].get() != flight) continue;
    warp.flights.erase(warp.flights.begin() + (long)i);
    return;
  }
}

void execute(Warp& warp, WarpMultiply& m) {
  static float a[MAX_K * ROWS], b[MAX_K * MAX_N];
  const Multiply& form = *m.form;
  const Cta& cta = *warp.lanes[0]->cta;
  const u32 first = (warp.lanes[0]->thread.x / 32 % 4) * ROWS;
  if (form.a_in_regs) read_fragments(m, a);
  else read_operand(cta, m.a, form.trans_a, form.a, first, ROWS, form.K, a, ROWS);
  read_operand(cta, m.b, form.trans_b, form.b, 0, form.N, form.K, b, MAX_N);
  if (form.acc == Acc::s32) run_as<i32>(m, a, b);
  else run_as<float>(m, a, b);
  m.is_done = true;
  for (u32 g : m.reads) --warp.lanes[0]->cta->multiply_reads[g];
  if (--m.flight->uses == 0) land(warp, m.flight);
}

// ------------------------------------------------------------------ issue
Flight* flight_of(Warp& warp, WarpMultiply& m) {
  for (auto& flight : warp.flights) {
    if (flight->d[0] == m.d[0] && flight->num_regs == m.num_acc) return flight.get();
    if (flight->d[0] < m.d[0] + m.num_acc && m.d[0] < flight->d[0] + flight->num_regs) {
      fault("wgmma on accumulator registers of which another shape is in flight");
    }
  }
  if (!m.is_fenced) fault("wgmma on accumulators that were not in flight, without a wgmma.fence since the last wait");
  auto flight = std::make_unique<Flight>();
  flight->num_regs = m.num_acc;
  flight->d.assign(m.d, m.d + 32);
  flight->values.resize(32 * m.num_acc);
  for (u32 lane = 0; lane < 32; ++lane) {
    for (u32 r = 0; r < m.num_acc; ++r) {
      flight->values[lane * m.num_acc + r] = m.d[lane][r];
      m.d[lane][r] = POISON;
    }
  }
  warp.flights.push_back(std::move(flight));
  return warp.flights.back().get();
}

void note_reads(Warp& warp, WarpMultiply& m) {
  Cta& cta = *warp.lanes[0]->cta;
  const Multiply& form = *m.form;
  u64 fenced_at = ~0ull;
  for (const Fiber* lane : warp.lanes) fenced_at = std::min(fenced_at, lane->fenced_at);
  auto note = [&](u32 offset, u32, u32) {
    check_async_read(cta, offset / 16, "wgmma", fenced_at);
    ++cta.multiply_reads[offset / 16];
    m.reads.push_back(offset / 16);
  };
  const u32 first = (warp.lanes[0]->thread.x / 32 % 4) * ROWS;
  if (!form.a_in_regs) each_chunk(decode(m.a), form.trans_a, first, ROWS, form.K, note);
  each_chunk(decode(m.b), form.trans_b, 0, form.N, form.K, note);
}

void issue(Warp& warp, WarpMultiply& m, u64 number) {
  m.flight = flight_of(warp, m);
  ++m.flight->uses;
  note_reads(warp, m);
  m.is_issued = true;
  note_progress();
  std::vector<Fiber*> woken;
  woken.swap(warp.multiply_waiters);
  for (Fiber* f : woken) wake(f);
  add_background([&warp, number] { execute_multiplies(warp, number + 1); },
            [&warp, number] { return warp.num_executed > number; });
}

// The four warps of a group must issue the same: each compares with its neighbours as far as both have come.
void check_group(Fiber& fiber, u64 number, const WarpMultiply& m) {
  Cta& cta = *fiber.cta;
  const u32 group = fiber.thread.x / 128 * 4;
  for (u32 w = group; w < group + 4 && w < cta.warps.size(); ++w) {
    const Warp& other = cta.warps[w];
    if (number < other.first_multiply || number - other.first_multiply >= other.multiplies.size()) continue;
    const WarpMultiply& theirs = other.multiplies[number - other.first_multiply];
    const bool same = theirs.b == m.b && theirs.a == m.a && theirs.form->N == m.form->N && theirs.form->K == m.form->K;
    if (!same) fault("wgmma: the warps of a warpgroup issue different instructions or descriptors");
  }
}

}  // namespace

void execute_multiplies(Warp& warp, u64 until) {
  while (warp.num_executed < until) {
    execute(warp, warp.multiplies[warp.num_executed - warp.first_multiply]);
    ++warp.num_executed;
  }
  while (!warp.multiplies.empty() && warp.multiplies.front().is_done) {
    bool is_passed = true;                  // by every lane
    for (Fiber* f : warp.lanes) is_passed = is_passed && f->num_multiplies > warp.first_multiply;
    if (!is_passed) break;
    warp.multiplies.pop_front();
    ++warp.first_multiply;
  }
}

void wgmma(const Multiply* form, void* const* d, u32 num_acc, const u32* a_regs, u64 a, u64 b, bool accumulate) {
  Fiber& fiber = current();
  fiber.pc = EMU_HERE;
  Warp& warp = *fiber.warp;
  const u32 expected = form->acc == Acc::f16 ? form->N / 4u : form->N / 2u;
  if (num_acc != expected) fault("wgmma of N=%u with %u accumulator registers", form->N, num_acc);
  if (warp.num_lanes != 32) fault("wgmma by an incomplete warp");
  for (u32 r = 1; r < num_acc; ++r) {
    if ((u32*)d[r] != (u32*)d[0] + r) fault("wgmma on accumulators that are no array: not emulated");
  }
  const u64 number = fiber.num_multiplies++;
  if (number - warp.first_multiply == warp.multiplies.size()) {
    warp.multiplies.push_back({});
    WarpMultiply& made = warp.multiplies.back();
    made.form = form;
    made.a = a;
    made.b = b;
    made.num_acc = num_acc;
    made.accumulate = accumulate;
    check_group(fiber, number, made);
  }
  WarpMultiply& m = warp.multiplies[number - warp.first_multiply];
  if (m.form != form || m.a != a || m.b != b || m.accumulate != accumulate) {
    fault("wgmma: the lanes of a warp issue different instructions or descriptors");
  }
  m.d[fiber.lane] = (u32*)d[0];
  m.is_fenced = m.is_fenced && fiber.is_fenced;
  if (a_regs) memcpy(m.a_regs[fiber.lane], a_regs, sizeof m.a_regs[0]);
  if (++m.deposited == 32) {
    issue(warp, m, number);
    return;
  }
  warp.multiply_waiters.push_back(&fiber);   // .sync: until all lanes are there
  block(Wait::wgmma, 0, EMU_HERE);
}
void wgmma_fence() { current().is_fenced = true; }
void wgmma_commit() {
  Fiber& fiber = current();
  fiber.multiply_groups.push_back(fiber.num_multiplies);
}
void wgmma_wait(u32 pending) {
  Fiber& fiber = current();
  fiber.pc = EMU_HERE;
  preempt();
  warp_converge(EMU_HERE);
  Warp& warp = *fiber.warp;
  fiber.is_fenced = false;
  if (fiber.multiply_groups.size() <= pending) return;
  u64 until = 0;
  while (fiber.multiply_groups.size() > pending) {
    until = fiber.multiply_groups.front();
    fiber.multiply_groups.pop_front();
  }
  execute_multiplies(warp, until);
}

}  // namespace emu
