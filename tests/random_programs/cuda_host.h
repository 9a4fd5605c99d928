// CUDA's words for g++: each thread of a block is a fiber, which runs until it has to wait for others.
//
// Only what CUDA defines works here: lanes of a mask that do not all come to one place, a barrier that threads of a block
// meet at different places and the like end the launch with a message.
#pragma once
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

struct dim3 { unsigned x, y, z; };

namespace rk {
enum State { Ready, Meeting, Barrier, Ended };
struct Fiber {
    ucontext_t context;
    dim3 thread;
    int tid;
    State state;
    int site;
    unsigned mask;
    uint64_t value, got[32];
};
const int most_threads = 1024, stack_bytes = 1 << 17;
static Fiber fibers[most_threads];
static char* stacks;
static ucontext_t scheduler;
static Fiber* me;
static int threads, live;
static bool backwards;
static char problem[256];
static dim3 block_index, block_size, grid_size;
static void (*entry)();

inline void yield() { swapcontext(&me->context, &scheduler); }

[[noreturn]] inline void fail(const char* text, int site) {
    if (!problem[0]) snprintf(problem, sizeof problem, "%s (site %d, thread %d)", text, site, me->tid);
    while (true) {
        me->state = Meeting;
        yield();
    }
}

// All lanes of the mask bring a value; each leaves with those of all.
inline const uint64_t* meet(int site, unsigned mask, uint64_t value) {
    Fiber* first = fibers + (me->tid & ~31);
    if (!(mask >> (me->tid & 31) & 1)) fail("a mask without the calling lane", site);
    me->site = site, me->mask = mask, me->value = value, me->state = Meeting;
    bool all = true;
    for (int k = 0; k < 32; k++) {
        if (!(mask >> k & 1)) continue;
        Fiber& other = first[k];
        if (first - fibers + k >= threads || other.state == Ended) fail("a mask with a lane that is not there", site);
        if (other.state != Meeting || other.mask != mask) all = false;  // it may meet others before it comes here
        else if (other.site != site) fail("lanes of a mask at different places", site);
    }
    if (all) {
        for (int k = 0; k < 32; k++)
            if (mask >> k & 1) {
                for (int j = 0; j < 32; j++) first[k].got[j] = mask >> j & 1 ? first[j].value : 0xdeadbeefdeadbeefull + j;
                first[k].state = Ready;
            }
    }
    while (me->state == Meeting) yield();
    return me->got;
}

static int barrier_count, barrier_sum;
inline void open_barrier() {
    if (!live || barrier_count < live) return;
    for (int k = 0; k < threads; k++)
        if (fibers[k].state == Barrier) fibers[k].state = Ready, fibers[k].value = barrier_sum, fibers[k].mask = live;
    barrier_count = barrier_sum = 0;
}
// How many bring a value other than zero; *of: how many came.
inline int barrier(int site, bool value = false, int* of = nullptr) {
    for (int k = 0; k < threads; k++)
        if (fibers[k].state == Barrier && fibers[k].site != site) fail("a barrier met at different places", site);
    me->site = site, me->state = Barrier;
    barrier_count++, barrier_sum += value;
    open_barrier();
    while (me->state == Barrier) yield();
    if (of) *of = me->mask;
    return me->value;
}

inline void run_fiber() {
    entry();
    me->state = Ended;
    live--;
    open_barrier();
    yield();
}

inline bool run_block() {
    if (!stacks) stacks = new char[(size_t)most_threads * stack_bytes];
    live = threads, barrier_count = barrier_sum = 0;
    for (int k = 0; k < threads; k++) {
        Fiber& f = fibers[k];
        getcontext(&f.context);
        f.context.uc_stack.ss_sp = stacks + (size_t)k * stack_bytes;
        f.context.uc_stack.ss_size = stack_bytes;
        f.context.uc_link = nullptr;
        makecontext(&f.context, run_fiber, 0);
        f.tid = k, f.state = Ready;
        f.thread = {k % block_size.x, k / block_size.x % block_size.y, k / block_size.x / block_size.y};
    }
    for (int turns = 0; live; turns++) {
        bool went = false;
        for (int n = 0; n < threads; n++) {
            me = fibers + (backwards ? threads - 1 - n : n);
            if (me->state != Ready) continue;
            went = true;
            swapcontext(&scheduler, &me->context);
            if (problem[0]) return false;
        }
        if (!went || turns > 20000) {
            snprintf(problem, sizeof problem, "threads wait for ever");
            return false;
        }
    }
    return true;
}

template <class T> uint64_t pack(T v) { uint64_t u = 0; memcpy(&u, &v, sizeof v); return u; }
template <class T> T unpack(uint64_t u) { T v; memcpy(&v, &u, sizeof v); return v; }

enum Mode { Idx, Up, Down, Xor };
template <class T> T shuffle(int site, Mode mode, unsigned mask, T v, int by, int width) {
    int lane = me->tid & 31, base = lane & ~(width - 1), src = lane;
    if (mode == Idx) src = base | (by & (width - 1));
    if (mode == Up && lane - by >= base) src = lane - by;
    if (mode == Down && lane + by < base + width) src = lane + by;
    if (mode == Xor && (lane ^ by) < base + width) src = lane ^ by;
    return unpack<T>(meet(site, mask, pack(v))[src]);
}
template <class T, class F> T fold(int site, unsigned mask, T v, F f) {
    const uint64_t* all = meet(site, mask, pack(v));
    int k = __builtin_ctz(mask);
    T sum = unpack<T>(all[k]);
    for (k++; k < 32; k++)
        if (mask >> k & 1) sum = f(sum, unpack<T>(all[k]));
    return sum;
}
template <class T> unsigned same(int site, unsigned mask, T v) {
    const uint64_t* all = meet(site, mask, pack(v));
    unsigned found = 0;
    for (int k = 0; k < 32; k++)
        if (mask >> k & 1 && all[k] == pack(v)) found |= 1u << k;
    return found;
}
}  // namespace rk

