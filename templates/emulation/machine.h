// machine.h - what translated kernel text calls: the machine of the emulation, one function per kind of instruction.
// Every function is executed by the running thread (a fiber) and may hand control to another one.
// Shared addresses are those of the kernel: u32, own block from SHARED_BASE on, block r of the cluster from
// (r + 1) * CLUSTER_WINDOW on. A violated rule ends the run with a report.
#pragma once

namespace emu {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;
using i64 = long long;

constexpr u32 SHARED_BASE = 1024;           // the hardware keeps the first 1024 bytes
constexpr u32 CLUSTER_WINDOW = 1u << 24;
constexpr u32 FULL_MASK = 0xffffffffu;

struct Dim { u32 x, y, z; };

// The identity of a thread; `self` is the running one.
struct Thread { Dim thread, block, num_threads, num_blocks; };
extern Thread* self;

// ------------------------------------------------------------------ control
[[noreturn]] void fault(const char* format, ...);
void step();                                  // another thread may run here
u64 clock();
u64 global_timer();                           // nanoseconds; leaps when no thread can go on

// ------------------------------------------------------------------ warp
enum class Shuffle { idx, up, down, bfly };
enum class Reduce { add_i, add_u, max_i, max_u, min_i, min_u, and_b, or_b, xor_b };
u64 shuffle(Shuffle kind, u32 mask, u64 bits, u32 operand, u32 width);
u32 reduce(Reduce kind, u32 mask, u32 value);
u32 ballot(u32 mask, bool value);
void warp_sync(u32 mask);
bool elect(u32 mask);

// ------------------------------------------------------------------ barriers
void block_sync();
void named_sync(u32 id, u32 threads);
void named_arrive(u32 id, u32 threads);
void cluster_arrive();
void cluster_wait();
u32 cluster_rank();
u32 cluster_size();
void mbarrier_init(u32 bar, u32 count);
void mbarrier_inval(u32 bar);
void mbarrier_init_fence();
void mbarrier_arrive(u32 bar, u32 count, bool is_cluster);
void mbarrier_expect_tx(u32 bar, u32 bytes, bool is_cluster);
void mbarrier_arrive_cp_async(u32 bar, bool is_noinc);
bool mbarrier_test_wait(u32 bar, u32 parity);
bool mbarrier_try_wait(u32 bar, u32 parity);

// ------------------------------------------------------------------ shared memory
u8* dynamic_shared();
u32 shared_address(const void* p);
u32 mapa(u32 addr, u32 cta);
void load(void* to, u32 addr, u32 bytes, bool is_cluster);
void store(u32 addr, const void* from, u32 bytes, bool is_cluster);
void store_async(u32 addr, const void* from, u32 bytes, u32 bar);
void load_matrix(u32 addr, u32* const* regs, u32 num, bool is_transposed);
void store_matrix(u32 addr, const u32* regs, u32 num, bool is_transposed);
void warp_mma(float* d, const u32* a, const u32* b, bool is_bf16);  // mma.m16n8k16, of f16 else
void warp_mma(u32* d, const u32* a, const u32* b, bool is_bf16);    // with sums in f16
void fence_async();                           // fence.proxy.async
void fence();                                 // fence.acq_rel

// ------------------------------------------------------------------ global memory
// Ends the run where an access is not aligned to its size, or lies outside of all arguments.
void check_global(const void* p, u32 bytes, bool is_aligned);

// Atomic operations: what the address holds, before; the new value is `apply(old)`. Another thread may run first.
void before_atomic();
u8* atomic_shared(u32 addr, u32 bytes, bool is_cluster);

// ------------------------------------------------------------------ copies by the block's engines
enum class Type : u8 { u8_, u16_, u32_, i32_, u64_, i64_, f16, f32, f64, bf16 };
void cp_async(u32 dst, const void* src, u32 bytes, u32 source_bytes);
void cp_async_commit();
void cp_async_wait(u32 pending);
void tensor_load(u32 dst, const void* map, u32 bar, u32 mask, bool is_multicast, u32 rank, const i32* at);
void tensor_store(const void* map, u32 src, u32 rank, const i32* at, bool is_add);
void tensor_prefetch(const void* map, u32 rank, const i32* at);
void bulk_load(u32 dst, const void* src, u32 bytes, u32 bar, u32 mask, bool is_multicast);
void bulk_push(u32 dst, u32 src, u32 bytes, u32 bar);
void bulk_store(void* dst, u32 src, u32 bytes);
void bulk_add(void* dst, u32 src, u32 bytes, Type type);
void bulk_commit();
void bulk_wait(u32 pending, bool is_read_only);

// ------------------------------------------------------------------ warpgroup matrix multiply
enum class Operand : u8 { bf16, f16, tf32, e4m3, e5m2, s8, u8_ };
enum class Acc : u8 { f32, f16, s32 };
struct Multiply {
  u16 N, K;
  Acc acc;
  Operand a, b;
  bool a_in_regs, trans_a, trans_b;
  signed char scale_a, scale_b;
};
// `d`: the accumulator registers; `a`: 4 registers or one descriptor.
void wgmma(const Multiply* form, void* const* d, u32 num_acc, const u32* a_regs, u64 a, u64 b, bool accumulate);
void wgmma_fence();
void wgmma_commit();
void wgmma_wait(u32 pending);

}  // namespace emu
