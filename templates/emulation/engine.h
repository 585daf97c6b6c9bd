// engine.h - the state of the emulated machine. Private to the engine.
#pragma once
#include <dlfcn.h>
#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>
#include "machine.h"
#include "numbers.h"

namespace emu {

struct Fiber;
struct Warp;
struct Cta;
struct Cluster;

// ------------------------------------------------------------------ barriers
// An mbarrier as the hardware has it, and who waits for which phase.
struct MBarrier {
  u32 count = 0, pending = 0;
  i64 tx = 0;
  u64 phase = 0;                          // phases completed
  Fiber* init_by = nullptr;
  u32 init_fences = 0;                    // initialisation fences of `init_by` at the time of the init
  std::vector<Fiber*> waiters;
  std::vector<Fiber*> unobserved;         // woken by the last phase, not run since
};
struct NamedBarrier {
  u32 expected = 0, arrived = 0;
  std::vector<Fiber*> waiters, arrivals;

};

// ------------------------------------------------------------------ asynchronous work
// One store or reduction from shared memory. It reads at some time after its issue, and writes later still.
struct BulkStore {
  std::function<void(BulkStore&)> read, write;
  std::vector<u8> data;
  bool is_read = false, is_written = false;
};
using BulkGroup = std::vector<std::shared_ptr<BulkStore>>;
struct AsyncCopy {                        // cp.async
  u32 dst, bytes;
  std::vector<u8> data;                   // of the source, which the thread may not change
  const void* src;
  u32 source_bytes;
  bool is_done = false;
  Fiber* by;
};
using CopyGroup = std::vector<std::shared_ptr<AsyncCopy>>;
struct Agent {
  std::function<void()> run;
  std::function<bool()> is_done;
};

// ------------------------------------------------------------------ wgmma: one warp's quarter of an instruction
struct Flight {                           // accumulator registers that instructions in flight will write
  std::vector<u32*> d;                    // first register of each lane
  u32 num_regs;
  std::vector<u32> values;                // [lane][register]
  u32 uses = 0;
};
struct WarpMultiply {
  const Multiply* form;
  u64 a, b;
  u32 deposited = 0, num_acc = 0;
  bool accumulate;
  u32* d[32];
  u32 a_regs[32][4];
  Flight* flight = nullptr;
  std::vector<u32> reads;                 // 16-byte granules of its operands
  bool is_issued = false, is_done = false;
  bool is_fenced = true;                  // every lane fenced since its last wait
};

// ------------------------------------------------------------------ threads
enum class Wait { none, mbarrier, named, block, cluster, warp, wgmma };

struct Fiber : Thread {
  void* sp = nullptr;
  u8* stack = nullptr;
  Cta* cta = nullptr;
  Warp* warp = nullptr;
  u32 lane = 0, id = 0;                   // id: in the cluster
  bool is_done = false, is_ready = false;
  // What it waits for, and where in the text.
  Wait wait = Wait::none;
  u32 wait_on = 0, wait_parity = 0;
  u64 wait_phase = 0;
  const void* pc = nullptr;
  bool wait_completed = false;
  MBarrier* observes = nullptr;
  u64 result = 0;                         // of a warp collective
  u32 async_fences = 0, init_fences = 0;  // fences executed
  u64 fenced_at = 0;                      // when the last one of the async proxy was
  u32 named_arrivals = 0;                 // bit per named barrier that counts it in its present round
  bool has_cluster_arrived = false;
  u64 cluster_phase = 0;
  BulkGroup open_stores;
  std::deque<BulkGroup> store_groups;
  CopyGroup open_copies;
  std::deque<CopyGroup> copy_groups;
  // wgmma: instructions issued, the ends of the committed groups, whether a fence came since the last wait
  u64 num_multiplies = 0, num_waited = 0;
  std::deque<u64> multiply_groups;
  bool is_fenced = false;
};

struct Collective {
  u32 kind, mask, arrived = 0;
  u64 values[32];
  u32 operands[32];
  u32 widths[32];
};

struct Warp {
  Fiber* lanes[32] = {};
  u32 num_lanes = 0, num_done = 0;
  std::vector<Collective> collectives;
  u64 exchanged[32];
  std::deque<WarpMultiply> multiplies;    // the first one is number `first_multiply`
  u64 first_multiply = 0, num_executed = 0;
  std::vector<std::unique_ptr<Flight>> flights;
  std::vector<Fiber*> multiply_waiters;
};

// ------------------------------------------------------------------ memory
// Last generic writer of 4 bytes, its fences by then, and when it was among all writes and fences.
struct Writer { u32 fiber; u32 fences; u64 at = 0; };
constexpr u32 NO_FIBER = 0xffffffffu;

using BoxKey = std::array<i64, 7>;        // of a tensor: base, bytes, coordinates
struct Cta {
  Cluster* cluster = nullptr;
  u32 rank = 0, shared_bytes = 0;
  std::vector<u8> storage;
  u8* shared = nullptr;                   // dynamic shared memory, aligned to 1024
  std::vector<Writer> writers;            // of each 4 bytes
  std::vector<u16> loads;                 // copies in flight to each 4 bytes
  std::vector<u16> store_reads, multiply_reads;   // asynchronous reads in flight, of each 16 bytes
  std::map<u32, MBarrier> barriers;       // by offset
  std::vector<bool> is_barrier;           // of each 8 bytes
  NamedBarrier named[16];
  std::deque<Warp> warps;
  std::vector<Fiber*> fibers;
  u32 num_done = 0;
  std::vector<std::shared_ptr<BulkStore>> stores;
  u32 loads_in_flight = 0;
  std::vector<BoxKey> fetched;            // boxes asked to be in L2 and not loaded since
};
struct Cluster {
  std::vector<std::unique_ptr<Cta>> ctas;
  std::vector<std::unique_ptr<Fiber>> fibers;
  u32 arrived = 0, num_done = 0;
  u64 phase = 0;
  std::vector<Fiber*> waiters;
};

struct Launch {
  Dim grid;
  u32 num_threads, shared_bytes, cluster_size, resident_clusters;
  u64 seed;
  double seconds;
};

struct Region { u64 begin, end; const char* name; };

struct Machine {
  Launch launch;
  std::vector<Region> arguments;            // the arrays of the launch
  std::vector<u64> tables;                  // addresses that arguments hold, in order
  void (*entry)(void**) = nullptr;
  void** params = nullptr;
  std::vector<std::unique_ptr<Cluster>> clusters;
  std::deque<Fiber*> ready;
  // Copies that somebody may wait for on an mbarrier; work that its own thread's wait does at the latest.
  std::deque<Agent> arrivals, background;
  size_t background_limit = 0;                // more of it, and what is done is dropped
  std::vector<u8*> stacks;
  u64 random = 0, ticks = 0, progress = 0, leaps = 0;
  u32 agent_period = 0, preempt_period = 0;   // 0: never before it must be
  bool runs_background = false;               // ahead of its wait
  u32 elected = 0;                            // the lane that elect.sync picks
  bool is_random = false;
  void* scheduler_sp = nullptr;
  std::string report;
  bool has_fault = false;
  sigjmp_buf escape;
};
extern Machine machine;

inline Fiber& current() { return *static_cast<Fiber*>(self); }

// Scheduling.
void block(Wait wait, u32 on, const void* pc);   // until somebody calls wake
void wake(Fiber* fiber);
void add_arrival(std::function<void()> run);
void add_background(std::function<void()> run, std::function<bool()> is_done);
u64 draw(u64 below);
std::string place_of(const Fiber& fiber);
std::string describe(const Fiber& fiber);
void note_progress();
void preempt();                                  // another thread may run here, as the seed has it

// Warp collectives: waits for the other lanes; also gives every lane the values of all.
void warp_converge(const void* pc);
void exchange(u64 value, u64* values, const void* pc);

// Memory.
struct Place { Cta* cta; u32 offset; };
Place locate(u32 addr, u32 bytes, bool is_cluster, const char* what);
// The hardware permutes 16-byte chunks by address bits; `swizzle` in bytes, 0: none.
inline u32 swizzled(u32 addr, u32 swizzle) {
  switch (swizzle) {
    case 128: return addr ^ (addr >> 7 & 7) << 4;
    case 64: return addr ^ (addr >> 7 & 3) << 4;
    case 32: return addr ^ (addr >> 7 & 1) << 4;
    default: return addr;
  }
}
std::string name_of(const Cta& cta, u32 offset);
void check_async_read(Cta& cta, u32 granule, const char* what, u64 fenced_at = 0);
void begin_load(Cta& cta, u32 offset, u32 bytes, const char* what);
void end_load(Cta& cta, u32 offset, u32 bytes);
void generic_write(Fiber& by, Cta& cta, u32 offset, const void* from, u32 bytes);

// Barriers.
MBarrier& barrier_at(Cta& cta, u32 offset, const char* what);
MBarrier& barrier_for(u32 bar, bool is_cluster, const char* what, Cta** cta = nullptr);
void complete_tx(Cta& cta, u32 offset, u32 bytes);
void arrive_on(Cta& cta, u32 offset, u32 count, const char* what);
void thread_exits(Fiber& fiber);
void run_store(BulkStore& store, bool is_read_only);
void run_copy(AsyncCopy& copy);
void execute_multiplies(Warp& warp, u64 until);

#define EMU_HERE __builtin_return_address(0)

}  // namespace emu
