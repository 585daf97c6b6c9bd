// barriers.cpp - warp collectives, named, block and cluster barriers, mbarriers.
#include <algorithm>
#include <cstdio>
#include "engine.h"

namespace emu {
namespace {

constexpr i64 MAX_TX = (1 << 20) - 1;
constexpr u32 MAX_COUNT = (1 << 20) - 1;

enum Kind : u32 { SHUFFLE, REDUCE, BALLOT, SYNC, EXCHANGE };
const char* const KIND_NAMES[] = {"shfl.sync", "redux.sync", "vote.sync", "bar.warp.sync", "ldmatrix or stmatrix"};

// ------------------------------------------------------------------ warp collectives
u32 source_lane(Shuffle kind, u32 lane, u32 operand, u32 width) {
  const u32 first = lane & ~(width - 1), last = first + width - 1;
  switch (kind) {
    case Shuffle::idx: return first | (operand & (width - 1));
    case Shuffle::up: return lane >= first + operand ? lane - operand : lane;
    case Shuffle::down: return lane + operand <= last ? lane + operand : lane;
    default: return (lane ^ operand) <= last ? lane ^ operand : lane;
  }
}

u32 combine(Reduce kind, u32 x, u32 y) {
  switch (kind) {
    case Reduce::add_i: case Reduce::add_u: return x + y;
    case Reduce::max_i: return (i32)x > (i32)y ? x : y;
    case Reduce::max_u: return x > y ? x : y;
    case Reduce::min_i: return (i32)x < (i32)y ? x : y;
    case Reduce::min_u: return x < y ? x : y;
    case Reduce::and_b: return x & y;
    case Reduce::or_b: return x | y;
    default: return x ^ y;
  }
}

u64 result_of(const Collective& c, u32 lane) {
  if (c.kind / 16 == SHUFFLE) {
    const u32 from = source_lane((Shuffle)(c.kind % 16), lane, c.operands[lane], c.widths[lane]);
    if (!(c.mask >> from & 1)) fault("shfl.sync: lane %u reads lane %u, which its mask %#x lacks", lane, from, c.mask);
    return c.values[from];
  }
  if (c.kind / 16 >= SYNC) return 0;
  u32 out = 0;
  bool is_first = true;
  for (u32 i = 0; i < 32; ++i) {
    if (!(c.mask >> i & 1)) continue;
    if (c.kind / 16 == BALLOT) out |= (u32)(c.values[i] & 1) << i;
    else out = is_first ? (u32)c.values[i] : combine((Reduce)(c.kind % 16), out, (u32)c.values[i]);
    is_first = false;
  }
  return out;
}

u64 collective(u32 kind, u32 mask, u64 value, u32 operand, u32 width, const void* pc) {
  Fiber& fiber = current();
  Warp& warp = *fiber.warp;
  fiber.pc = pc;
  if (!(mask >> fiber.lane & 1)) fault("%s by a lane that its mask %#x lacks", KIND_NAMES[kind / 16], mask);
  Collective* found = nullptr;
  for (Collective& c : warp.collectives) {
    if (c.mask == mask && c.kind == kind && !(c.arrived >> fiber.lane & 1)) {
      found = &c;
    } else if (c.mask & mask) {
      fault("a warp is divided: lane %u executes %s, lanes %#x wait in %s", fiber.lane, KIND_NAMES[kind / 16], c.arrived,
            KIND_NAMES[c.kind / 16]);
    }
  }
  if (!found) {
    for (u32 i = 0; i < 32; ++i) {
      if ((mask >> i & 1) && (!warp.lanes[i] || warp.lanes[i]->is_done)) {
        fault("%s waits for lane %u, which has left the kernel", KIND_NAMES[kind / 16], i);
      }
    }
    warp.collectives.push_back({});
    found = &warp.collectives.back();
    found->kind = kind;
    found->mask = mask;
  }
  found->arrived |= 1u << fiber.lane;
  found->values[fiber.lane] = value;
  found->operands[fiber.lane] = operand;
  found->widths[fiber.lane] = width;
  if (found->arrived != mask) {
    block(Wait::warp, kind / 16, pc);
    return fiber.result;
  }
  const Collective done = *found;
  warp.collectives.erase(warp.collectives.begin() + (found - warp.collectives.data()));
  if (kind / 16 == EXCHANGE) memcpy(warp.exchanged, done.values, sizeof warp.exchanged);
  for (u32 i = 0; i < 32; ++i) {
    if (!(mask >> i & 1)) continue;
    warp.lanes[i]->result = result_of(done, i);
    if (i != fiber.lane) wake(warp.lanes[i]);
  }
  note_progress();
  return fiber.result;
}

// ------------------------------------------------------------------ named barriers
void release(NamedBarrier& barrier, u32 id) {
  for (Fiber* f : barrier.arrivals) f->named_arrivals &= ~(1u << id);
  std::vector<Fiber*> woken;
  woken.swap(barrier.waiters);
  barrier.arrivals.clear();
  barrier.arrived = barrier.expected = 0;
  for (Fiber* f : woken) {
    if (f != self) wake(f);
  }
  note_progress();
}

// Whether this arrival completed the barrier.
bool arrive_named(u32 id, u32 threads, const char* what) {
  Fiber& fiber = current();
  if (id > 15) fault("%s: barrier %u does not exist (0 .. 15)", what, id);
  if (threads % 32 || threads == 0 || threads > fiber.num_threads.x) {
    fault("%s %u, %u: the count must be a multiple of 32 of the block's %u threads", what, id, threads, fiber.num_threads.x);
  }
  NamedBarrier& barrier = fiber.cta->named[id];
  if (barrier.arrived && barrier.expected != threads) {
    fault("%s %u, %u: others are there with a count of %u", what, id, threads, barrier.expected);
  }
  if (fiber.named_arrivals >> id & 1) fault("%s %u, %u: the thread arrives twice in one round", what, id, threads);
  barrier.expected = threads;
  ++barrier.arrived;
  fiber.named_arrivals |= 1u << id;
  barrier.arrivals.push_back(&fiber);
  note_progress();
  if (barrier.arrived < threads) return false;
  release(barrier, id);
  return true;
}

void complete_cluster(Cluster& cluster) {
  if (cluster.arrived == 0 || cluster.arrived < cluster.fibers.size() - cluster.num_done) return;
  cluster.arrived = 0;
  ++cluster.phase;
  std::vector<Fiber*> woken;
  woken.swap(cluster.waiters);
  for (Fiber* f : woken) wake(f);
  note_progress();
}

void complete_phase(Cta& cta, u32 offset, MBarrier& barrier) {
  if (barrier.pending || barrier.tx) return;
  if (!barrier.unobserved.empty()) {
    fault("%s completes phase %llu before %s saw that phase %llu had completed: a wait by parity would miss it",
          name_of(cta, offset).c_str(), barrier.phase, place_of(*barrier.unobserved[0]).c_str(), barrier.phase - 1);
  }
  ++barrier.phase;
  barrier.pending = barrier.count;
  std::vector<Fiber*> woken;
  woken.swap(barrier.waiters);
  for (Fiber* f : woken) {
    f->wait_completed = true;
    f->observes = &barrier;
    barrier.unobserved.push_back(f);
    wake(f);
  }
}

void check_published(Cta& cta, u32 offset, const MBarrier& barrier, const char* what) {
  if (barrier.init_by == self || barrier.init_by->init_fences != barrier.init_fences) return;
  fault("%s of %s: its initialisation was not published (fence.mbarrier_init)", what, name_of(cta, offset).c_str());
}

void erase(std::vector<Fiber*>& list, Fiber* fiber) {
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i] != fiber) continue;
    list.erase(list.begin() + (long)i);
    return;
  }
}

}  // namespace

