"""What of C++ is read: pointers that move, casts, overloads, shared memory of functions and of the launch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import rawkern
from rawkern.gradients.ir import Value
from rawkern.gradients.reading.context import Context
from rawkern.gradients.reading.handlers import cuda_functions
from rawkern.gradients.reading.order import of_values


def gradients(source, x, shared_mem=0, block=64, **settings):
    """The gradients of the sum of y by x, checked; of a kernel ``k(const float* x, float* y)`` with 64 of each."""
    found = rawkern.RawKernel(source, "k").derive(block=block, shared_mem=shared_mem, **settings)
    with rawkern.check():
        grads = found(1, (x, torch.empty(64)), {"y": torch.ones(64)})
    return grads["x"], found


def test_pointers_that_move_and_functions_by_their_types() -> None:
    source = """
    __device__ float f(float v);
    __device__ float f(const float* p) { return p[0] * p[1]; }
    __device__ float f(float v) { return v * v; }
    __device__ float f(float v, int n) { return v * n; }
    extern "C" __global__ void k(const float* x, float* y) {
        const float* p = x + threadIdx.x % 8;
        float s = 0.f;
        for (int j = 0; j < 3; ++j) { s += f(*p) + f(p); p += 8; }
        if (threadIdx.x > 31) p -= 16; else p = p - 8;
        s += f(*p++, 3);
        y[threadIdx.x] = s + p[-1] + (y != nullptr ? 1.f : x[0]);
    }"""
    x = torch.rand(64).requires_grad_()
    t = torch.arange(64)
    s = sum(x[t % 8 + 8 * j] ** 2 + x[t % 8 + 8 * j] * x[t % 8 + 8 * j + 1] for j in range(3))
    last = x[t % 8 + torch.where(t > 31, 8, 16)]
    (right,) = torch.autograd.grad((s + 4 * last).sum(), x)
    torch.testing.assert_close(gradients(source, x.detach())[0], right)


def test_views_of_arrays_and_of_local_variables() -> None:
    source = """
    #define LOAD4(v) (*reinterpret_cast<const float4*>(&(v)))
    extern "C" __global__ void k(const float* x, float* y) {
        __shared__ float tile[4][16];
        int t = threadIdx.x;
        if (t < 16) *(float4*)&tile[t / 4][t % 4 * 4] = LOAD4(x[t * 4]);
        __syncthreads();
        float own[4];
        ((float4*)own)[0] = reinterpret_cast<float4*>(tile[t / 16])[t % 4];
        float4 v = make_float4(own[0], own[1], own[2], own[3]);
        float* p = (float*)&v;
        float2 pair = ((float2*)p)[1];
        p[0] = p[3] * p[1];
        y[t] = v.x + own[2] * pair.y + sizeof(float4) + sizeof(v);
    }"""
    x = torch.rand(64).requires_grad_()
    t = torch.arange(64)
    _, b, c, d = (x[t // 16 * 16 + t % 4 * 4 + k] for k in range(4))
    (right,) = torch.autograd.grad((d * b + c * d).sum(), x)
    grads, found = gradients(source, x.detach())
    torch.testing.assert_close(grads, right)
    assert "const float4* __restrict__ x" in found.source, "all reads are of vectors"


SHARED = """
__device__ float total(float v) {
    %s float part[64];
    part[threadIdx.x] = v;
    __syncthreads();
    float s = part[threadIdx.x] + part[63 - threadIdx.x];
    __syncthreads();
    return s;
}
%s
extern "C" __global__ void k(const float* x, float* y) {
    %s
    float s = total(x[threadIdx.x]);
    a[threadIdx.x] = s * s;
    b[threadIdx.x] = total(s);
    __syncthreads();
    y[threadIdx.x] = a[63 - threadIdx.x] * b[threadIdx.x ^ 1];
}"""


@pytest.mark.parametrize(
    ("top", "inside"),
    [
        ("", "extern __shared__ float a[]; float* b = a + 64;"),
        ("extern __shared__ unsigned char bytes[];", "float* a = (float*)bytes; float* b = (float*)(bytes + 64 * sizeof(float));"),
        ("extern __shared__ int words[];", "float* a = (float*)words; float* b = reinterpret_cast<float*>(words + 64);"),
    ],
)  # fmt: skip
def test_shared_memory_of_a_function_and_of_the_launch(top, inside) -> None:
    x = torch.rand(64).requires_grad_()
    s = x + x.flip(0)
    b = (s + s.flip(0))[torch.arange(64) ^ 1]
    (right,) = torch.autograd.grad(((s * s).flip(0) * b).sum(), x)
    source = SHARED % ("static __shared__", top, inside)
    grads, found = gradients(source, x.detach(), shared_mem=512)
    torch.testing.assert_close(grads, right)
    assert found.shared_mem == 1024  # with the gradients
    assert found.verify(1, (x.detach(), torch.empty(64))) < 1e-6


def test_a_type_that_only_a_loop_written_out_shows() -> None:
    """The loop is written out for the local array; only then is the cast of the bytes read."""
    text = """extern "C" __global__ void k(const void* bytes, float* y) {
    float v[3];
    for (int j = 0; j < 3; ++j) { v[j] = j + 1; v[j] += ((const float*)bytes)[threadIdx.x]; }
    y[threadIdx.x] = v[0] * v[1] * v[2];
}"""
    found = rawkern.RawKernel(text, "k").derive(block=64, wrt=("bytes",))
    assert found.verify(1, (torch.rand(64), torch.empty(64))) < 1e-6


def test_a_local_array_in_memory_after_a_loop_that_is_written_out() -> None:
    text = """extern "C" __global__ void k(const float* x, const float* w, float* y, int n) {
    const float* p = x;
    float sum = 0.f, a[4] = {0.f};
    for (int j = 0; j < 2; ++j) { sum += p[threadIdx.x] * p[0]; p = w; }
    a[n % 4] = sum;
    y[threadIdx.x] = a[n % 3] * sum;
}"""
    found, x = rawkern.RawKernel(text, "k").derive(block=64), torch.rand(64)
    assert found.verify(1, (x, x + 1, torch.empty(64), 1)) < 1e-6


def test_bytes_that_hold_two_types_are_refused() -> None:
    source = """extern "C" __global__ void k(const float* x, float* y) {
        extern __shared__ char bytes[];
        float* a = (float*)bytes;
        int* b = (int*)(bytes + 256);
        a[threadIdx.x] = x[threadIdx.x];
        b[threadIdx.x] = threadIdx.x;
        y[threadIdx.x] = a[b[threadIdx.x]];
    }"""
    words = source.replace("char bytes", "int bytes").replace("(int*)(bytes + 256)", "bytes + 64")
    for text in (source, words, source.replace("char bytes", "int bytes").replace("b[threadIdx.x]]", "bytes[64]]")):
        with pytest.raises(
            rawkern.NotDifferentiable, match=r"the cast|cast to several types|points to another type|used as of"
        ):
            gradients(text, torch.rand(64), shared_mem=512)


def test_more_elements_than_an_index_counts_are_refused() -> None:
    found = rawkern.RawKernel(
        'extern "C" __global__ void k(const char* x, const float* w, float* y) { *y = *x * *w; }', "k"
    ).derive(block=1)
    many = torch.empty(1, dtype=torch.int8).expand(2**31)
    with pytest.raises(ValueError, match="x has 2147483648 elements"):
        found(1, (many, torch.ones(1), torch.ones(1)), {"y": torch.ones(1)})


def test_what_follows_a_switch_or_a_break_is_read_once() -> None:
    source = """extern "C" __global__ void k(const float* x, float* y) {
        __shared__ float s[64];
        int t = threadIdx.x;
        float v = x[t];
        switch (t % 3) {
            case 0: v = v * v; break;
            case 1: v = 2.f * v;
        }
        for (int j = 0; j < 4; ++j) { if (j * v > 1.5f) break; v += x[t] * j; }
        s[t] = v;
        __syncthreads();
        y[t] = s[63 - t] * v;
    }"""
    x = torch.rand(64).requires_grad_()
    t = torch.arange(64)
    v = torch.where(t % 3 == 0, x * x, torch.where(t % 3 == 1, 2 * x, x))
    on = torch.ones(64, dtype=torch.bool)
    for j in range(4):
        on = on & (j * v <= 1.5)
        v = torch.where(on, v + x * j, v)
    (right,) = torch.autograd.grad((v.flip(0) * v).sum(), x)
    grads, found = gradients(source, x.detach())
    torch.testing.assert_close(grads, right)
    assert 2 <= found.source.count("__syncthreads") <= 4, found.source


def test_references_and_what_a_gradient_does_not_see() -> None:
    source = """#include <cassert>
    extern "C" __global__ void k(const float* x, float* y) {
        static_assert(sizeof(float) == 4, "floats");
        static constexpr float factor = 2.f;
        int t = threadIdx.x;
        assert(t < 64);
        if (t > 99) printf("%d\\n", t);
        __shared__ float s[64];
        float total = 1.f, kept[2] = {0.f, 3.f};
        float &all = total, &second = kept[1], &here = s[t];
        const float& v = x[t];
        const auto& twice = factor * v;
        here = v * v;
        for (int j = 0; j < 3; ++j) { all *= v; second += all; here += twice; }
        y[t] = total * here + kept[1];
    }"""
    x = torch.rand(64).requires_grad_()
    (right,) = torch.autograd.grad((x**3 * (x * x + 6 * x) + x + x**2 + x**3).sum(), x)
    torch.testing.assert_close(gradients(source.replace("#include <cassert>", ""), x.detach())[0], right)


@pytest.mark.parametrize(
    "mask", ["const unsigned m = 0xffffffffu", "unsigned m = ~0u", "auto m = -1", "unsigned m = -1"]
)
def test_masks_of_whole_warps_that_have_a_name(mask) -> None:
    shuffle = "for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(m, v, o);"
    source = f"""extern "C" __global__ void k(const float* x, float* y) {{
        {mask};
        float v = x[threadIdx.x];
        {shuffle}
        y[threadIdx.x] = v * v;
    }}"""
    x = torch.rand(64)
    torch.testing.assert_close(gradients(source, x)[0], 64 * x.view(2, 32).sum(1).repeat_interleave(32))


CONDITIONS = {
    "counts down": "int k = n; while (k--) a += x[i * n + k] * x[i * n + k]; y[i] = a * k;",
    "counts down in a for": "int k, c = 0; for (k = n; k-- > 0;) { if (k == 2) continue; if (x[i * n + k] > 0.9f) break; c += k; a += x[i * n + k] * x[i * n + k]; } y[i] = a * (c + k);",
    "before": "int k = 5, j = 0; while (--k > 1) j += 2; y[i] = x[i] * (k + 10 * j);",
    "reads": "float v; int k = 0; while ((v = x[i * n + k]) > -0.5f && k < n - 1) { a += v; ++k; } y[i] = a * a + v;",
    "carries on": "int k = 0; a = 1.f; while (k++ < n && a < 1.5f) a *= 1.f + 0.5f * x[i * n + k - 1]; y[i] = a * k;",
    "by a number": "for (int k = 4; k; k >>= 1) { a = a * x[i + k] + 1.f; } if (i % 3) y[i] = a;",
    "of pointers": "const float* p = x + i * n; const float* end = p + n; while (p < end) { a += *p * *p; ++p; } for (p = x + i * n + 1; p != end; p++) a = a * 0.5f + *p; y[i] = a;",
    "of a do": "int k = 0; do a += x[i * n + k] * k; while (++k < n); y[i] = a * k;",
}  # fmt: skip


@pytest.mark.parametrize("what", CONDITIONS)
def test_conditions_that_change_something(what) -> None:
    """Once more than the iterations, as C has it."""
    source = f"""extern "C" __global__ void k(const float* x, float* y, int n) {{
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        float a = 0.f;
        {CONDITIONS[what]}
    }}"""
    x = torch.rand(32 * 6, generator=torch.Generator().manual_seed(1)) * 2 - 1
    found = rawkern.RawKernel(source, "k").derive(block=32, max_iterations=8)
    assert found.verify(1, (x, torch.zeros(32), 6)) < 1e-5


NEXT = """
__device__ int next(int& s) { s = s * 3 + 1; return s; }
__device__ float pair(float a, float b) { return a + 100.f * b; }
struct Kept { int a, b; };
"""
ORDERED = {
    "++ on the left": "y[k++] = x[k] * x[k];",
    "++ on the right": "y[k] = x[k++];",
    "added to": "y[k++] += x[k];",
    "a factor": "y[k] = k++ * x[i];",
    "the same variable": "k = k++ + 1; y[k] = x[i];",
    "the same, added to": "k += k++; y[i] = (k + 1) * x[i];",
    "set in the index": "y[(k = 1)] = (k + 1) * x[i];",
    "a call on the left": "y[next(k) % 8] = x[i] * (k + 1);",
    "a call on the right": "y[k] = x[i] * next(k);",
    "a variable after a call": "float z = next(k) - 3 * k; y[i] = z * x[i];",
    "a value before a call": "float z = (k + 1) * 2 - next(k); y[i] = z * x[i];",
    "calls as operands": "float z = next(k) + 10 * next(k); y[i] = z * x[i];",
    "calls as arguments": "float z = pair(next(k), next(k)); y[i] = z * x[i];",
    "a local array": "float a[2]; int j = 0; a[j++] = x[j]; a[j++] = x[j]; y[i] = a[0] * a[1];",
    "a pointer": "const float* p = x; float z = *p++ * 2.f; z += *p; y[i] = z;",
    "chosen": "float z = (k++ > 0 ? k : k + 1) * x[i]; y[i] = z + (k++ && k > 1);",
}
UNORDERED = {
    "++ beside": "float z = k++ + 10 * k; y[i] = z * x[i];",
    "a call beside": "float z = k - next(k); y[i] = z * x[i];",
    "arguments": "float z = pair(k, k++); y[i] = z * x[i];",
    "arguments of CUDA's": "float z = fmaf(k, 2.f, k++); y[i] = z * x[i];",
    "an assignment beside": "float z = x[i]; y[i] = z * (z = 3.f);",
    "memory": "y[i] = (y[i] = 2.f) * x[i] + y[i];",
    "a pointer": "const float* p = x; y[i] = *p++ + *p;",
    "a list": "Kept s = {k++, k}; y[i] = x[i] * s.a;",
    "comparisons": "y[i] = k++ < k ? x[i] : 0.f;",
}  # fmt: skip


def sequenced(text):
    return rawkern.RawKernel(
        NEXT + f"""extern "C" __global__ void k(const float* x, float* y, int n) {{
        int i = threadIdx.x;
        if (i >= n / 2) return;
        int k = 2 * i;
        {text}
    }}""", "k").derive(block=32)  # fmt: skip


@pytest.mark.parametrize("what", ORDERED)
def test_the_order_of_evaluation_is_that_of_cpp17(what) -> None:
    """The right side of an assignment comes first; `verify` compares with the compiled kernel, too."""
    threads = (
        1
        if what in ("set in the index", "a local array", "a pointer", "a call on the left", "a call on the right")
        else 4
    )
    assert sequenced(ORDERED[what]).verify(1, (torch.linspace(0.5, 2.0, 12), torch.zeros(40), 2 * threads)) < 1e-5


@pytest.mark.parametrize("what", UNORDERED)
def test_an_order_that_is_left_open_is_refused(what) -> None:
    with pytest.raises(rawkern.NotDifferentiable, match=r"changes \w and uses it, in an order that C\+\+ leaves open"):
        sequenced(UNORDERED[what])


def test_shuffles_by_lanes_that_are_computed() -> None:
    source = """
    extern "C" __global__ void k(const float* x, float* y, int n) {
        const unsigned all = 0xffffffff;
        int t = threadIdx.x;
        float v = x[t], s = 0.f;
        s += 2.f * __shfl_xor_sync(all, v, t % 3) + 3.f * __shfl_down_sync(all, v, t % 5) + __shfl_up_sync(all, v, t % 4 + n);
        s += 5.f * __shfl_sync(all, v, (t * 7 + n) % 32) + 6.f * __shfl_sync(all, v * v, t - 40);
        s += 7.f * __shfl_sync(all, v, t * 3 + n, 8) + 8.f * __shfl_xor_sync(all, v, t % 16 + n, 8);
        s += 9.f * __shfl_down_sync(all, v, t % 5 + n, 8) + 10.f * __shfl_up_sync(all, v, t % 5 + n, 8);
        for (int k = 0; k < n + 5; ++k) s += __shfl_sync(all, v * v, k) * x[k];
        y[t] = v * s;
    }"""
    found = rawkern.RawKernel(source, "k").derive(block=64)
    assert found.verify(1, (torch.rand(64), torch.empty(64), 2)) < 1e-6


def test_votes_of_a_block_and_comma_expressions() -> None:
    source = """
    extern "C" __global__ void k(const float* x, float* y, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x, k = 1;
        int many = __syncthreads_count(i < n && x[i] > 0.5f);
        int any = __syncthreads_or(i < n && x[i] > 0.9f);
        int all = __syncthreads_and(i >= n || x[i] > 0.1f);
        if (i >= n) return;
        float v = (++k, x[i] * x[i]);
        y[i] = k * v * many + (any ? sinf(v) : 0.f) + (all ? 1.f : v);
    }"""
    x = torch.rand(150).requires_grad_()
    b = torch.cat([x, x.new_tensor([-1.0] * 42)]).view(3, 64)
    own = torch.arange(192).view(3, 64) < 150
    many, some, every = (b > 0.5).sum(1), (b > 0.9).any(1), ((b > 0.1) | ~own).all(1)
    v = b * b
    y = 2 * v * many[:, None] + torch.where(some[:, None], v.sin(), 0) + torch.where(every[:, None], 1.0, v)
    (right,) = torch.autograd.grad(y[own].sum(), x)
    found = rawkern.RawKernel(source, "k").derive(block=64)
    with rawkern.check():
        grads = found(3, (x.detach(), torch.empty(150), 150), {"y": torch.ones(150)})
    torch.testing.assert_close(grads["x"], right)


LOCAL = {
    "set": "float a[4] = {0.f}; a[(n + t) % 4] = v * v; y[t] = a[0] * 2.f + a[1];",
    "counted": "float a[4] = {}; for (int k = 0; k < n; ++k) a[k % 3] += x[k] * v; y[t] = a[0] * a[1] + a[2];",
    "rows and vectors": "float a[2][3] = {{v, 1.f}, {v * v}}; float2 b[2]; b[0] = make_float2(v, 1.f); b[1] = make_float2(2.f, v * v);"
                        "float2 c = b[t % 2]; y[t] = a[n % 2][t % 3] * c.x * c.y;",
    "by a pointer": "float a[4] = {v, 2.f * v, v * v, 1.f}; int s[4] = {0, 1, 2, 3}; s[n % 4] = 7; float* p = a + n % 2; y[t] = p[t % 2] * *p * s[t % 4];",
    "exchanged": "float a[4] = {v, 2.f * v, v * v, 1.f}; int i = t % 4, j = (t + n) % 4; float s = a[i]; a[i] = a[j] * 3.f; a[j] = s;"
                 "y[t] = a[0] + a[1] * a[2] + a[3];",
}  # fmt: skip


@pytest.mark.parametrize("what", LOCAL)
def test_local_arrays_by_an_index_that_is_not_known(what) -> None:
    head = 'extern "C" __global__ void k(const float* x, float* y, int n) { int t = threadIdx.x; float v = x[t];'
    found = rawkern.RawKernel(f"{head} {LOCAL[what]} }}", "k").derive(block=64)
    assert found.verify(1, (torch.rand(64), torch.empty(64), 3)) < 1e-6


def test_casts_to_references() -> None:
    source = """
    extern "C" __global__ void k(const float* x, float* y, int n) {
        int t = threadIdx.x * 4;
        __shared__ float s[64];
        (float4&)s[t] = (const float4&)x[t];
        __syncthreads();
        float4 v = reinterpret_cast<float4&>(s[60 - t]);
        float a[8];
        (float4&)a[4] = v;
        float2& h = (float2&)a[5];
        h.x = h.x * h.y;
        float4& r = (float4&)y[t];
        r = (float4&)a[4];
        r.w = v.z * v.z;
    }"""
    found = rawkern.RawKernel(source, "k").derive(block=16)
    assert found.verify(1, (torch.rand(64), torch.empty(64), 3)) < 1e-6


def test_a_pack_of_128_bits_as_published() -> None:
    source = """
    template <class ElementType>
    struct alignas(16) Packed128 {
        Packed128() = default;
        __device__ explicit Packed128(int4 bits) {
            static_assert(sizeof(bits) == sizeof(payload), "Size mismatch.");
            memcpy(&payload, &bits, sizeof(bits));
        }
        __device__ ElementType& operator[](int index) { return payload[index]; }
        __device__ const ElementType& operator[](int index) const { return payload[index]; }
        __device__ int4 get_bits() const {
            int4 bits;
            memcpy(&bits, &payload, sizeof(bits));
            return bits;
        }
        static constexpr const size_t size = sizeof(int4) / sizeof(ElementType);
        ElementType payload[size];
    };
    typedef Packed128<float> f128;
    template <class ElementType> __device__ Packed128<ElementType> load128(const ElementType* address) {
        return Packed128<ElementType>{*reinterpret_cast<const int4*>(address)};
    }
    template <class ElementType> __device__ void store128(ElementType* target, Packed128<ElementType> value) {
        *reinterpret_cast<int4*>(target) = value.get_bits();
    }
    extern "C" __global__ void k(const float* x, float* y, int n) {
        int t = threadIdx.x * f128::size;
        f128 a = load128(x + t), b;
        for (int k = 0; k < f128::size; ++k) b[k] = a[k] * a[(k + 1) % 4];
        store128(y + t, b);
    }"""
    found = rawkern.RawKernel(source, "k").derive(block=16)
    assert found.verify(1, (torch.rand(64), torch.empty(64), 3)) < 1e-6


def test_pointers_that_are_swapped_in_a_loop() -> None:
    source = """
    extern "C" __global__ void k(const float* x, float* y, int n) {
        int t = threadIdx.x;
        __shared__ float a[64], b[64];
        float *p = a, *q = b;
        p[t] = x[t] * x[t];
        __syncthreads();
        for (int s = 1; s < 64; s *= 2) {
            q[t] = t >= s ? p[t] * 0.9f + p[t - s] : p[t];
            __syncthreads();
            float* h = p;
            p = q;
            q = h;
        }
        y[t] = p[t];
    }"""
    found = rawkern.RawKernel(source, "k").derive(block=64)
    assert found.verify(1, (torch.rand(64), torch.empty(64), 3)) < 1e-6


def test_one_function_with_a_decorator_supports_one_more_of_cuda(monkeypatch) -> None:
    monkeypatch.setattr(cuda_functions, "known", dict(cuda_functions.known))

    @of_values("nextafterf", arguments=2)
    def nextafter(ctx: Context, node: Any, name: str, value: Any, to: Any) -> Value:
        return ctx.number(node, value)  # as far as a gradient goes

    source = """extern "C" __global__ void k(const float* x, float* y) {
        int t = threadIdx.x;
        y[t] = x[t] * nextafterf(x[t], 1.f);
    }"""
    found = rawkern.RawKernel(source, "k").derive(block=64)
    assert found.verify(1, (torch.rand(64), torch.empty(64))) < 1e-6
    with pytest.raises(AssertionError, match="nextafterf has two handlers"):
        of_values("nextafterf", arguments=2)(nextafter)


OVERLOADS = """
__global__ void k(const float* x, float* y, int n) { if (threadIdx.x < n) y[threadIdx.x] = x[threadIdx.x]; }
__global__ void k(const float* __restrict__ x, float* y, float s, int n) {
    if (threadIdx.x < n) y[threadIdx.x] = x[threadIdx.x] * s;
}"""


def test_an_overload_of_a_kernel_is_selected_by_its_types() -> None:
    x = torch.rand(64)
    found = rawkern.RawKernel(OVERLOADS, "k(const float*, float*, float, int)").derive(block=64)
    torch.testing.assert_close(found(1, (x, x + 1, 3.0, 64), {"y": torch.ones(64)})["x"], torch.full((64,), 3.0))
    assert found.verify(1, (x, x + 1, 3.0, 64)) < 1e-6
    with pytest.raises(
        rawkern.NotDifferentiable, match=r"k has several overloads; name one of them: k\(const float\*, "
    ):
        rawkern.RawKernel(OVERLOADS, "k").derive(block=64)
