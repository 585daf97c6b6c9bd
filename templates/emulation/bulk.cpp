// bulk.cpp - tensor maps, TMA and bulk copies, cp.async. Copies run at some time after their issue, as the seed has it.
#include "engine.h"

namespace emu {
namespace {

constexpr u32 MAP_MAGIC = 0x70616d54;
constexpr u64 NEAR_BYTES = 1ull << 24;       // of an argument, which an address is then told by
constexpr u64 TABLE_BYTES = 1ull << 32;      // behind an address that an argument holds
constexpr u64 GUARD_BYTES = 4096;            // around an argument (tiledsl/emulate/pack.py)

// What stands in the 128 bytes of a tensor map; tiledsl/emulate/pack.py writes the same.
struct MapFacts {
  u32 magic;
  u8 type, rank, swizzle, elem_bytes;       // swizzle: 0, 32, 64 or 128 bytes
  u64 base;
  u64 extents[5];
  u64 pitches[4];                           // bytes, of all dimensions but the inner one
  u16 box[5];
};
static_assert(sizeof(MapFacts) <= 128, "fits into a tensor map");

struct Box {
  MapFacts map;
  i32 at[5];
  u32 bytes = 1;                            // of the tensor
  u32 pitch = 0;                            // of its rows in shared memory: as an H200 has it, no less than the swizzle