u64 shuffle(Shuffle kind, u32 mask, u64 bits, u32 operand, u32 width) {
  return collective(SHUFFLE * 16 + (u32)kind, mask, bits, operand, width, EMU_HERE);
}
u32 reduce(Reduce kind, u32 mask, u32 value) {
  return (u32)collective(REDUCE * 16 + (u32)kind, mask, value, 0, 32, EMU_HERE);
}
u32 ballot(u32 mask, bool value) { return (u32)collective(BALLOT * 16, mask, value, 0, 32, EMU_HERE); }
void warp_sync(u32 mask) { collective(SYNC * 16, mask, 0, 0, 32, EMU_HERE); }
void warp_converge(const void* pc) { collective(SYNC * 16, FULL_MASK, 0, 0, 32, pc); }
void exchange(u64 value, u64* values, const void* pc) {
  collective(EXCHANGE * 16, FULL_MASK, value, 0, 32, pc);
  memcpy(values, current().warp->exchanged, sizeof current().warp->exchanged);
}
bool elect(u32 mask) {
  u32 lane = machine.elected;
  while (!(mask >> lane & 1)) lane = (lane + 1) % 32;
  return current().lane == lane;
}

// ------------------------------------------------------------------ block and cluster
void block_sync() {
  Fiber& fiber = current();
  fiber.pc = EMU_HERE;
  preempt();
  NamedBarrier& barrier = fiber.cta->named[0];
  ++barrier.arrived;
  note_progress();
  if (barrier.arrived >= fiber.cta->fibers.size() - fiber.cta->num_done) {
    release(barrier, 0);
  } else {
    barrier.waiters.push_back(&fiber);
    block(Wait::block, 0, EMU_HERE);
  }
}
void named_sync(u32 id, u32 threads) {
  Fiber& fiber = current();
  fiber.pc = EMU_HERE;
  preempt();
  if (arrive_named(id, threads, "bar.sync")) return;
  fiber.cta->named[id].waiters.push_back(&fiber);
  block(Wait::named, id, EMU_HERE);
}
void named_arrive(u32 id, u32 threads) {
  current().pc = EMU_HERE;
  preempt();
  arrive_named(id, threads, "bar.arrive");
}
void cluster_arrive() {
  Fiber& fiber = current();
  fiber.pc = EMU_HERE;
  preempt();
  if (fiber.has_cluster_arrived) fault("barrier.cluster.arrive twice without a wait");
  Cluster& cluster = *fiber.cta->cluster;
  fiber.has_cluster_arrived = true;
  fiber.cluster_phase = cluster.phase;
  ++cluster.arrived;
  note_progress();
  complete_cluster(cluster);
}
void cluster_wait() {
  Fiber& fiber = current();
  fiber.pc = EMU_HERE;
  if (!fiber.has_cluster_arrived) fault("barrier.cluster.wait without an arrive");
  Cluster& cluster = *fiber.cta->cluster;
  while (cluster.phase == fiber.cluster_phase) {
    cluster.waiters.push_back(&fiber);
    block(Wait::cluster, 0, EMU_HERE);
  }
  fiber.has_cluster_arrived = false;
}
u32 cluster_rank() { return current().cta->rank; }
u32 cluster_size() { return machine.launch.cluster_size; }

