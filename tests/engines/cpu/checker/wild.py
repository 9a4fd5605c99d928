"""Kernels that leave their memory, one way each: what `test_bounds` launches. All are in one module.

Each row has a name, the exception, and the body of a kernel ``(int n, float* x, const float* y, int* out, S s, float**
table, unsigned char* none)`` with n = 64 elements in x, y and out, a struct of a pointer and a number, a table of two
pointers and a null pointer; 64 threads run it. ``t`` is the thread's index.
"""

from __future__ import annotations

BOUNDS, MISALIGNED, READ_ONLY, FREED = "OutOfBoundsError", "MisalignedError", "ReadOnlyError", "FreedMemoryError"

HEAD = r"""
#include <cuda_pipeline.h>
#include <mma.h>
#include <cuda_fp16.h>
struct S { float* p; long long n; };
struct Row { float a; int b[3]; };
__constant__ float table8[8];
__device__ int counts[16];
__device__ __noinline__ float element(const float* a, int k) { return a[k] + 1; }
__device__ __noinline__ float deep(float* a, int k, int depth) { return depth ? deep(a, k, depth - 1) + 1 : a[k]; }
"""

ROWS: list[tuple[str, str, str]] = [
    ("one_behind", BOUNDS, "x[t + 1] = 1;"),
    ("one_before", BOUNDS, "x[t - 1] = 1;"),
    ("reads_behind", BOUNDS, "x[t] = y[t + 1];"),
    ("reads_before", BOUNDS, "x[t] = y[t - 1];"),
    ("strided", BOUNDS, "x[2 * t] = 1;"),
    ("reversed", BOUNDS, "x[62 - t] = 1;"),
    ("scattered", BOUNDS, "x[(t * 37) % 65] = 1;"),
    ("gathered", BOUNDS, "x[t] = y[(t * t) % 101];"),
    ("index_from_memory", BOUNDS, "out[t] = t == 40 ? 70 : t; __syncwarp(); x[t] = y[out[t]];"),
    ("one_lane", BOUNDS, "if (t == 17) x[n] = 1;"),
    ("one_lane_far", BOUNDS, "if (t == 63) x[t * 1000000] = 1;"),
    ("uniform", BOUNDS, "x[n] = 1;"),
    ("uniform_before", BOUNDS, "out[0] = (int)x[-n];"),
    ("divergent", BOUNDS, "if (t % 3) { if (t % 5 == 4) x[t + 5] = t; } else x[t] = 2;"),
    ("loop_overruns", BOUNDS, "float sum = 0; for (int i = t; i <= n; i += 4) sum += y[i]; x[t] = sum;"),
    (
        "loop_of_vectors",
        BOUNDS,
        "float4 sum = {}; for (int i = 0; i <= n / 4; ++i) sum.x += ((float4*)y)[i].y; x[t] = sum.x;",
    ),
    ("unrolled", BOUNDS, "\n#pragma unroll\nfor (int i = 0; i < 8; ++i) x[t * 8 / 7 + i] = i;"),
    ("index_wraps", BOUNDS, "int pitch = 100000000 + n; x[t * pitch % 128] = 1;"),
    ("unsigned_wraps", BOUNDS, "unsigned i = t; x[i - 1u] = 1;"),
    ("huge_index", BOUNDS, "x[(long long)n << 40] = 1;"),
    ("address_wraps", BOUNDS, "x[t + (1LL << 62) + 1] = 1;"),
    ("byte_behind", BOUNDS, "((char*)x)[4 * n] = 1;"),
    ("short_behind", BOUNDS, "((short*)x)[2 * t + 4] = 1;"),
    ("double_over_the_end", BOUNDS, "((double*)x)[t / 2 + 1] = 1;"),
    ("float2_behind", BOUNDS, "((float2*)x)[t] = make_float2(1, 2);"),
    ("float4_behind", BOUNDS, "float4 v = ((float4*)y)[t / 4 + 1]; x[t] = v.w;"),
    ("float4_written", BOUNDS, "((float4*)x)[n / 4] = make_float4(1, 2, 3, 4);"),
    ("misaligned_float2", MISALIGNED, "float2 v = ((float2*)(y + 1))[t / 4]; x[t] = v.x + v.y;"),
    ("misaligned_float4", MISALIGNED, "*(float4*)(x + t / 4 * 4 + 2) = make_float4(1, 2, 3, 4);"),
    ("misaligned_int", MISALIGNED, "*(int*)((char*)x + 2 + t) = 1;"),
    ("misaligned_short", MISALIGNED, "*(short*)((char*)x + 2 * t + 1) = 1;"),
    ("misaligned_double", MISALIGNED, "((double*)((char*)x + 4))[t / 4] = 1;"),
    ("misaligned_atomic", MISALIGNED, "atomicAdd((int*)((char*)out + 1), 1);"),
    ("through_const", READ_ONLY, "((float*)y)[t] = 1;"),
    ("atomic_through_const", READ_ONLY, "atomicAdd((float*)y + t, 1.0f);"),
    ("null", BOUNDS, "none[t] = 1;"),
    ("null_and_offset", BOUNDS, "x[t] = ((float*)none)[1000 + t];"),
    ("small_address", BOUNDS, "*(float*)(8ull + 4 * t) = 1;"),
    ("no_address", BOUNDS, "*(volatile float*)(0x4141414141414140ull + 4 * t) = 1;"),
    ("value_as_address", BOUNDS, "*(float*)(unsigned long long)(s.n * 4096) = 1;"),
    ("atomic_behind", BOUNDS, "atomicAdd(x + t + 1, 1.0f);"),
    ("atomic_unused", BOUNDS, "atomicMax(out + n, t);"),
    ("atomic_cas_before", BOUNDS, "out[t] = atomicCAS(out - 1 - t % 2, 0, 1);"),
    ("atomic_half", BOUNDS, "atomicAdd((__half2*)x + n, __half2{});"),
    ("volatile_behind", BOUNDS, "x[t] = ((volatile float*)y)[t + 7];"),
    (
        "ordered_behind",
        BOUNDS,
        'int v; asm volatile("ld.acquire.gpu.s32 %0, [%1];" : "=r"(v) : "l"(out + n)); x[t] = v;',
    ),
    ("ordered_written", BOUNDS, 'asm volatile("st.release.gpu.s32 [%0], %1;" :: "l"(out + t + 1), "r"(t));'),
    ("read_only_cache", BOUNDS, "x[t] = __ldg(y + t + 1);"),
    ("shared_behind", BOUNDS, "__shared__ float a[48]; a[t] = t; __syncthreads(); x[t] = a[t / 2];"),
    ("shared_before", BOUNDS, "__shared__ float a[64]; a[t] = t; __syncthreads(); x[t] = a[t - 1];"),
    (
        "shared_into_the_next",
        BOUNDS,
        "__shared__ int a[32], b[32]; b[t / 2] = t; a[t] = t; __syncthreads(); out[t] = a[t / 2] + b[t / 2];",
    ),
    ("shared_far", BOUNDS, "__shared__ float a[64]; a[t] = t; __syncthreads(); a[t + n * 100000] = 1; x[t] = a[0];"),
    ("shared_atomic", BOUNDS, "__shared__ int a[8]; atomicAdd(a + t, 1); __syncthreads(); out[t] = a[0];"),
    ("dynamic_behind", BOUNDS, "extern __shared__ float d[]; d[t + 1] = t; __syncthreads(); x[t] = d[1];"),
    (
        "shared_or_global",
        BOUNDS,
        "__shared__ float a[64]; a[t] = t; __syncthreads(); float* p = s.n > 3 ? a : x; p[t + 10 * n] = 1;",
    ),
    ("local_behind", BOUNDS, "float a[8]; for (int i = 0; i < 8; ++i) a[i] = y[i]; a[t % 9] = 3; x[t] = a[t % 7];"),
    ("local_before", BOUNDS, "float a[8]; for (int i = 0; i < 8; ++i) a[i] = y[i]; x[t] = a[(t % 8) - 1];"),
    ("local_far", BOUNDS, "float a[8]; for (int i = 0; i < 8; ++i) a[i] = y[i]; a[t * 100000] = 1; x[t] = a[t % 8];"),
    ("local_of_caller", BOUNDS, "float a[8]; for (int i = 0; i < 8; ++i) a[i] = y[i]; x[t] = element(a, t * n);"),
    (
        "local_from_the_deep",
        BOUNDS,
        "float a[8]; for (int i = 0; i < 8; ++i) a[i] = y[i]; x[t] = deep(a, 8 + t, 3 + t % 2);",
    ),
    ("callee_behind", BOUNDS, "x[t] = element(y + n, t);"),
    ("constant_behind", BOUNDS, "x[t] = table8[t];"),
    ("constant_written", READ_ONLY, 'asm volatile("st.f32 [%0], %1;" :: "l"(table8 + t % 8), "f"(1.0f));'),
    ("variable_behind", BOUNDS, "counts[t] = 1;"),
    ("variable_before", BOUNDS, "x[t] = counts[t % 16 - 1];"),
    ("member_behind", BOUNDS, "s.p[t + 1] = 1;"),
    ("member_of_struct", BOUNDS, "((Row*)x)[t / 4 + 1].b[2] = 1;"),
    ("table_behind", BOUNDS, "table[2 + t / 32][t] = 1;"),
    ("behind_the_table", BOUNDS, "table[t / 32][t + 1] = 1;"),
    ("heap_behind", BOUNDS, "int* p = (int*)malloc(40); p[10] = t; out[t] = p[0]; free(p);"),
    ("heap_before", BOUNDS, "int* p = (int*)malloc(40); out[t] = p[-1]; free(p);"),
    (
        "heap_freed",
        FREED,
        "int* p = (int*)malloc(40); p[0] = t; free(p); __threadfence(); out[t] = ((volatile int*)p)[0];",
    ),
    ("heap_freed_twice", FREED, "int* p = (int*)malloc(40); p[0] = 1; free(p); free(p);"),
    ("heap_freed_inside", FREED, "int* p = (int*)malloc(40); p[0] = 1; free(p + 2);"),
    ("frees_an_argument", FREED, "free(x);"),
    ("copied_too_far", BOUNDS, "memcpy(x, y, 4 * n + s.n);"),
    ("set_too_far", BOUNDS, "memset(x, 0, 4 * n + 1);"),
    (
        "copied_asynchronously",
        BOUNDS,
        "__shared__ float4 a[64]; __pipeline_memcpy_async(a + t, (float4*)y + t, 16); __pipeline_commit(); __pipeline_wait_prior(0); x[t] = a[t].x;",
    ),
    (
        "copied_beyond_shared",
        BOUNDS,
        "__shared__ float a[64]; __pipeline_memcpy_async(a + t + 1, y + t, 4); __pipeline_commit(); __pipeline_wait_prior(0); x[t] = a[1];",
    ),
    (
        "copied_in_part",
        BOUNDS,
        "__shared__ float4 a[64]; __pipeline_memcpy_async(a + t, (float4*)(y + n), 16, 12); __pipeline_commit(); __pipeline_wait_prior(0); x[t] = a[t].x;",
    ),
    (
        "matrix_rows",
        BOUNDS,
        'unsigned r; __shared__ __half a[64]; a[t] = __half(t); __syncthreads(); unsigned at = (unsigned)__cvta_generic_to_shared(a) + 16 * (t % 8 + 1); asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(r) : "r"(at)); out[t] = r;',
    ),
    (
        "tile_loaded",
        BOUNDS,
        "using namespace nvcuda::wmma; fragment<matrix_a, 16, 16, 16, __half, row_major> f; load_matrix_sync(f, (const __half*)y, 16); x[t] = (float)f.x[0];",
    ),
    (
        "tile_stored",
        BOUNDS,
        "using namespace nvcuda::wmma; fragment<accumulator, 16, 16, 16, float> f; fill_fragment(f, 1.0f); store_matrix_sync(x, f, 16, mem_row_major);",
    ),
    ("text_printed", BOUNDS, 'printf("%s", (const char*)(0x10000ull + s.n));'),
]


def source() -> str:
    parameters = "int n, float* x, const float* y, int* out, S s, float** table, unsigned char* none"
    return HEAD + "\n".join(
        f'extern "C" __global__ void {name}({parameters}) {{ int t = threadIdx.x; {body} }}' for name, _, body in ROWS
    )