#define threadIdx (rk::me->thread)
#define blockIdx rk::block_index
#define blockDim rk::block_size
#define gridDim rk::grid_size
#define warpSize 32
#define __global__
#define __device__
#define __constant__
#define __shared__ static
#define __noinline__ __attribute__((noinline))
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(n)

#define __syncthreads() ((void)rk::barrier(__COUNTER__))
#define __syncthreads_count(x) rk::barrier(__COUNTER__, x)
#define __syncthreads_or(x) (rk::barrier(__COUNTER__, x) != 0)
#define __syncthreads_and(x) (rk::all_of(__COUNTER__, x))
namespace rk {
inline int all_of(int site, bool value) {
    int of, count = barrier(site, value, &of);
    return count == of;
}
}  // namespace rk
#define __syncwarp(m) ((void)rk::meet(__COUNTER__, m, 0))
#define __ballot_sync(m, x) rk::same<bool>(__COUNTER__, m, true, (bool)(x))
#define __any_sync(m, x) (rk::same<bool>(__COUNTER__, m, true, (bool)(x)) != 0)
#define __all_sync(m, x) (rk::same<bool>(__COUNTER__, m, true, (bool)(x)) == (m))
#define __shfl_sync(m, v, k, w) rk::shuffle(__COUNTER__, rk::Idx, m, v, k, w)
#define __shfl_up_sync(m, v, k, w) rk::shuffle(__COUNTER__, rk::Up, m, v, k, w)
#define __shfl_down_sync(m, v, k, w) rk::shuffle(__COUNTER__, rk::Down, m, v, k, w)
#define __shfl_xor_sync(m, v, k, w) rk::shuffle(__COUNTER__, rk::Xor, m, v, k, w)
#define __match_any_sync(m, v) rk::same(__COUNTER__, m, v)
#define __match_all_sync(m, v, all) rk::same_all(__COUNTER__, m, v, all)
#define __reduce_add_sync(m, v) rk::fold(__COUNTER__, m, v, [](auto a, auto b) { return decltype(a)((unsigned)a + b); })
#define __reduce_min_sync(m, v) rk::fold(__COUNTER__, m, v, [](auto a, auto b) { return a < b ? a : b; })
#define __reduce_max_sync(m, v) rk::fold(__COUNTER__, m, v, [](auto a, auto b) { return a > b ? a : b; })
#define __reduce_and_sync(m, v) rk::fold(__COUNTER__, m, v, [](auto a, auto b) { return a & b; })
#define __reduce_or_sync(m, v) rk::fold(__COUNTER__, m, v, [](auto a, auto b) { return a | b; })
#define __reduce_xor_sync(m, v) rk::fold(__COUNTER__, m, v, [](auto a, auto b) { return a ^ b; })
namespace rk {
// Lanes whose value is `wanted`.
template <class T> unsigned same(int site, unsigned mask, T wanted, T v) {
    const uint64_t* all = meet(site, mask, pack(v));
    unsigned found = 0;
    for (int k = 0; k < 32; k++)
        if (mask >> k & 1 && all[k] == pack(wanted)) found |= 1u << k;
    return found;
}
template <class T> unsigned same_all(int site, unsigned mask, T v, int* all) {
    *all = same(site, mask, v) == mask;
    return *all ? mask : 0;
}
}  // namespace rk

inline void __threadfence() { rk::yield(); }
inline void __threadfence_block() { rk::yield(); }
inline void __threadfence_system() { rk::yield(); }
inline void __nanosleep(unsigned) { rk::yield(); }

namespace rk {
using Kernel = void(const int*, const float*, long long*, int*, unsigned*, unsigned long long*, int, int);
struct Launch {
    Kernel* kernel;
    const int* in;
    const float* fin;
    long long* out;
    int* own;
    unsigned* acc;
    unsigned long long* wide;
    int p, q;
};
static Launch launch;
}  // namespace rk

// Code for what C++ leaves undefined is a trap, if g++ is asked for it.
static sigjmp_buf rk_trapped;

// Run a kernel on a grid; returns what was wrong with the program, or an empty text.
extern "C" const char* rk_launch(const rk::Launch* launch, const unsigned* shape, bool backwards) {
    rk::launch = *launch;
    rk::entry = [] {
        rk::Launch& l = rk::launch;
        l.kernel(l.in, l.fin, l.out, l.own, l.acc, l.wide, l.p, l.q);
    };
    rk::grid_size = {shape[0], shape[1], shape[2]}, rk::block_size = {shape[3], shape[4], shape[5]};
    rk::threads = shape[3] * shape[4] * shape[5], rk::backwards = backwards, rk::problem[0] = 0;
    unsigned blocks = shape[0] * shape[1] * shape[2];
    auto before = signal(SIGILL, [](int) { siglongjmp(rk_trapped, 1); });
    if (sigsetjmp(rk_trapped, 1)) {
        snprintf(rk::problem, sizeof rk::problem, "C++ leaves undefined what thread %d does", rk::me->tid);
    } else {
        for (unsigned n = 0; n < blocks; n++) {
            unsigned k = backwards ? blocks - 1 - n : n;
            rk::block_index = {k % shape[0], k / shape[0] % shape[1], k / shape[0] / shape[1]};
            if (!rk::run_block()) break;
        }
    }
    signal(SIGILL, before);
    return rk::problem;
}