void thread_exits(Fiber& fiber) {
  Cta& cta = *fiber.cta;
  Cluster& cluster = *cta.cluster;
  if (!fiber.copy_groups.empty() || !fiber.open_copies.empty()) {
    for (auto& copy : fiber.open_copies) run_copy(*copy);
    for (auto& group : fiber.copy_groups) for (auto& copy : group) run_copy(*copy);
  }
  if (fiber.num_multiplies > fiber.warp->num_executed) fault("the thread leaves the kernel with a wgmma in flight");
  ++fiber.warp->num_done;
  ++cta.num_done;
  ++cluster.num_done;
  if (fiber.has_cluster_arrived && cluster.phase == fiber.cluster_phase) --cluster.arrived;
  for (u32 id = 0; id < 16; ++id) {
    if (fiber.named_arrivals >> id & 1) erase(cta.named[id].arrivals, &fiber);
  }
  NamedBarrier& barrier = cta.named[0];
  if (barrier.arrived && !barrier.expected && barrier.arrived >= cta.fibers.size() - cta.num_done) release(barrier, 0);
  complete_cluster(cluster);
  if (cta.num_done < cta.fibers.size()) return;
  if (!cta.fetched.empty()) {
    const BoxKey& box = cta.fetched[0];
    fault("the block ends without a load of the box at (%d, %d, %d) that it fetched into L2", (int)box[2], (int)box[3],
          (int)box[4]);
  }
  if (cta.loads_in_flight) fault("the block ends while copies into its shared memory are in flight");
  for (auto& store : cta.stores) {
    if (!store->is_read) fault("the block ends while a bulk store still reads its shared memory (no wait_group)");
  }
}