  u32 inner() const { return map.box[0] * map.elem_bytes; }
  u32 span() const { return bytes / inner() * pitch; }
};

Box make_box(const void* map, u32 rank, const i32* at, const char* what) {
  Box box;
  memcpy(&box.map, map, sizeof box.map);
  if (box.map.magic != MAP_MAGIC) fault("%s: %p is no tensor map", what, map);
  if (box.map.rank != rank) fault("%s: %u coordinates for a map of rank %u", what, rank, box.map.rank);
  for (u32 i = 0; i < 5; ++i) box.at[i] = i < rank ? at[i] : 0;
  for (u32 i = 0; i < rank; ++i) box.bytes *= box.map.box[i];
  box.bytes *= box.map.elem_bytes;
  if (at[0] * (i32)box.map.elem_bytes % 16) fault("%s: starts %d elements into a row, no multiple of 16 bytes", what, at[0]);
  if (box.map.swizzle && box.inner() > box.map.swizzle) {
    fault("%s: an inner box of %u bytes under a swizzle of %u", what, box.inner(), box.map.swizzle);
  }
  box.pitch = box.map.swizzle ? box.map.swizzle : box.inner();
  return box;
}

// What tells the boxes of a kernel apart.
BoxKey asked_for(const Box& box) {
  return {(i64)box.map.base, box.bytes, box.at[0], box.at[1], box.at[2], box.at[3], box.at[4]};
}

// Calls `row(offset in shared memory, global address or null, first and end byte inside the tensor)` for every inner row.
template <class F> void each_row(const Box& box, F row) {
  const MapFacts& map = box.map;
  u32 index[5] = {};
  const i64 first = box.at[0], left = (i64)map.extents[0] - first;
  const i64 begin = first < 0 ? -first : 0, end = left < map.box[0] ? left : map.box[0];
  for (u32 offset = 0; offset < box.span(); offset += box.pitch) {
    bool is_inside = begin < end;
    u64 address = map.base + (u64)(first * map.elem_bytes);
    for (u32 i = 1; i < map.rank; ++i) {
      const i64 at = (i64)box.at[i] + index[i];
      is_inside = is_inside && at >= 0 && at < (i64)map.extents[i];
      address += (u64)at * map.pitches[i - 1];
    }
    row(offset, is_inside ? (u8*)address : nullptr, (u32)(begin * map.elem_bytes), (u32)(end * map.elem_bytes));
    for (u32 i = 1; i < map.rank && ++index[i] == map.box[i]; ++i) index[i] = 0;
  }
}

void check_shared(Cta& cta, u32 offset, u32 align, const char* what) {
  if (offset % align) fault("%s: %s is no multiple of %u", what, name_of(cta, offset).c_str(), align);
}

// The blocks that a load reaches.
std::vector<Cta*> targets(u32 mask, bool is_multicast, const char* what) {
  Cta* own = current().cta;
  if (!is_multicast) return {own};
  std::vector<Cta*> out;
  auto& ctas = own->cluster->ctas;
  if (mask >> ctas.size() || mask == 0) fault("%s: multicast mask %#x in a cluster of %zu", what, mask, ctas.size());
  for (auto& cta : ctas) {
    if (mask >> cta->rank & 1) out.push_back(cta.get());
  }
  return out;
}

// Issue of a load of `bytes` to the same place in several blocks, where it takes `span` of them; `fill` gives the bytes
// when it runs.
void issue_load(u32 dst, u32 bar, u32 bytes, u32 span, u32 align, const std::vector<Cta*>& ctas, const char* what,
                std::function<void(Cta&, u32)> fill) {
  const Place place = locate(dst, span, true, what), barrier = locate(bar, 8, true, what);
  check_shared(*place.cta, place.offset, align, what);
  barrier_for(bar, true, what);
  if (place.cta != barrier.cta) fault("%s: destination and mbarrier lie in different blocks", what);
  for (Cta* cta : ctas) {
    if (cta->num_done == cta->fibers.size()) fault("%s: block rank %u has left the kernel", what, cta->rank);
    begin_load(*cta, place.offset, span, what);
  }
  auto run = [=] {
    for (Cta* cta : ctas) {
      end_load(*cta, place.offset, span);
      fill(*cta, place.offset);
      complete_tx(*cta, barrier.offset, bytes);
    }
  };
  add_arrival(run);
}

// ------------------------------------------------------------------ additions to global memory
template <class T> void add_as(u8* to, const u8* from) {
  T x, y;
  memcpy(&x, to, sizeof x);
  memcpy(&y, from, sizeof y);
  x = (T)(x + y);
  memcpy(to, &x, sizeof x);
}
void add_half(u8* to, const u8* from, bool is_bf16) {
  u16 x, y;
  memcpy(&x, to, 2);
  memcpy(&y, from, 2);
  x = is_bf16 ? to_bf16(from_bf16(x) + from_bf16(y)) : to_f16(from_f16(x) + from_f16(y));
  memcpy(to, &x, 2);
}
u32 add(u8* to, const u8* from, Type type) {
  switch (type) {
    case Type::u32_: case Type::i32_: add_as<u32>(to, from); return 4;
    case Type::u64_: case Type::i64_: add_as<u64>(to, from); return 8;
    case Type::f32: add_as<float>(to, from); return 4;
    case Type::f64: add_as<double>(to, from); return 8;
    case Type::f16: case Type::bf16: add_half(to, from, type == Type::bf16); return 2;
    default: fault("a reduction of 8- or 16-bit integers does not exist");
  }
}
void put_bytes(u8* to, const u8* from, u32 bytes, bool is_add, Type type) {
  if (!is_add) {
    memcpy(to, from, bytes);
    return;
  }
  for (u32 i = 0; i < bytes;) i += add(to + i, from + i, type);
}

// Issue of a store of `bytes` from shared memory; `swizzle` says how they lie there.
void issue_store(u32 src, u32 bytes, u32 align, u32 swizzle, const char* what, std::function<void(const u8*)> write) {
  Fiber& fiber = current();
  const Place place = locate(src, bytes, false, what);
  Cta& cta = *place.cta;
  check_shared(cta, place.offset, align, what);
  for (u32 g = place.offset / 16; g < (place.offset + bytes + 15) / 16; ++g) {
    check_async_read(cta, g, what);
    ++cta.store_reads[g];
  }
  auto store = std::make_shared<BulkStore>();
  store->read = [&cta, place, bytes, swizzle](BulkStore& s) {
    s.data.resize(bytes);
    for (u32 i = 0; i < bytes; i += 16) {
      const u32 at = swizzled(SHARED_BASE + place.offset + i, swizzle) - SHARED_BASE;
      memcpy(&s.data[i], cta.shared + at, 16);
    }
    for (u32 g = place.offset / 16; g < (place.offset + bytes + 15) / 16; ++g) --cta.store_reads[g];
  };
  store->write = [write](BulkStore& s) { write(s.data.data()); };
  fiber.open_stores.push_back(store);
  cta.stores.push_back(store);
  add_background([store] { run_store(*store, store->is_read ? false : draw(2) == 0); },
            [store] { return store->is_written; });
}

}  // namespace

// Ends the run where bytes of global memory belong neither to an argument, nor to a variable of the kernel, nor may lie
// where an address points that an argument holds. The last vector of an argument may go beyond its end: into `guard` bytes.
void check_inside(const void* p, u64 bytes, u64 guard = GUARD_BYTES) {
  static size_t last = 0;                   // most accesses go where the one before them went
  const u64 at = (u64)p;
  auto& all = machine.arguments;
  auto is_inside = [&](const Region& r) {
    return at < r.end && r.begin < at + bytes && r.begin <= at + guard && at + bytes <= r.end + guard;
  };
  if (bytes == 0 || (last < all.size() && is_inside(all[last]))) return;
  const Region* nearest = nullptr;
  u64 least = NEAR_BYTES;
  for (size_t i = 0; i < all.size(); ++i) {
    if (is_inside(all[i])) {
      last = i;
      return;
    }
    const u64 away = at < all[i].begin ? all[i].begin - at : at + bytes > all[i].end ? at + bytes - all[i].end : 0;
    if (away < least) least = away, nearest = &all[i];
  }
  Dl_info own, found;
  if (dladdr((void*)machine.entry, &own) && dladdr(p, &found) && own.dli_fbase == found.dli_fbase) return;
  auto above = std::upper_bound(machine.tables.begin(), machine.tables.end(), at);
  const bool is_pointed_to = above != machine.tables.begin() && at - *std::prev(above) < TABLE_BYTES;
  if (is_pointed_to && (!nearest || least > GUARD_BYTES)) return;
  if (!nearest) fault("a global access of %llu bytes to %p, outside of all arguments", (unsigned long long)bytes, p);
  fault("a global access of %llu bytes at byte %lld of argument %s, which has %llu", (unsigned long long)bytes,
        (long long)(at - nearest->begin), nearest->name, (unsigned long long)(nearest->end - nearest->begin));
}

void run_store(BulkStore& store, bool is_read_only) {
  if (!store.is_read) {
    store.is_read = true;
    store.read(store);
  }
  if (is_read_only || store.is_written) return;
  store.is_written = true;
  store.write(store);
}

void check_global(const void* p, u32 bytes, bool is_aligned) {
  current().pc = EMU_HERE;
  if (is_aligned && (uintptr_t)p % bytes) fault("a global access of %u bytes to %p, which is not aligned to them", bytes, p);
  check_inside(p, bytes);
}

// ------------------------------------------------------------------ tensor copies
void tensor_load(u32 dst, const void* map, u32 bar, u32 mask, bool is_multicast, u32 rank, const i32* at) {
  Fiber& fiber = current();
  fiber.pc = EMU_HERE;
  preempt();
  const Box box = make_box(map, rank, at, "TMA load");
  std::erase(fiber.cta->fetched, asked_for(box));
  // A map bounds rows exactly, as far as it has extents: what it reads beyond an argument may lie in no memory at all.
  each_row(box, [&](u32, const u8* from, u32 begin, u32 end) {
    if (from) check_inside(from + begin, end - begin, 0);
  });
  auto fill = [box](Cta& cta, u32 offset) {
    each_row(box, [&](u32 row, const u8* from, u32 begin, u32 end) {
      u8 bytes[2048] = {};
      if (from) memcpy(bytes + begin, from + begin, end - begin);
      for (u32 i = 0; i < box.inner(); i += 16) {
        const u32 to = swizzled(SHARED_BASE + offset + row + i, box.map.swizzle) - SHARED_BASE;
        memcpy(cta.shared + to, bytes + i, 16);
      }
    });
  };
  issue_load(dst, bar, box.bytes, box.span(), 128, targets(mask, is_multicast, "TMA load"), "TMA load", fill);
}
void tensor_store(const void* map, u32 src, u32 rank, const i32* at, bool is_add) {
  Fiber& fiber = current();
  fiber.pc = EMU_HERE;
  preempt();
  const char* what = is_add ? "TMA reduce" : "TMA store";
  const Box box = make_box(map, rank, at, what);
  for (u32 i = 0; i < rank; ++i) {
    if (at[i] < 0) fault("%s: starts %d before coordinate 0 of dimension %u", what, -at[i], i);
  }
  if (box.pitch != box.inner()) {
    fault("%s: an inner box of %u bytes under a swizzle of %u: not emulated", what, box.inner(), box.map.swizzle);
  }
  auto write = [box, is_add](const u8* data) {
    each_row(box, [&](u32 row, u8* to, u32 begin, u32 end) {
      // As an H200 does: whole 16 bytes, also where the extent ends between.
      end = std::min<u32>((end + 15) / 16 * 16, box.map.box[0] * box.map.elem_bytes);
      if (to) put_bytes(to + begin, data + row + begin, end - begin, is_add, (Type)box.map.type);
    });
  };
  issue_store(src, box.bytes, 128, box.map.swizzle, what, write);
}
void tensor_prefetch(const void* map, u32 rank, const i32* at) {
  current().pc = EMU_HERE;
  current().cta->fetched.push_back(asked_for(make_box(map, rank, at, "TMA prefetch")));
}

// ------------------------------------------------------------------ one-dimensional copies
void bulk_load(u32 dst, const void* src, u32 bytes, u32 bar, u32 mask, bool is_multicast) {
  current().pc = EMU_HERE;
  preempt();
  if (bytes % 16 || bytes == 0 || (uintptr_t)src % 16) fault("bulk load of %u bytes from %p", bytes, src);
  check_inside(src, bytes);
  auto fill = [src, bytes](Cta& cta, u32 offset) { memcpy(cta.shared + offset, src, bytes); };
  issue_load(dst, bar, bytes, bytes, 16, targets(mask, is_multicast, "bulk load"), "bulk load", fill);
}
void bulk_push(u32 dst, u32 src, u32 bytes, u32 bar) {
  current().pc = EMU_HERE;
  preempt();
  if (bytes % 16 || bytes == 0) fault("bulk push of %u bytes", bytes);
  const Place from = locate(src, bytes, false, "bulk push"), to = locate(dst, bytes, true, "bulk push");
  for (u32 g = from.offset / 16; g < (from.offset + bytes) / 16; ++g) {
    check_async_read(*from.cta, g, "bulk push");
    ++from.cta->store_reads[g];
  }
  auto fill = [from, bytes](Cta& cta, u32 offset) {
    memcpy(cta.shared + offset, from.cta->shared + from.offset, bytes);
    for (u32 g = from.offset / 16; g < (from.offset + bytes) / 16; ++g) --from.cta->store_reads[g];
  };
  issue_load(dst, bar, bytes, bytes, 16, {to.cta}, "bulk push", fill);
}
void bulk_store(void* dst, u32 src, u32 bytes) {
  current().pc = EMU_HERE;
  preempt();
  if (bytes % 16 || bytes == 0 || (uintptr_t)dst % 16) fault("bulk store of %u bytes to %p", bytes, dst);
  check_inside(dst, bytes);
  issue_store(src, bytes, 16, 0, "bulk store", [=](const u8* data) { memcpy(dst, data, bytes); });
}
void bulk_add(void* dst, u32 src, u32 bytes, Type type) {
  current().pc = EMU_HERE;
  preempt();
  if (bytes % 16 || bytes == 0 || (uintptr_t)dst % 16) fault("bulk reduction of %u bytes to %p", bytes, dst);
  check_inside(dst, bytes);
  issue_store(src, bytes, 16, 0, "bulk reduction", [=](const u8* data) { put_bytes((u8*)dst, data, bytes, true, type); });
}
void bulk_commit() {
  Fiber& fiber = current();
  fiber.store_groups.push_back(std::move(fiber.open_stores));
  fiber.open_stores.clear();
}
void bulk_wait(u32 pending, bool is_read_only) {
  Fiber& fiber = current();
  fiber.pc = EMU_HERE;
  const size_t num = fiber.store_groups.size();
  for (size_t i = 0; i + pending < num; ++i) {
    for (auto& store : fiber.store_groups[i]) run_store(*store, is_read_only);
  }
  while (!fiber.store_groups.empty()) {      // groups that are complete need no more waits
    bool is_complete = true;
    for (auto& store : fiber.store_groups.front()) is_complete = is_complete && store->is_written;
    if (!is_complete) break;
    fiber.store_groups.pop_front();
  }
}

// ------------------------------------------------------------------ cp.async
void run_copy(AsyncCopy& copy) {
  if (copy.is_done) return;
  copy.is_done = true;
  Cta& cta = *copy.by->cta;
  std::vector<u8> data(copy.bytes, 0);
  if (copy.source_bytes) memcpy(data.data(), copy.src, copy.source_bytes);
  end_load(cta, copy.dst, copy.bytes);
  generic_write(*copy.by, cta, copy.dst, data.data(), copy.bytes);
}
void cp_async(u32 dst, const void* src, u32 bytes, u32 source_bytes) {
  Fiber& fiber = current();
  fiber.pc = EMU_HERE;
  const Place place = locate(dst, bytes, false, "cp.async");
  check_shared(*place.cta, place.offset, bytes, "cp.async");
  if (source_bytes && (uintptr_t)src % bytes) fault("cp.async of %u bytes from %p", bytes, src);
  check_inside(src, source_bytes);
  begin_load(*place.cta, place.offset, bytes, "cp.async");
  auto copy = std::make_shared<AsyncCopy>();
  copy->dst = place.offset;
  copy->bytes = bytes;
  copy->src = src;
  copy->source_bytes = source_bytes;
  copy->by = &fiber;
  fiber.open_copies.push_back(copy);
  add_background([copy] { run_copy(*copy); }, [copy] { return copy->is_done; });
}
void cp_async_commit() {
  Fiber& fiber = current();
  fiber.copy_groups.push_back(std::move(fiber.open_copies));
  fiber.open_copies.clear();
}
void cp_async_wait(u32 pending) {
  Fiber& fiber = current();
  while (fiber.copy_groups.size() > pending) {
    for (auto& copy : fiber.copy_groups.front()) run_copy(*copy);
    fiber.copy_groups.pop_front();
  }
}

}  // namespace emu
