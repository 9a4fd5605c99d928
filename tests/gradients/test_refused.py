"""What has no derived backward raises an error: with line, reason and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import rawkern

INDEX = "int i = blockIdx.x * blockDim.x + threadIdx.x;"


def kernel(body, before="", params="const float* x, float* y, int n"):
    return f'{before}\nextern "C" __global__ void k({params}) {{\n{INDEX}\n{body}\n}}\n'


#: A loop with a tile that is loaded under a condition that the reads do not know.
GUARDED = kernel(
    """__shared__ float s[64]; float a = 0.f;
for (int k = 0; k < n; k += 64) {
    if (k + threadIdx.x < last[0]) s[threadIdx.x] = x[k + threadIdx.x];
    __syncthreads();
    for (int j = 0; j < 64 && k + j < n; ++j) a += s[j] * s[j] * x[i];
    __syncthreads();
}
y[i] = a;""",
    params="const float* x, float* y, const unsigned* last, int n",
)


#: A loop whose iterations load the tile of the next one, which is not that of the first one.
PREFETCHED = kernel(
    """__shared__ float s[2][64]; float a = 0.f;
s[0][threadIdx.x] = sinf(x[threadIdx.x]);
__syncthreads();
for (int k = 0; k < n / 64; ++k) {
    if (k + 1 < n / 64) s[(k & 1) ^ 1][threadIdx.x] = x[64 * (k + 1) + threadIdx.x];
    for (int j = 0; j < 64; ++j) a += s[k & 1][j] * s[k & 1][j] * x[i];
    __syncthreads();
}
y[i] = a;"""
)


def accessors(body):
    return kernel(body, "#include <torch/extension.h>",
                  "const at::PackedTensorAccessor32<float, 2> x, at::PackedTensorAccessor32<float, 1> y, int n")  # fmt: skip


REFUSED = {
    "in place, of another thread": (kernel("y[i] = y[i + 1] * x[i];"), "y is both read and written"),
    "set and added": (kernel("y[i] = x[i]; y[i + 64] += x[i];"), "both set and added"),
    "bits": (kernel("y[i] = __int_as_float(__float_as_int(x[i]) + 1);"), "__float_as_int has no known derivative; use fabsf, copysignf, signbit, isnan, isinf, ldexpf or INFINITY"),
    "a union": (kernel("U u; u.v = ((float4*)x)[i]; y[i] = u.f[1] * u.f[2];", "union U { float4 v; float f[4]; };"),
                r"U is a union; declare one of its members alone, and cast a pointer to it: float4 v; float\* f = \(float\*\)&v"),
    "a union within": (kernel("union { float4 v; float f[4]; } u; u.v = ((float4*)x)[i]; y[i] = u.f[1];"), "is a union; declare one of its members"),
    "a choice that is assigned to": (kernel("float a = 0.f, b = 1.f; (n > 3 ? a : b) = x[i]; y[i] = a * b;"),
                                     "is computed, and not a variable or an element, as it has to be here; .* to assign to one of two, write an if"),
    "a struct of pointers in memory": (kernel("y[i] = p->x[i] * p->n;", "struct P { const float* x; int n; };", "const P* p, float* y"),
                                       "P has pointers, and lies in memory; pass it as a parameter by value"),
    "a member called as a parameter": (kernel("y[i] = p.x[i] * p_x[i];", "struct P { const float* x; };", "P p, const float* p_x, float* y"),
                                       "p_x, as p.x is called here, is also a parameter; give that another name"),
    "a pointer into an accessor": (accessors("const float* row = &x[i][0]; y[i] = row[1] * row[0];"),
                                   r"'row\[1\]' counts from an element of the accessor x; index x itself"),
    "the memory of an accessor": (accessors("y[i] = x[i].data()[1];"), r"data\(\)' of an accessor; use its elements, size\(k\) and stride\(k\)"),
    "a dimension that is not known": (accessors("if (i < x.size(n)) y[i] = x[i][0];"), r"the dimension of 'x.size\(n\)'; name one that it has"),
    "an accessor within a function": (accessors("at::TensorAccessor<float, 1> row = x[i]; y[i] = row[0];"), "take accessors as parameters, and call a row of one auto"),
    "an array of a list by a number": (kernel("y[i] = xs[n][i];", params="const float* const* xs, float* y, int n"),
                                       "the index of the list xs is not known when deriving; make it a constant, or the bounds"),
    "a list of lists": (kernel("y[i] = xs[0][0][i];", params="const float** const* xs, float* y"), "use numbers, pointers and lists of pointers"),
    "a struct with a union": (kernel("S s; s.f[0] = x[i]; y[i] = s.v.x;", "struct S { union { float4 v; float f[4]; }; };"), "struct S has a union"),
    "a scan of cub": (kernel("using C = cub::BlockScan<float, 64>; __shared__ typename C::TempStorage s; float v; C(s).ExclusiveSum(x[i], v); y[i] = v;",
                             "#include <cub/cub.cuh>"), "cub::BlockScan<float, 64>; write the backward by hand"),
    "a reduction of vectors": (kernel("using C = cub::WarpReduce<float4>; __shared__ typename C::TempStorage s; y[i] = C(s).Reduce(float4{x[i]}, Add()).x;",
                                      "#include <cub/cub.cuh>\nstruct Add { __device__ float4 operator()(float4 a, float4 b) { return {a.x + b.x}; } };"),
                               "cub::WarpReduce<float4>; reduce floats or doubles, one by one"),
    "a load of cub": (kernel("using C = cub::BlockLoad<float, 64, 1>; __shared__ typename C::TempStorage s; float v[1]; C(s).Load(x, v); y[i] = v[0];",
                             "#include <cub/cub.cuh>"), "cub::BlockLoad<float, 64, 1>; read and write the elements by index"),
    "tensor cores": (kernel("__shared__ alignas(32) half s[256]; nvcuda::wmma::fragment<nvcuda::wmma::matrix_a, 16, 16, 16, half, nvcuda::wmma::row_major> a;\n"
                            "s[i] = x[i]; nvcuda::wmma::load_matrix_sync(a, s, 16); y[i] = a.x[0];", "#include <mma.h>"),
                     "it uses tensor cores .wmma., which have no derivative here; write the backward by hand"),
    "an array with an alignment": (kernel("__shared__ alignas(16) float s[64]; s[i] = x[i]; y[i] = s[i];"), "leave that out where nothing reads it in wider types, else write"),
    "volatile shared memory": (kernel("__shared__ volatile float s[64]; s[i] = x[i]; y[i] = s[i];"), "put __syncwarp.. between the accesses instead"),
    "atomicSub": (kernel("atomicSub(&y[0], x[i]);"), "use atomicAdd of the negative"),
    "copies by a pipeline": (kernel("__shared__ float s[64]; __pipeline_memcpy_async(&s[i], &x[i], 4); y[i] = s[i];"), "copy by assignments"),
    "struct within": (kernel("struct S { __device__ float f() { return 1.f; } }; S s; y[i] = x[i] * s.f();"), "declare it outside of the kernel"),
    "text that is not C": (kernel("float v = x[i];\ny[i] = v |> 3;"), r"line 5: .*its text is not understood: 'y\[i\] = v \|> 3;'"),
    "?: with two parts": (kernel("y[i] = x[i] ?: 1.f;"), "without the value if it holds"),
    "pointer to one of two arrays": (kernel("const float* p = x; if (n > 3) p = w; y[i] = p[i];", params="const float* x, const float* w, float* y, int n"),
                                     "p points to one of several arrays; declare it by a choice"),
    "another generator": (kernel("curandState s; y[i] = x[i];", "#include <curand_kernel.h>"), "use curandStatePhilox4_32_10_t"),
    "a loop that a break ends": (kernel("float v = x[i]; while (true) { v *= 0.5f; if (v < 1.f) break; } y[i] = v;"), ": v carries a value"),
    "an order that C++ leaves open": (kernel("int k = i; float z = k++ + 10 * k; y[k] = z * x[i];"), "in an order that C.. leaves open; write two statements"),
    "unknown function": (kernel("y[i] = nextafterf(x[i], 1.f);"), "nextafterf has no known derivative; write it as a __device__"),
    "results through pointers": (kernel("int e; y[i] = frexpf(x[i], &e);"), "address|frexpf"),
    "unknown name": (kernel("y[i] = x[i] * SCALE;"), "SCALE is not known"),
    "pointer cast": (kernel("y[i] = ((const int*)x)[i];"), "the cast"),
    "reinterpret_cast": (kernel("double2 v = reinterpret_cast<const double2*>(x)[i]; y[i] = v.x;"), "in double2 of float"),
    "bytes as two types": (kernel("extern __shared__ char s[]; float* a = (float*)s; int* b = (int*)(s + 64);"
                                  "a[i] = x[i]; b[i] = n; y[i] = a[i];"), "shared_mem is 0"),
    "pointers to two arrays": (kernel("const float* p = x; for (int k = 0; k < n; ++k) { p = y; } y[i] = *p;"), "another array"),
    "break after a read": (kernel("float s = 0.f; for (int k = 0; x[k] > 0.f; ++k) { s += x[k]; if (s > 1.f) break; } y[i] = s;"),
                            "a break in a loop whose condition reads memory"),
    "goto": (kernel("again: y[i] = x[i]; if (n > 5) goto again;"), "labeled statement|goto"),
    "switch that falls through": (kernel("switch (n) { case 1: y[i] = x[i]; case 2: y[i] = x[i] * 2.f; }"), "falls into the next"),
    "break within a case": (kernel("switch (n) { case 1: if (i > 3) break; y[i] = x[i]; break; }"), "a break within a case"),
    "if constexpr of a number": (kernel("if constexpr (n > 3) y[i] = x[i];"), "if constexpr of what is not known"),
    "what iterations overwrite": (kernel("for (int j = 0; j < (int)x[i]; ++j) y[i] = y[i] * x[(i + j) % n] + x[i];"),
                                  "y is both read and written: iterations of a loop around it overwrite what others read; make that loop"),
    "what another thread wrote": (kernel("y[i] = x[i]; __syncthreads(); y[i + 64] = y[i];"), "both read and written"),
    "what another path wrote": (kernel("if (n > 3) y[i] = x[i]; y[i + 64] = y[i];"), "both read and written"),
    "what the iteration before wrote": (kernel("y[i] = x[i]; for (int k = 0; k < n; ++k) { float v = y[i]; y[k] = v; }"), "both read and written"),
    "asm": (kernel('asm("nop;"); y[i] = x[i];'), "gnu asm|asm"),
    "atomicMax": (kernel("int m = 0; atomicMax(&m, 1); y[i] = x[i];"), "atomicMax has no known|address"),
    "value of an atomic": (kernel("float v = atomicAdd(&y[0], x[i]);"), "the value of"),
    "partial mask": (kernel("y[i] = __shfl_xor_sync(0xffff, x[i], 1);"), "with a mask that is not"),
    "volatile in parts of warps": (kernel("__shared__ float s[64]; s[i] = x[i]; __syncthreads(); if (i < 16) { volatile float* v = s; v[i] += v[i + 16]; } y[i] = s[0];"), "parts of a warp"),
    "volatile": (kernel("volatile float v = x[i]; y[i] = v;"), "volatile"),
    "static": (kernel("static float v = 1.f; y[i] = v * x[i];"), "static"),
    "goto by continue in a while": (kernel("int k = 0; float h = 1.f; while (k < n) { h = h * x[k]; ++k; } y[i] = h;"),
                                    "carries a value from one iteration to the next other than as a sum"),
    "dynamic shared memory": (kernel("extern __shared__ float s[]; s[threadIdx.x] = x[i]; __syncthreads(); y[i] = s[0];"),
                              "s is dynamic shared memory, and shared_mem is 0; give the bytes"),
    "stale tiles": (kernel("__shared__ float s[64]; s[threadIdx.x] = 0.f; __syncthreads(); float a = 0.f;"
                           "for (int k = 0; k < n; ++k) { a += s[0] * s[threadIdx.x]; __syncthreads();"
                           "s[threadIdx.x] = x[k] * s[threadIdx.x]; __syncthreads(); } y[i] = a;"), "of another iteration"),
    "a guarded load of a tile": (GUARDED, r"of another iteration; set s in all threads: in place of an if, load from an index that is clamped, as x\[min\(k, n - 1\)\]"),
    "the next iteration's tile": (PREFETCHED, r"of another iteration; set s in the iteration that reads it, before a __syncthreads\(\), not in the one before"),
    "struct in memory": (kernel("y[i] = p[i].a;", "struct P { float a; int b; };", "const P* p, float* y, int n"),
                         "p points to structs; pass an array of float"),
    "struct with a gap": (kernel("y[i] = p[i].a;", "struct __align__(8) P { float a; };", "const P* p, float* y, int n"),
                          "struct P is aligned to 8"),
    "macro type": (kernel("real v = x[i]; y[i] = v;", "#define real half_of_mine"), "the type half_of_mine is not known"),
    "macro of a parameter": (kernel("if (i < m) y[i] = x[i];", "#define SIZE int m", "const float* x, float* y, SIZE"), "declares the parameter m"),
    "macro that pastes": (kernel("y[i] = x[i] * K(1);", "#define K(v) v ## .f"), "the call of K"),
    "#if of the compiler's": (kernel("y[i] = x[i];", "#if __CUDA_ARCH__ >= 800\n#endif"), "holds for compute capability 8.0 and not for 7.5"),
    "#error": (kernel("y[i] = x[i];", "#ifndef N\n#error N\n#endif"), "#error"),
    "macro of a function that is not known": (kernel("y[i] = F(x[i]);", "#define F tgamma_of_mine"), "tgamma_of_mine"),
    "recursion": (kernel("y[i] = f(x[i]);", "__device__ float f(float v) { return v > 1.f ? f(v - 1.f) : v; }"), "calls itself"),
    "overloads": (kernel("y[i] = f(n ? x[i] : 1.0);", "__device__ float f(float v) { return v; } __device__ int f(int v) { return v; }"),
                  "several overloads, and none for just these types"),
    "large local array": (kernel("float a[9999] = {0.f}; a[n % 4] = x[i]; y[i] = a[0];"), "local array a; let it have, with its gradient, at most 16,384 bytes"),
    "index of a local array of structs": (kernel("P a[9]; a[n % 4].v = x[i]; y[i] = a[0].v;", "struct P { float v; int k; };"),
                                          "local array a is not known when deriving; make the bounds .* of numbers of one type that has, with its gradient, at most"),
    "device variable": (kernel("y[i] = x[i] * scale;", "__device__ float scale;\n__global__ void f(float v) { scale = v; }"),
                        "scale is a variable of the device that launches may change"),
    "device pointer": (kernel("y[i] = x[i] * p[i];", "__device__ float* p;"), "float\\* p;' of the device"),
    "half and int": (kernel("y[i] = h[i] * n;", "#include <cuda_fp16.h>", "const half* h, half* y, int n"),
                     r"\* of __half and int; convert one"),
    "half without operators": (kernel("y[i] = h[i] * h[i];", "#define __CUDA_NO_HALF_OPERATORS__\n#include <cuda_fp16.h>",
                                      "const half* h, half* y, int n"), "without operators"),
    "half by value": (kernel("y[i] = x[i];", "#include <cuda_fp16.h>", "const float* x, float* y, half h, int n"), "__half by value"),
    "bits of half": (kernel("y[i] = __short_as_half(7) * h[i];", "#include <cuda_fp16.h>", "const half* h, half* y, int n"),
                     "__short_as_half"),
    "mutable lambda": (kernel("float s = 0.f; auto f = [=]() mutable { s += 1.f; return s; }; y[i] = f() * x[i];"), "a lambda that is mutable"),
    "base class": (kernel("B b; b.v = x[i]; y[i] = b.v;", "struct A { float v; }; struct B : A { float w; };"), "struct B has a base"),
    "destructor": (kernel("A a; a.v = x[i]; y[i] = a.v;", "struct A { float v; __device__ ~A() {} };"), "struct A has"),
    "names of two namespaces": (kernel("y[i] = a::f(x[i]);", "namespace a { __device__ float f(float v) { return v; } }"
                                       "namespace b { __device__ float f(float v) { return 2.f * v; } }"), "the call of a::f"),
    "special case of a template": (kernel("y[i] = f<float>(x[i]);", "template <typename T> __device__ T f(T v) { return v; }"
                                          "template <> __device__ float f<float>(float v) { return 2.f * v; }"), "the call of f"),
    "change through a capture": (kernel("float s = 0.f; auto g = [&](float v) { s += v; }; auto f = [&](float v) { g(v); };"
                                        "for (int k = 0; k < n; ++k) f(x[k]); y[i] = s;"), "in a way that is not followed"),
    "parameter named as a gradient": (kernel("y[i] = x[i] * grad_y[i];", params="const float* x, const float* grad_y, float* y, int n"),
                                      "grad_y is also the name of a gradient, that of y; give it another"),
    "parameter named as a function": (kernel("y[i] = sinf(x[i]) * cosf;", params="const float* x, float cosf, float* y, int n"),
                                      "cosf is also the name of a function that it needs"),
    "shared array named as a gradient": (kernel("__shared__ float s[64], grad_s[64]; s[i] = x[i]; grad_s[i] = x[i]; __syncthreads();"
                                                "y[i] = s[63 - i] * grad_s[0];"), "grad_s is also the name of a gradient"),
    "a number of iterations that is a float": (kernel("float s = 1.f; for (int k = 0; k < a; ++k) s = s * x[k]; y[i] = s;",
                                                      params="const float* x, float* y, float a"), "max_iterations"),
    "condition that calls what changes variables": (kernel("int k = 0; float s = 1.f; while (next(k, n)) s = s * x[k]; y[i] = s;",
                                                    "__device__ bool next(int& k, int n) { ++k; return k < n; }"),
                                                    "the condition of a loop calls what changes variables"),
    "condition with shared memory": (kernel("__shared__ float s[64]; s[threadIdx.x] = x[i]; __syncthreads(); float a = 0.f;"
                                            "for (int k = 0; s[k] > 0.f; ++k) a += x[k]; y[i] = a;"), "whose condition"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_is_refused_with_its_reason(what) -> None:
    source, reason = REFUSED[what]
    with pytest.raises((rawkern.NotDifferentiable, ValueError), match=reason) as error:
        rawkern.RawKernel(source, "k").derive(block=64)
    if isinstance(error.value, rawkern.NotDifferentiable):
        assert "has no derived backward" in str(error.value) and "; " in str(error.value)


#: What a message says to do, done: it has a backward, and the right one.
WAYS_OUT = {
    "a guarded load of a tile": (
        GUARDED.replace("if (k + threadIdx.x < last[0]) s[threadIdx.x] = x[k + threadIdx.x];", "s[threadIdx.x] = x[min(k + threadIdx.x, last[0] - 1)];"),
        lambda x, y: (x, y, torch.tensor([100], dtype=torch.int32), 100)
    ),
    "the next iteration's tile": (
        PREFETCHED.replace("s[0][threadIdx.x] = sinf(x[threadIdx.x]);\n__syncthreads();\n", "").replace(
            "if (k + 1 < n / 64) s[(k & 1) ^ 1][threadIdx.x] = x[64 * (k + 1) + threadIdx.x];",
            "s[k & 1][threadIdx.x] = x[64 * k + threadIdx.x];\n    __syncthreads();",
        ),
        lambda x, y: (x, y, 128),
    ),
    "what iterations overwrite": (kernel("float v = y[i]; for (int j = 0; j < 2; ++j) v = v * x[(i + j) % n] + x[i]; y[i] = v;"), lambda x, y: (x, y, 128)),
    "a struct of pointers in memory": (kernel("y[i] = p.x[i] * p.x[i] * p.n;", "struct P { const float* x; int n; };", "P p, float* y"),
                                       lambda x, y: ({"x": x, "n": 3}, y)),
    "an array of a list by a number": (kernel("const float* p = n > 0 ? xs[1] : xs[0]; float v = 0.f; for (int k = 0; k < 2; ++k) v += xs[k][i] * p[i]; y[i] = v * v;",
                                              params="const float* const* xs, float* y, int n"), lambda x, y: ([x, x.flip(0)], y, 1)),
    "a pointer into an accessor": (accessors("y[i] = x[i][1] * x[i][0];"), lambda x, y: (x.view(-1, 1).repeat(1, 2), y, 128)),
    "an accessor within a function": (accessors("auto row = x[i]; y[i] = row[0] * row[1];"), lambda x, y: (x.view(-1, 1).repeat(1, 2), y, 128)),
    "a union": (kernel("float4 v; float* f = (float*)&v; v = ((float4*)x)[i]; y[i] = f[1] * f[2];"), lambda x, y: (x.repeat(4), y, 128)),
    "a choice that is assigned to": (kernel("float a = 0.f, b = 1.f; if (n > 3) a = x[i]; else b = x[i]; y[i] = a * b;"), lambda x, y: (x, y, 128)),
    "a member called as a parameter": (kernel("y[i] = p.x[i] * x[i];", "struct P { const float* x; };", "P p, const float* x, float* y"),
                                       lambda x, y: ({"x": x}, x + 1, y)),
    "the memory of an accessor": (accessors("y[i] = x[i][1] * x[i][0] * x.size(1) * x.stride(1);"), lambda x, y: (x.view(-1, 1).repeat(1, 2), y, 128)),
    "a dimension that is not known": (accessors("if (i < x.size(0)) y[i] = x[i][0] * x[i][0];"), lambda x, y: (x.view(-1, 1), y, 128)),
    "a list of lists": (kernel("y[i] = xs[0][i] * xs[1][i];", params="const float* const* xs, float* y"), lambda x, y: ([x, x + 1], y)),
    "struct with a gap": (kernel("y[i] = p[i].a * p[i].b;", "struct __align__(8) P { float a, b; };", "const P* p, float* y"),
                          lambda x, y: (x.repeat(2).view(torch.uint8), y)),
    "half and int": (kernel("half a = h[i] * (half)n, b = __float2half(__half2float(h[i]) * __half2float(h[i])); y[i] = a * tiny() + b * __float2half(f);",
                            "#include <cuda_fp16.h>\n__device__ half tiny() { return __float2half(4e-4f); }", "const half* h, half* y, float f, int n"),
                     lambda x, y: (x.half(), y.half(), 0.5, 3)),
    "bits": (kernel("float v = x[i] - 0.5f; float s = signbit(v) ? 2.f : 3.f;"
                    "y[i] = isnan(v) || isinf(v) ? INFINITY : s * fabsf(v) + copysignf(v * v, x[i]) + ldexpf(v, 2);"), lambda x, y: (x, y, 128)),
}  # fmt: skip


#: The same in one kernel, which adds up `o` of each: declarations and a body, where there are other arrays w and z.
BODIES = {
    "in place, of another thread": ("", "o = x[(i + 1) % n] * x[i];"),
    "set and added": ("", "atomicAdd(&z[i], o = x[i] * x[i]); atomicAdd(&z[(i + 64) % n], x[i]);"),
    "a union within": ("", "float4 v = make_float4(x[i], 2.f, x[i], 1.f); float* f = (float*)&v; f[1] *= f[2]; o = v.x * v.y;"),
    "a struct with a union": ("struct S1 { float4 v; };", "S1 s; float* f = (float*)&s.v; f[0] = x[i]; f[1] = 2.f * x[i]; o = s.v.x * s.v.y;"),
    "a load of cub": ("", "float v[1]; v[0] = x[i]; o = v[0] * v[0];"),
    "an array with an alignment": ("", "__shared__ float s1[64]; s1[t] = x[i]; o = s1[t] * x[i];"),
    "volatile shared memory": ("", "__shared__ float s2[64]; s2[t] = x[i]; __syncwarp(); o = s2[t ^ 1] * x[i]; __syncwarp();"),
    "atomicSub": ("", "atomicAdd(&z[i % 4], -(x[i] * x[i]));"),
    "copies by a pipeline": ("", "__shared__ float s3[64]; s3[t] = x[i]; __syncthreads(); o = s3[63 - t] * s3[t];"),
    "struct within": ("struct S2 { float v; __device__ float f() { return v * v; } };", "S2 s{x[i]}; o = s.f();"),
    "?: with two parts": ("", "o = x[i] ? x[i] * x[i] : 1.f;"),
    "pointer to one of two arrays": ("", "const float* p = n > 3 ? w : x; o = p[i] * p[i];"),
    "a loop that a break ends": ("", "float v = x[i]; while (true) { v *= 0.5f; if (v < 0.2f) break; } o = v * v;"),
    "goto by continue in a while": ("", "int k = 0; float h = 1.f; while (k < n / 32) { h = h * x[k]; ++k; } o = h;"),
    "a number of iterations that is a float": ("", "float s = x[i], a = n * 0.03f; for (int k = 0; k < a; ++k) s = s * x[k]; o = s;"),
    "an order that C++ leaves open": ("", "int k = i; float v = k++; v += 10 * k; o = v * x[i];"),
    "unknown function": ("__device__ float after(float v) { return v * 1.5f + 1.f; }", "o = after(x[i]) * x[i];"),
    "results through pointers": ("__device__ float parts(float v, int* e) { *e = 0; while (v >= 1.f) { v *= 0.5f; ++*e; } return v; }",
                                 "int e; o = parts(x[i] * 7.f + 0.1f, &e); o *= o * e;"),
    "unknown name": ("#define SCALE1 3.f\nconst float SCALE2 = 2.f;", "const float scale = 4.f; o = x[i] * x[i] * SCALE1 * SCALE2 * scale;"),
    "pointer cast": ("", "o = ((const float4*)x)[i / 4].y * x[i];"),
    "reinterpret_cast": ("", "float2 v = reinterpret_cast<const float2*>(w)[i / 2]; o = v.x * v.y;"),
    "dynamic shared memory": ("", "extern __shared__ float s4[]; s4[t] = x[i]; __syncthreads(); o = s4[0] * x[i];"),
    "pointers to two arrays": ("", "const float* p = x; for (int k = 0; k < 2; ++k) { o += p[i] * p[i]; p = w; }"),
    "break after a read": ("", "float s = 0.f; for (int k = 0; k < 5; ++k) { float v = x[k]; if (v < 0.01f) break; s += v; if (s > 1.f) break; } o = s * x[i];"),
    "goto": ("", "for (int k = 0; k < 2; ++k) o += x[i] * x[i];"),
    "switch that falls through": ("", "switch (i % 3) { case 1: o = x[i]; o *= x[i] * 2.f; break; case 2: o = x[i] * 2.f; break; }"),
    "break within a case": ("", "switch (i % 3) { case 1: if (i <= 9) o = x[i] * x[i]; break; case 2: o = x[i]; break; }"),
    "if constexpr of a number": ("", "if (n > 3) o = x[i] * x[i];"),
    "partial mask": ("", "o = __shfl_xor_sync(0xffffffff, x[i], 1) * x[i];"),
    "volatile in parts of warps": ("", "float v = x[i]; v += __shfl_down_sync(0xffffffff, v, 16); o = v * v;"),
    "struct in memory": ("", "o = x[i] * w[i];"),
    "macro type": ("#define real float", "real v = x[i]; o = v * v;"),
    "macro that pastes": ("__device__ float K(int v) { return 1.5f * v; }", "o = K(2) * x[i] * x[i];"),
    "recursion": ("", "float v = x[i] * 3.f; while (v > 1.f) v = v * 0.5f; o = v * v;"),
    "overloads": ("__device__ float f1(float v) { return v * v; } __device__ int f1(int v) { return v; }", "o = f1(n ? x[i] : 1.f) * f1(3);"),
    "large local array": ("", "float a[999] = {0.f}; a[n % 4] = x[i]; o = a[n % 4] * a[0];"),
    "index of a local array of structs": ("struct P { float v, w; };", "P a[9]; for (int k = 0; k < 9; ++k) { a[k].v = x[i]; a[k].w = k; } o = a[n % 4].v * a[n % 9].w;"),
    "device variable": ("", "o = x[i] * w[0];"),
    "device pointer": ("__constant__ float table[3] = {1.f, 2.f, 3.f};", "o = x[i] * x[i] * table[i % 3];"),
    "mutable lambda": ("", "float s = x[i]; auto f = [&]() { s += 1.f; return s; }; o = f() * x[i];"),
    "base class": ("struct B1 { float v, w; };", "B1 b; b.v = x[i]; b.w = 2.f * x[i]; o = b.v * b.w;"),
    "names of two namespaces": ("namespace a1 { __device__ float fa(float v) { return v; } } namespace b1 { __device__ float fb(float v) { return 2.f * v; } }",
                                "o = a1::fa(x[i]) * b1::fb(x[i]);"),
    "change through a capture": ("", "float s = 0.f; auto g = [&](float v) { return v * v; }; for (int k = 0; k < 5; ++k) s += g(x[k]); o = s * x[i];"),
    "shared array named as a gradient": ("", "__shared__ float s5[64], g5[64]; s5[t] = x[i]; g5[t] = x[i]; __syncthreads(); o = s5[63 - t] * g5[0];"),
    "condition that calls what changes variables": ("__device__ bool next(int& k, int n) { ++k; return k < n; }",
                                                    "int k = 0; float s = x[i]; for (int j = 0; j < 3; ++j) { next(k, n); s = s * x[k]; } o = s;"),
    "condition with shared memory": ("", "__shared__ float s6[64]; s6[t] = x[i]; __syncthreads(); float s = 0.f; bool more = s6[0] > 0.f;"
                                         "for (int k = 0; more; ++k) { s += x[k]; more = k < 4 && s6[k] > 0.f; } o = s * x[i];"),
}  # fmt: skip


@pytest.mark.parametrize("what", WAYS_OUT)
def test_what_a_message_says_to_do_works(what) -> None:
    assert what in REFUSED
    source, given = WAYS_OUT[what]
    found = rawkern.RawKernel(source, "k").derive(block=64)
    assert found.verify(2, given(torch.rand(128), torch.empty(128))) < 1e-5


def test_what_other_messages_say_to_do_works() -> None:
    head = 'extern "C" __global__ void k(const float* x, const float* w, float* y, float* z, int n)'
    parts = [f"{{ float o = 0.f; {{ {body} }} sum += {k + 1} * o; }}" for k, (_, body) in enumerate(BODIES.values())]
    lines = [f"{head} {{", INDEX, "int t = threadIdx.x; float sum = 0.f;", *parts, "y[i] = sum;", "}"]
    source = "\n".join([*(before for before, _ in BODIES.values()), *lines])
    found = rawkern.RawKernel(source, "k").derive(block=64, max_iterations=16, shared_mem=256)
    assert found.verify(2, (torch.rand(128), torch.rand(128), torch.zeros(128), torch.zeros(128), 128)) < 1e-5


#: What says to do what another message says.
ALIKE = {
    "what another thread wrote": "in place, of another thread",
    "what another path wrote": "in place, of another thread",
    "what the iteration before wrote": "in place, of another thread",
    "bytes as two types": "dynamic shared memory",
    "stale tiles": "the next iteration's tile",
    "macro of a function that is not known": "unknown function",
    "special case of a template": "unknown function",
    "parameter named as a gradient": "shared array named as a gradient",
    "parameter named as a function": "shared array named as a gradient",
    "half without operators": "half and int",
    "half by value": "half and int",
    "bits of half": "half and int",
}
#: What other tests do.
ELSEWHERE = {
    "a reduction of vectors": "cases_groups.py: cub::WarpReduce<float, 8>",
    "another generator": "test_random_numbers.py: curandStatePhilox4_32_10_t",
}
#: What has to be left out, or to be written by hand as a whole.
WITHOUT = {
    "a scan of cub", "tensor cores", "asm", "atomicMax", "value of an atomic", "text that is not C", "macro of a parameter",
    "volatile", "static", "destructor", "#if of the compiler's", "#error",
}  # fmt: skip


def test_each_message_that_says_what_to_do_has_a_test_of_it() -> None:
    known = [*BODIES, *WAYS_OUT, *ALIKE, *ELSEWHERE, *WITHOUT]
    assert sorted(known) == sorted(REFUSED)
    assert {*ALIKE.values()} <= {*BODIES, *WAYS_OUT}
    for where in ELSEWHERE.values():
        file, _, text = where.partition(": ")
        assert text in (Path(__file__).parent / file).read_text()


def test_names_the_line_of_the_text() -> None:
    source = kernel("float v = 1.f;\ny[i] = v * __uint_as_float(n) * x[i];")
    with pytest.raises(rawkern.NotDifferentiable, match=r"line 5: k has no derived backward: __uint_as_float"):
        rawkern.RawKernel(source, "k").derive(block=64)


def test_wrt_names_what_is_not_there() -> None:
    with pytest.raises(ValueError, match="wrt names 'n', which is not a floating-point parameter of k; it has x"):
        rawkern.RawKernel(kernel("y[i] = x[i];"), "k").derive(block=64, wrt=("n",))


def test_headers_of_options_are_refused(tmp_path) -> None:
    (tmp_path / "own.h").write_text("#define K 2.f\n")
    given = rawkern.RawKernel(kernel("y[i] = K * x[i];"), "k", options=(f"-include={tmp_path}/own.h",))
    with pytest.raises(rawkern.NotDifferentiable, match=r"own\.h includes a header; write that as an #include"):
        given.derive(block=64)


def test_a_grid_that_it_was_not_derived_for_is_refused() -> None:
    found = rawkern.RawKernel(kernel("if (i < n) y[i] = x[i];"), "k").derive(block=64)
    x, y = torch.rand(100), torch.rand(100)
    with pytest.raises(rawkern.LaunchError, match=r"gridDim\.y = 1 and the grid has 3 blocks"):
        found((2, 3), (x, y, 100), {"y": y})
    wide = rawkern.RawKernel(kernel("if (i < n) y[i] = x[i];"), "k").derive(block=64, grid=(2, 3))
    assert found.atomics == 0 and wide.atomics == 1


def test_arguments_without_a_member_are_refused() -> None:
    source = kernel(
        "y[i] = p.x[i] * xs[1][i];", "struct P { const float* x; int n; };", "P p, const float** xs, float* y"
    )
    found, x = rawkern.RawKernel(source, "k").derive(block=64), torch.rand(64)
    for args, reason in (
        (({"n": 1}, [x, x], x), "p is dict without x; pass a struct as a dict by member"),
        (({"x": x, "n": 1}, [x], x), "xs is list without 1; pass .* a list of arrays as a list of tensors"),
        (({"x": x, "n": 1}, x, x), "xs is Tensor without 1"),
        (({"x": 3, "n": 1}, [x, x], x), "p_x is int; pass a torch.Tensor"),
    ):
        with pytest.raises(TypeError, match=reason):
            found(1, args, {})
    with pytest.raises(rawkern.LaunchError, match="y and p_x share memory"):
        found(1, ({"x": x, "n": 1}, [x, x[:]], x), {})


def test_outputs_that_overlap_inputs_are_refused() -> None:
    found = rawkern.RawKernel(kernel("if (i < n) y[i] = x[i] * x[i];"), "k").derive(block=64)
    x = torch.rand(100)
    with pytest.raises(rawkern.LaunchError, match="y and x share memory"):
        found(2, (x, x, 100), {"y": x})