// ------------------------------------------------------------------ mbarrier
MBarrier& barrier_at(Cta& cta, u32 offset, const char* what) {
  auto found = cta.barriers.find(offset);
  if (found == cta.barriers.end()) fault("%s of %s, which is no initialised mbarrier", what, name_of(cta, offset).c_str());
  return found->second;
}
MBarrier& barrier_for(u32 bar, bool is_cluster, const char* what, Cta** cta) {
  const Place place = locate(bar, 8, is_cluster, what);
  MBarrier& barrier = barrier_at(*place.cta, place.offset, what);
  check_published(*place.cta, place.offset, barrier, what);
  if (cta) *cta = place.cta;
  return barrier;
}

void mbarrier_init(u32 bar, u32 count) {
  Fiber& fiber = current();
  fiber.pc = EMU_HERE;
  const Place place = locate(bar, 8, false, "mbarrier.init");
  if (count == 0 || count > MAX_COUNT) fault("mbarrier.init with a count of %u", count);
  if (place.cta->barriers.count(place.offset)) {
    fault("mbarrier.init of %s, which is one already (mbarrier.inval first)", name_of(*place.cta, place.offset).c_str());
  }
  MBarrier& barrier = place.cta->barriers[place.offset];
  barrier.count = barrier.pending = count;
  barrier.init_by = &fiber;
  barrier.init_fences = fiber.init_fences;
  place.cta->is_barrier[place.offset / 8] = true;
}
void mbarrier_inval(u32 bar) {
  Fiber& fiber = current();
  fiber.pc = EMU_HERE;
  const Place place = locate(bar, 8, false, "mbarrier.inval");
  MBarrier& barrier = barrier_at(*place.cta, place.offset, "mbarrier.inval");
  if (!barrier.waiters.empty()) fault("mbarrier.inval of %s while threads wait", name_of(*place.cta, place.offset).c_str());
  for (Fiber* f : barrier.unobserved) f->observes = nullptr;
  place.cta->barriers.erase(place.offset);
  place.cta->is_barrier[place.offset / 8] = false;
}
void mbarrier_init_fence() { ++current().init_fences; }

