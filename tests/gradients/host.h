// CUDA C on the host, for many small kernels: a block's threads are fibers, which take turns at barriers and shuffles.
#include <cmath>
#include <csetjmp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <unordered_map>
#include <ucontext.h>

using std::max;
using std::min;
using std::isnan;
using std::signbit;
#define __device__
#define __builtin_assume(what) do { if (!(what)) fail("an assumption does not hold"); } while (0)
#define __launch_bounds__(...)
#define __global__ static
#define __forceinline__ inline
#define __restrict__
#define __shared__ static
#define __cvta_generic_to_shared(place) ((unsigned long long)(place))
static jmp_buf unfinished;
static const char* failure;
static void fail(const char* why) { failure = why; _longjmp(unfinished, 1); }
static void fault(int number) { fail(number == SIGFPE ? "SIGFPE" : number == SIGBUS ? "SIGBUS" : "SIGSEGV"); }
struct Index { unsigned x, y, z; };
struct Pointer {
    void* start;
    template <typename T> operator T*() const { return (T*)start; }
};
struct double2 { double x, y; };
struct double3 { double x, y, z; };
struct double4 { double x, y, z, w; };
static double2 make_double2(double x, double y) { return {x, y}; }
static double4 make_double4(double x, double y, double z, double w) { return {x, y, z, w}; }
static double __half2float(double v) { return v; }
static double __float2half(double v) { return v; }
static double __hmul(double a, double b) { return a * b; }
static double __hadd(double a, double b) { return a + b; }
template <typename T> static T __ldg(const T* p) { return *p; }
static Index threadIdx, blockIdx, blockDim = {1, 1, 1}, gridDim = {1, 1, 1};
enum { THREADS = 128, STACK = 1 << 18 };
static ucontext_t fibers[THREADS];  // to begin with: swapcontext makes a system call each time
static jmp_buf scheduled, left_at[THREADS];
static bool begun[THREADS];
static char stacks[THREADS][STACK];
static bool done[THREADS];
static long arrived[THREADS], warped[THREADS];
static double passed[THREADS];
static std::function<void()> body;
static unsigned now;
static void fiber() { body(); done[now] = true; _longjmp(scheduled, 1); }
static void wait_for(long* counts, unsigned from, unsigned to) {
    unsigned me = now;
    long mine = ++counts[me];
    for (;;) {
        bool all = true;
        for (unsigned t = from; t < to; ++t) all = all && (done[t] || counts[t] >= mine);
        if (all) return;
        if (!_setjmp(left_at[me])) _longjmp(scheduled, 1);
    }
}
static void __syncthreads() { wait_for(arrived, 0, blockDim.x * blockDim.y * blockDim.z); }
static bool held[THREADS];
static int __syncthreads_count(bool holds) {
    held[now] = holds;
    __syncthreads();
    int found = 0;
    for (unsigned t = 0; t < blockDim.x * blockDim.y * blockDim.z; ++t) found += held[t];
    __syncthreads();
    return found;
}
static void __syncwarp() { wait_for(warped, now / 32 * 32, now / 32 * 32 + 32); }
template <typename T> static T from_lane(T value, unsigned lane) {
    passed[now] = value;
    __syncwarp();
    T found = passed[now / 32 * 32 + lane];
    __syncwarp();
    return found;
}
// The lane `at` of a part of `width` lanes, or the thread's own if the part ends before it.
template <typename T> static T from_part(T v, int at, int width) {
    int lane = now % 32, start = lane / width * width;
    return from_lane(v, at >= start && at < start + width ? at : lane);
}
template <typename T> static T __shfl_xor_sync(unsigned, T v, int by, int width = 32) { return from_part(v, (now % 32) ^ by, width); }
template <typename T> static T __shfl_sync(unsigned, T v, int by, int width = 32) { return from_lane(v, now % 32 / width * width + by % width); }
template <typename T> static T __shfl_down_sync(unsigned, T v, int by, int width = 32) { return from_part(v, int(now % 32) + by, width); }
template <typename T> static T __shfl_up_sync(unsigned, T v, int by, int width = 32) { return from_part(v, int(now % 32) - by, width); }
static unsigned __ballot_sync(unsigned, bool holds) {
    unsigned found = 0;
    for (unsigned lane = 0; lane < 32; ++lane) found |= unsigned(from_lane(int(holds), lane)) << lane;
    return found;
}
static bool __any_sync(unsigned all, bool holds) { return __ballot_sync(all, holds) != 0; }
static bool __all_sync(unsigned all, bool holds) { return __ballot_sync(all, holds) == 0xffffffff; }
static int __popc(unsigned v) { return __builtin_popcount(v); }
static unsigned __activemask() { return 0; }
static void __match_all_sync(unsigned, unsigned long long, int*) {}
static double atomicAdd(double* p, double v) { double old = *p; *p += v; return old; }
static unsigned long long atomicExch(unsigned long long* p, unsigned long long v) { auto old = *p; *p = v; return old; }
static float atomicExch(float* p, float v) { auto old = *p; *p = v; return old; }
static double __longlong_as_double(unsigned long long v) { double d; memcpy(&d, &v, 8); return d; }
static void __trap() { fail("__trap()"); }
static double rsqrt(double v) { return 1.0 / sqrt(v); }
// Who touched an element last, plainly and atomically. Elements of shared memory are new in each block.
struct Touch { unsigned block, thread; long phase; bool atomic, shared; };
static std::unordered_map<void*, Touch> touched;
static int met;
static unsigned block_number() { return blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z); }
static void touch(double* p, Touch mine, bool once) {
    auto found = touched.find(p);
    if (found != touched.end()) {
        Touch other = found->second;
        bool apart = other.thread == mine.thread || other.phase != mine.phase;
        if (mine.shared) met |= other.block == mine.block && !apart && !(other.atomic && mine.atomic);
        else met |= once || ((other.block != mine.block || !apart) && !(other.atomic && mine.atomic));
        if (other.block == mine.block && other.phase == mine.phase && other.atomic != mine.atomic) mine.atomic = false;
    }
    touched[p] = mine;
}
static double* plain(double* p, bool shared, bool sets) {
    touch(p, {block_number(), now, arrived[now], false, shared}, sets && !shared);
    return p;
}
static double* atomic(double* p, bool shared) {
    touch(p, {block_number(), now, arrived[now], true, shared}, false);
    return p;
}
extern "C" int races() { int found = met; met = 0; touched.clear(); return found; }
static void run_blocks(Index grid, Index block, std::function<void()> kernel) {
    unsigned blocks = grid.x * grid.y * grid.z, threads = block.x * block.y * block.z;
    if (threads > THREADS) fail("more threads in a block than host.h has fibers");
    body = kernel;
    gridDim = grid;
    blockDim = block;
    for (unsigned t = threads; t < THREADS; ++t) done[t] = true;  // nothing waits for the rest of a warp
    for (unsigned b = 0; b < blocks; ++b) {
        blockIdx = {b % grid.x, b / grid.x % grid.y, b / grid.x / grid.y};
        for (unsigned t = 0; t < threads; ++t) {
            done[t] = begun[t] = false;
            arrived[t] = warped[t] = 0;
            getcontext(&fibers[t]);
            fibers[t].uc_stack.ss_sp = stacks[t];
            fibers[t].uc_stack.ss_size = STACK;
            fibers[t].uc_link = nullptr;
            makecontext(&fibers[t], fiber, 0);
        }
        for (bool left = true; left;) {
            left = false;
            for (unsigned t = 0; t < threads; ++t) {
                if (done[t]) continue;
                left = true;
                now = t;
                threadIdx = {t % block.x, t / block.x % block.y, t / block.x / block.y};
                if (_setjmp(scheduled)) continue;
                if (begun[t]) _longjmp(left_at[t], 1);
                begun[t] = true;
                setcontext(&fibers[t]);
            }
        }
    }
}
// Why the last launch did not come to its end, or nullptr.
extern "C" const char* unfinished_launch() { auto found = failure; failure = nullptr; return found; }
static void launch(Index grid, Index block, std::function<void()> kernel) {
    enum { FAULTS = 3 };
    const int faults[FAULTS] = {SIGSEGV, SIGBUS, SIGFPE};
    static char stack[1 << 16];
    stack_t alternate = {}, alternate_before;
    alternate.ss_sp = stack;
    alternate.ss_size = sizeof(stack);
    struct sigaction handler = {}, before[FAULTS];
    handler.sa_handler = fault;
    handler.sa_flags = SA_ONSTACK | SA_NODEFER;
    sigaltstack(&alternate, &alternate_before);
    for (int k = 0; k < FAULTS; ++k) sigaction(faults[k], &handler, &before[k]);
    if (!_setjmp(unfinished)) run_blocks(grid, block, kernel);
    for (int k = 0; k < FAULTS; ++k) sigaction(faults[k], &before[k], nullptr);
    sigaltstack(&alternate_before, nullptr);
}
