// scheduler.cpp - threads as fibers on one host thread, agents, the report of a stall or a fault.
#include <algorithm>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <sys/mman.h>
#include <sys/time.h>
#include <ucontext.h>
#include "engine.h"

namespace emu {

Thread* self = nullptr;
Machine machine;

namespace {

constexpr size_t STACK_BYTES = 256 << 10;
constexpr size_t BACKGROUND_LIMIT = 4096;  // asynchronous work kept before what is done is dropped
constexpr u32 IDLE_ROUNDS = 3;             // rounds of failed waits without any event before a stall is reported

u32 idle_wakes = 0;

// ------------------------------------------------------------------ context switch
#if defined(__x86_64__)
extern "C" void emu_switch(void** from, void* to);
__asm__(
    ".text\n.p2align 4\n.type emu_switch,@function\nemu_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n"
    ".size emu_switch,.-emu_switch\n");
void switch_to(void** from, void* to) { emu_switch(from, to); }
void* first_context(u8* stack, void (*start)()) {
  void** top = (void**)(stack + STACK_BYTES - 56);
  *top = nullptr;                          // return address of `start`, never used
  *--top = (void*)start;
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  return top;
}
#else
void switch_to(void** from, void* to) {
  ucontext_t here;
  *from = &here;
  swapcontext(&here, (ucontext_t*)to);
}
void* first_context(u8* stack, void (*start)()) {
  ucontext_t* context = (ucontext_t*)stack;
  getcontext(context);
  context->uc_stack.ss_sp = stack + 4096;
  context->uc_stack.ss_size = STACK_BYTES - 4096;
  context->uc_link = nullptr;
  makecontext(context, start, 0);
  return context;
}
#endif

void to_scheduler() { switch_to(&current().sp, machine.scheduler_sp); }

void run_fiber() {
  machine.entry(machine.params);
  Fiber& fiber = current();
  thread_exits(fiber);
  fiber.is_done = true;
  ++machine.progress;
  to_scheduler();
  __builtin_unreachable();
}

u8* new_stack() {
  if (!machine.stacks.empty()) {
    u8* stack = machine.stacks.back();
    machine.stacks.pop_back();
    return stack;
  }
  void* p = mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    machine.report = "no memory for the stacks of the threads";
    siglongjmp(machine.escape, 1);
  }
  return (u8*)p;
}

// ------------------------------------------------------------------ clusters
std::unique_ptr<Cta> new_cta(Cluster* cluster, u32 rank, Dim block) {
  const Launch& launch = machine.launch;
  auto cta = std::make_unique<Cta>();
  cta->cluster = cluster;
  cta->rank = rank;
  cta->shared_bytes = (launch.shared_bytes + 15) / 16 * 16;
  cta->storage.assign(cta->shared_bytes + 2048, 0xff);   // NaN in every float type
  cta->shared = (u8*)(((uintptr_t)cta->storage.data() + 1023) / 1024 * 1024);
  cta->writers.assign(cta->shared_bytes / 4, Writer{NO_FIBER, 0});
  cta->loads.assign(cta->shared_bytes / 4, 0);
  cta->store_reads.assign(cta->shared_bytes / 16, 0);
  cta->multiply_reads = cta->store_reads;
  cta->is_barrier.assign(cta->shared_bytes / 8, false);
  cta->warps.resize((launch.num_threads + 31) / 32);
  for (u32 t = 0; t < launch.num_threads; ++t) {
    auto fiber = std::make_unique<Fiber>();
    fiber->thread = {t, 0, 0};
    fiber->block = block;
    fiber->num_threads = {launch.num_threads, 1, 1};
    fiber->num_blocks = launch.grid;
    fiber->cta = cta.get();
    fiber->warp = &cta->warps[t / 32];
    fiber->lane = t % 32;
    fiber->id = (u32)cluster->fibers.size();
    fiber->warp->lanes[t % 32] = fiber.get();
    ++fiber->warp->num_lanes;
    fiber->stack = new_stack();
    fiber->sp = first_context(fiber->stack, run_fiber);
    fiber->is_ready = true;
    machine.ready.push_back(fiber.get());
    cta->fibers.push_back(fiber.get());
    cluster->fibers.push_back(std::move(fiber));
  }
  return cta;
}

void start_cluster(u64 index) {
  const Dim grid = machine.launch.grid;
  const u32 size = machine.launch.cluster_size, across = grid.x / size;
  auto cluster = std::make_unique<Cluster>();
  const u32 x = (u32)(index % across) * size, y = (u32)(index / across % grid.y), z = (u32)(index / across / grid.y);
  for (u32 rank = 0; rank < size; ++rank) {
    cluster->ctas.push_back(new_cta(cluster.get(), rank, {x + rank, y, z}));
  }
  machine.clusters.push_back(std::move(cluster));
}

void drop_done(std::deque<Agent>& agents) {
  std::erase_if(agents, [](const Agent& agent) { return agent.is_done(); });
}

void end_cluster(size_t i) {
  for (auto& fiber : machine.clusters[i]->fibers) machine.stacks.push_back(fiber->stack);
  for (auto& cta : machine.clusters[i]->ctas) {
    for (auto& store : cta->stores) run_store(*store, false);
  }
  drop_done(machine.background);           // what is done may refer to the cluster
  machine.clusters.erase(machine.clusters.begin() + (long)i);
}

// ------------------------------------------------------------------ choices
void run_one(std::deque<Agent>& agents) {
  const size_t i = machine.is_random ? draw(agents.size()) : 0;
  if (i) std::swap(agents[i], agents.front());
  Agent agent = std::move(agents.front());
  agents.pop_front();
  if (agent.is_done && agent.is_done()) return;
  agent.run();
  note_progress();
}

// Asynchronous work that runs now, if any: when no thread can go on, and as the seed has it.
bool run_agent(bool is_idle) {
  const bool is_due = machine.agent_period && draw(machine.agent_period) == 0;
  if (is_due && machine.runs_background && !machine.background.empty() && (machine.arrivals.empty() || draw(2))) {
    run_one(machine.background);
    return true;
  }
  if (machine.arrivals.empty() || !(is_idle || is_due)) return false;
  run_one(machine.arrivals);
  return true;
}

Fiber* next_fiber() {
  const size_t i = machine.is_random ? draw(machine.ready.size()) : 0;
  Fiber* fiber = machine.ready[i];
  if (i) std::swap(machine.ready[i], machine.ready.front());
  machine.ready.pop_front();
  return fiber;
}

// Threads in a `try_wait` may come back without success, as the hardware allows; without any event in between,
// that is a stall.
bool retry_waits() {
  bool any = false;
  if (++idle_wakes > IDLE_ROUNDS) return false;
  for (auto& cluster : machine.clusters) {
    for (auto& fiber : cluster->fibers) {
      if (fiber->is_done || fiber->wait != Wait::mbarrier) continue;
      fiber->wait_completed = false;
      wake(fiber.get());
      any = true;
    }
  }
  machine.leaps += any;
  return any;
}

std::string stall_report() {
  std::string out = "deadlock: no thread can go on";
  std::map<std::string, std::vector<u32>> who;
  std::vector<std::string> order;
  for (auto& cluster : machine.clusters) {
    for (auto& cta : cluster->ctas) {
      for (Fiber* fiber : cta->fibers) {
        if (fiber->is_done) continue;
        const std::string text = "block " + std::to_string(fiber->block.x) + "," + std::to_string(fiber->block.y) + "," +
                                 std::to_string(fiber->block.z) + " threads %s: " + describe(*fiber);
        if (who[text].empty()) order.push_back(text);
        who[text].push_back(fiber->thread.x);
      }
    }
  }
  for (const std::string& text : order) {
    std::string ranges;
    const auto& list = who[text];
    for (size_t i = 0; i < list.size();) {
      size_t j = i;
      while (j + 1 < list.size() && list[j + 1] == list[j] + 1) ++j;
      ranges += (ranges.empty() ? "" : ",") + std::to_string(list[i]) + (j > i ? "-" + std::to_string(list[j]) : "");
      i = j + 1;
    }
    std::string line = text;
    line.replace(line.find("%s"), 2, ranges);
    out += "\n  " + line;
  }
  return out;
}

void resume(Fiber* fiber) {
  fiber->is_ready = false;
  self = fiber;
  switch_to(&machine.scheduler_sp, fiber->sp);
  self = nullptr;
}

void schedule() {
  const Launch& launch = machine.launch;
  const u64 total = (u64)launch.grid.x / launch.cluster_size * launch.grid.y * launch.grid.z;
  u64 started = 0;
  for (;;) {
    for (size_t i = 0; i < machine.clusters.size();) {
      Cluster& cluster = *machine.clusters[i];
      if (cluster.num_done == cluster.fibers.size()) end_cluster(i);
      else ++i;
    }
    while (started < total && machine.clusters.size() < launch.resident_clusters) start_cluster(started++);
    if (machine.clusters.empty()) break;
    ++machine.ticks;
    const bool is_idle = machine.ready.empty();
    if (run_agent(is_idle)) continue;
    if (is_idle) {
      if (retry_waits()) continue;
      machine.report = stall_report();
      machine.has_fault = true;
      return;
    }
    resume(next_fiber());
    if (machine.has_fault) return;
  }
}

// ------------------------------------------------------------------ host signals
void on_signal(int number, siginfo_t* info, void* context) {
  const char* what = number == SIGVTALRM ? "the kernel ran too long (a loop without a wait?)"
                                         : "access to an address outside every argument";
  char text[160];
  const void* pc = nullptr;
#if defined(__x86_64__)
  pc = (const void*)((ucontext_t*)context)->uc_mcontext.gregs[REG_RIP];
#endif
  snprintf(text, sizeof text, "%s: address %p [pc %p]", what, number == SIGVTALRM ? nullptr : info->si_addr, pc);
  machine.report = text;
  if (self) machine.report += "\n  " + place_of(current());
  machine.has_fault = true;
  siglongjmp(machine.escape, 1);
}

struct Signals {
  struct sigaction segv, bus, alarm;
  stack_t stack;
  std::vector<u8> memory = std::vector<u8>(64 << 10);
  explicit Signals(double seconds) {
    stack_t mine = {};
    mine.ss_sp = memory.data();
    mine.ss_size = memory.size();
    sigaltstack(&mine, &stack);
    struct sigaction action = {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigaction(SIGSEGV, &action, &segv);
    sigaction(SIGBUS, &action, &bus);
    sigaction(SIGVTALRM, &action, &alarm);
    itimerval timer = {};
    timer.it_value.tv_sec = (time_t)seconds;
    timer.it_value.tv_usec = (suseconds_t)((seconds - (double)(time_t)seconds) * 1e6);
    setitimer(ITIMER_VIRTUAL, &timer, nullptr);
  }
  ~Signals() {
    const itimerval off = {};
    setitimer(ITIMER_VIRTUAL, &off, nullptr);
    sigaction(SIGSEGV, &segv, nullptr);
    sigaction(SIGBUS, &bus, nullptr);
    sigaction(SIGVTALRM, &alarm, nullptr);
    sigaltstack(&stack, nullptr);
  }
};

void reset(const Launch& launch) {
  machine.launch = launch;
  machine.random = launch.seed * 0x9e3779b97f4a7c15ull + 1;
  machine.is_random = launch.seed != 0;
  static const u32 agent_periods[] = {0, 1, 8, 64, 512}, preempt_periods[] = {0, 4, 16, 64};
  machine.agent_period = machine.is_random ? agent_periods[draw(5)] : 0;
  machine.runs_background = machine.is_random && draw(3) != 0;
  machine.preempt_period = machine.is_random ? preempt_periods[draw(4)] : 0;
  machine.elected = machine.is_random ? (u32)draw(32) : 0;
  machine.ticks = machine.progress = machine.leaps = 0;
  machine.has_fault = false;
  machine.report.clear();
  machine.background_limit = BACKGROUND_LIMIT;
  idle_wakes = 0;
}

}  // namespace

// ------------------------------------------------------------------ what the rest of the engine uses
u64 draw(u64 below) {                       // xorshift64*
  u64& x = machine.random;
  x ^= x >> 12;
  x ^= x << 25;
  x ^= x >> 27;
  return below ? (x * 0x2545f4914f6cdd1dull >> 33) % below : 0;
}

void note_progress() {
  ++machine.progress;
  idle_wakes = 0;
}

void wake(Fiber* fiber) {
  fiber->wait = Wait::none;
  if (fiber->is_ready || fiber->is_done) return;
  fiber->is_ready = true;
  machine.ready.push_back(fiber);
}

void block(Wait wait, u32 on, const void* pc) {
  Fiber& fiber = current();
  fiber.wait = wait;
  fiber.wait_on = on;
  fiber.pc = pc;
  to_scheduler();
}

void step() {
  Fiber& fiber = current();
  fiber.is_ready = true;
  machine.ready.push_back(&fiber);
  to_scheduler();
}

u64 clock() {
  step();
  return machine.ticks;
}

u64 global_timer() {
  constexpr u64 LEAP_NS = 1ull << 36;       // longer than any wait lasts
  return 1 + machine.ticks + machine.leaps * LEAP_NS;
}

void add_arrival(std::function<void()> run) { machine.arrivals.push_back({std::move(run), nullptr}); }
void add_background(std::function<void()> run, std::function<bool()> is_done) {
  if (machine.background.size() > machine.background_limit) {
    drop_done(machine.background);
    machine.background_limit = std::max(BACKGROUND_LIMIT, 2 * machine.background.size());
  }
  machine.background.push_back({std::move(run), std::move(is_done)});
}

void preempt() {
  if (machine.preempt_period && draw(machine.preempt_period) == 0) step();
}

std::string place_of(const Fiber& fiber) {
  char text[160];
  snprintf(text, sizeof text, "block %u,%u,%u thread %u (warp %u, lane %u)", fiber.block.x, fiber.block.y, fiber.block.z,
           fiber.thread.x, fiber.thread.x / 32, fiber.lane);
  return text;
}

void fault(const char* format, ...) {
  char text[1024];
  va_list list;
  va_start(list, format);
  vsnprintf(text, sizeof text, format, list);
  va_end(list);
  machine.report = text;
  machine.has_fault = true;
  if (self) {
    char pc[64];
    snprintf(pc, sizeof pc, " [pc %p]", current().pc);
    machine.report += "\n  by " + place_of(current()) + pc;
  }
  siglongjmp(machine.escape, 1);
}

}  // namespace emu

// The arrays of the next launch, and addresses that these hold.
extern "C" void emu_memory(const emu::Region* arguments, size_t count, const emu::u64* tables, size_t num_tables) {
  emu::machine.arguments.assign(arguments, arguments + count);
  emu::machine.tables.assign(tables, tables + num_tables);
}

// Runs a grid. Returns 0, or 1 with a report in `text`.
extern "C" int emu_launch(const emu::Launch* launch, void (*entry)(void**), void** params, char* text, size_t size) {
  using emu::machine;
  emu::reset(*launch);
  machine.entry = entry;
  machine.params = params;
  {
    emu::Signals signals(launch->seconds);
    if (sigsetjmp(machine.escape, 1) == 0) emu::schedule();
  }
  emu::self = nullptr;
  for (auto& cluster : machine.clusters) {
    for (auto& fiber : cluster->fibers) machine.stacks.push_back(fiber->stack);
  }
  machine.clusters.clear();
  machine.ready.clear();
  machine.arrivals.clear();
  machine.background.clear();
  snprintf(text, size, "%s", machine.report.c_str());
  return machine.has_fault;
}