void arrive_on(Cta& cta, u32 offset, u32 count, const char* what) {
  MBarrier& barrier = barrier_at(cta, offset, what);
  if (barrier.pending < count) {
    fault("%s on %s: phase %llu counts %u arrivals and has had them all (%lld bytes are still expected)", what,
          name_of(cta, offset).c_str(), barrier.phase, barrier.count, barrier.tx);
  }
  barrier.pending -= count;
  note_progress();
  complete_phase(cta, offset, barrier);
}
void complete_tx(Cta& cta, u32 offset, u32 bytes) {
  MBarrier& barrier = barrier_at(cta, offset, "complete_tx");
  barrier.tx -= bytes;
  if (barrier.tx < -MAX_TX) fault("%s: the count of bytes overflows", name_of(cta, offset).c_str());
  note_progress();
  complete_phase(cta, offset, barrier);
}
void mbarrier_arrive(u32 bar, u32 count, bool is_cluster) {
  current().pc = EMU_HERE;
  preempt();
  Cta* cta;
  barrier_for(bar, is_cluster, "mbarrier.arrive", &cta);
  arrive_on(*cta, locate(bar, 8, is_cluster, "mbarrier.arrive").offset, count, "mbarrier.arrive");
}
void mbarrier_expect_tx(u32 bar, u32 bytes, bool is_cluster) {
  current().pc = EMU_HERE;
  Cta* cta;
  MBarrier& barrier = barrier_for(bar, is_cluster, "mbarrier.expect_tx", &cta);
  barrier.tx += bytes;
  if (barrier.tx > MAX_TX) fault("mbarrier.expect_tx: %lld bytes in one phase, at most %lld", barrier.tx, MAX_TX);
}
void mbarrier_arrive_cp_async(u32 bar, bool is_noinc) {
  Fiber& fiber = current();
  fiber.pc = EMU_HERE;
  Cta* cta;
  MBarrier& barrier = barrier_for(bar, false, "cp.async.mbarrier.arrive", &cta);
  if (!is_noinc) ++barrier.pending;
  auto& open = fiber.open_copies;
  open.erase(std::remove_if(open.begin(), open.end(), [](auto& copy) { return copy->is_done; }), open.end());
  CopyGroup copies = open;
  for (auto& group : fiber.copy_groups) copies.insert(copies.end(), group.begin(), group.end());
  const u32 offset = locate(bar, 8, false, "cp.async.mbarrier.arrive").offset;
  ++cta->loads_in_flight;
  auto run = [copies, cta, offset] {
    --cta->loads_in_flight;
    for (auto& copy : copies) run_copy(*copy);
    arrive_on(*cta, offset, 1, "cp.async.mbarrier.arrive");
  };
  add_arrival(run);
}
bool mbarrier_test_wait(u32 bar, u32 parity) {
  current().pc = EMU_HERE;
  step();
  return (barrier_for(bar, false, "mbarrier.test_wait").phase & 1) != (parity & 1);
}
bool mbarrier_try_wait(u32 bar, u32 parity) {
  Fiber& fiber = current();
  fiber.pc = EMU_HERE;
  preempt();
  MBarrier& barrier = barrier_for(bar, false, "mbarrier.try_wait");
  if (parity > 1) fault("mbarrier.try_wait with parity %u", parity);
  if ((barrier.phase & 1) != parity) return true;
  fiber.wait_parity = parity;
  fiber.wait_phase = barrier.phase;
  fiber.wait_completed = false;
  barrier.waiters.push_back(&fiber);
  block(Wait::mbarrier, bar - SHARED_BASE, EMU_HERE);
  if (fiber.wait_completed) {
    if (fiber.observes) erase(fiber.observes->unobserved, &fiber);
    fiber.observes = nullptr;
    return true;
  }
  erase(barrier.waiters, &fiber);
  return false;
}

// ------------------------------------------------------------------ words for reports
std::string describe(const Fiber& fiber) {
  char text[256];
  const Cta& cta = *fiber.cta;
  switch (fiber.wait) {
    case Wait::mbarrier: {
      const MBarrier& b = cta.barriers.at(fiber.wait_on);
      snprintf(text, sizeof text, "wait for %s, parity %u (phase %llu is open: %u of %u arrivals missing, %lld bytes missing)",
               name_of(cta, fiber.wait_on).c_str(), fiber.wait_parity, b.phase, b.pending, b.count, b.tx);
      break;
    }
    case Wait::named: {
      const NamedBarrier& b = cta.named[fiber.wait_on];
      snprintf(text, sizeof text, "wait in bar.sync %u (%u of %u threads have arrived)", fiber.wait_on, b.arrived, b.expected);
      break;
    }
    case Wait::block: {
      snprintf(text, sizeof text, "wait in __syncthreads (%u of %zu threads have arrived)", cta.named[0].arrived,
               cta.fibers.size() - cta.num_done);
      break;
    }
    case Wait::cluster: {
      snprintf(text, sizeof text, "wait in barrier.cluster (%u of %zu threads have arrived)", cta.cluster->arrived,
               cta.cluster->fibers.size() - cta.cluster->num_done);
      break;
    }
    case Wait::warp: snprintf(text, sizeof text, "wait for the other lanes in %s", KIND_NAMES[fiber.wait_on]); break;
    case Wait::wgmma: snprintf(text, sizeof text, "wait for the other lanes to issue a wgmma"); break;
    default: snprintf(text, sizeof text, "can go on"); break;
  }
  char pc[40];
  snprintf(pc, sizeof pc, " [pc %p]", fiber.pc);
  return std::string(text) + pc;
}

}  // namespace emu
