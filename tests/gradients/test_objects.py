"""What C++ means by objects, overloads, references and lambdas: the kernel as it was read is compared with the kernel."""

from __future__ import annotations

import re

import pytest
import torch

import rawkern

TYPES = """
struct V { float x, y; int n = 2;
  __device__ V() : x(0.5f), y(1.f) {}
  __device__ V(float x, float y) : x(x), y(y) { n = 3; }
  __device__ explicit V(float s) : V(s, 2.f * s) {}
  __device__ V& operator+=(const V& o) { x += o.x; y += o.y; n++; return *this; }
  __device__ V operator-() const { return V(-x, -y); }
  __device__ V operator*(const V& o) const { return {x * o.x, y * o.y}; }
  __device__ V operator*(float s) const { V r = *this; r.x *= s; r.y *= s; return r; }
  __device__ bool operator<(const V& o) const { return x < o.x; }
  __device__ float& get(int i) { return i == 0 ? x : y; }
  __device__ float len2() const { float x = this->x * this->x; return x + y * y; }
  __device__ void bump(float d) { x += d; this->y -= d * x; }
  __device__ void twice(float d) { bump(d); bump(2.f * d); }
  __device__ float sum_to(int k) { float s = 0.f; for (int j = 0; j < k; ++j) { bump(0.1f * j); s += len2(); } return s; }
  template <typename T> __device__ T scaled(T s) const { return s * x; }
  static __device__ V unit() { return V(1.f, 0.f); }
};
__device__ V operator*(float s, const V& v) { return v * s; }
__device__ V operator+(V a, const V& b) { a += b; return a; }
__device__ float f(float v) { return v * v; }
__device__ float f(int v) { return v * 0.5f; }
__device__ float f(double v) { return (float)v + 1.f; }
__device__ float g(const V& v, float s = 2.f) { return v.x * s; }
__device__ void upd(V* p, float d) { p->x += d; p->y *= 2.f; }
__device__ void swap(float& a, float& b) { float t = a; a = b; b = t; }
__device__ float first(const float* p, int n, float lim) { for (int i = 0; i < n; ++i) { for (int j = 0; j < 2; ++j) { if (p[i] * (j + 1) > lim) return p[i] * p[j]; } } return -1.f; }
__device__ float sel(float v, int k) { for (int i = 0; i < 4; ++i) { switch (k) { case 0: return v; case 1: v *= 2.f; break; default: v += 0.1f; } if (v > 3.f) break; if (i == 2) return v * v; } return v + 10.f; }
template <typename T> __device__ T mx(T a, T b) { return a < b ? b : a; }
template <typename F> __device__ float twice(F fn, float v) { return fn(fn(v)); }
struct Acc { float s = 0.f; __device__ void operator()(float v) { s += v * v; } };
struct Mat { float m[2][2]; __device__ float& at(int i, int j) { return m[i][j]; } __device__ const float* row(int i) const { return m[i]; } };
struct C1 { float v; __device__ C1() {} __device__ C1(const C1& o) : v(o.v) {} __device__ C1& operator=(const C1& o) { v = o.v; return *this; } };
struct A2 { float v; __device__ A2& operator=(float s) { v = s * s; return *this; } };
struct T1 { float a = 1.f, b = 2.f; __device__ void run(float d) { for (int j = 0; j < 3; ++j) { this->a += d * j; b *= this->a; } } };
struct W { V a; V b[2]; float t; };
"""
PARTS = {
    "overload": "y[i] = f(x[i]) + f(2) + f(1.5) + f(x[i] > 0.f ? 1 : 2);",
    "ctor": "V a; V b(x[i], 2.f); V c{x[i], 1.f}; V d = V(x[i]); V e{}; y[i] = a.x + b.len2() + c.n * c.x + d.y * d.n + e.x + e.n;",
    "chain": "V a(x[i], 1.f), b(2.f, x[i]), c(x[i], x[i]); (a += b) += c; y[i] = a.x * a.y + a.n; (a += b).x = 7.f; y[i] += a.x;",
    "implicit": "V a(x[i], 1.f); y[i] = a.sum_to(3) + a.x;",
    "ref": "V a(x[i], 1.f); V& r = a; r.x *= 2.f; const V& c = a; a.y += c.x; float& q = a.y; q *= q; y[i] = a.x + r.y + c.y;",
    "byval": "V a(x[i], 1.f); V b = a; b.x = 9.f * x[i]; V c = a + b; y[i] = a.x + b.x + c.x; upd(&a, x[i]); y[i] += a.x * a.y; V* p = &b; p->y = x[i]; y[i] += b.y * p->x; auto q = &a; q->x = 3.f; y[i] += a.x;",
    "fields": "float4 v = make_float4(x[i], 2.f, x[i] * x[i], 3.f); float* p = &v.y; for (int j = 0; j < 3; ++j) p[j] *= p[j] + j; float s = 0.f; for (int j = 0; j < 4; ++j) s += (&v.x)[j] * (j + 1); W w; w.a = V(x[i], 1.f); w.b[0] = w.a; w.b[1].x = 3.f; w.t = x[i]; T1 t; (&t.a)[1] *= x[i]; y[i] = s + *(&t.b) * *(&t.a + 1) + w.b[1].x;",
    "lambda": "float k = x[i]; auto byval = [=](float v) { return v * k; }; auto byref = [&](float v) { k += v; return k; }; k = 2.f * k; float s = byval(3.f); for (int j = 0; j < 3; ++j) s += byref(x[i] * j); y[i] = s + k + [](float v) { if (v < 0.f) return -v; return v * v; }(x[i]);",
    "functor": "Acc acc; for (int j = 0; j < 4; ++j) acc(x[(i + j) % n]); y[i] = acc.s + twice([](float v) { return v * v + 1.f; }, x[i]);",
    "nest": "W w; w.a = V(x[i], 1.f); w.b[0] = w.a * 2.f; w.b[1] = V{1.f, x[i]}; w.t = 3.f; W z = w; z.b[0].x = 5.f * x[i]; y[i] = w.b[0].x + z.b[0].x * z.t + z.b[1].y + g(w.a) + g(w.a, w.t);",
    "shadow": "float v = x[i]; { float v = 3.f; y[i] = v; } for (int v2 = 0; v2 < 2; ++v2) { float v = x[i] * v2; if (v > 0.2f) { float v = 1.f; y[i] += v; } y[i] += v; } y[i] += v;",
    "logical": "int c = 0; float v = x[i]; if (v > 0.f && ++c > 0 && (v = v * 2.f) > 0.5f || c++ == 0) v += c; y[i] = v + c;",
    "range": "float w[3] = {1.f, 2.f, x[i]}; float s = 0.f; for (float v : w) { if (v == 2.f) continue; s += v * x[i]; } for (auto& v : w) v *= 2.f; for (float v : w) v = 7.f; for (const int d : {1, 2}) s += d * x[i]; V vs[2] = {V(x[i], 1.f), V(2.f)}; for (const auto& v : vs) s += v.len2(); y[i] = s + w[2] * w[1];",
    "thisptr": "T1 t; t.run(x[i]); y[i] = t.a * t.b; T1* p = &t; for (int j = 0; j < 2; ++j) { p->a += x[i] * j; (*p).b *= 1.5f; } float z = 0.f; float* q = &z; for (int j = 0; j < 3; ++j) *q += x[i] * j; y[i] += t.a * t.b + z;",
}  # fmt: skip


def source(parts) -> str:
    """A kernel of several bodies, each with an output of its own, which are summed."""
    bodies = [f"float o{k} = 0.f; {{ {re.sub(r'y.i.', f'o{k}', body)} }}" for k, body in enumerate(parts)]
    total = " + ".join(f"{k + 1} * o{k}" for k in range(len(bodies)))
    lines = "\n".join([*bodies, f"y[i] = {total};"])
    head = 'extern "C" __global__ void k(const float* x, float* y, int n)'
    return f"{TYPES}\n{head} {{ int i = blockIdx.x * blockDim.x + threadIdx.x;\n{lines}\n}}"


def test_is_read_as_the_compiler_reads_it() -> None:
    x = torch.rand(128, generator=torch.Generator().manual_seed(1)) * 2 - 1
    found = rawkern.RawKernel(source(PARTS.values()), "k").derive(block=64, grid=2, max_iterations=8)
    assert found.verify(2, (x, torch.zeros(128), 128)) < 1e-6


BODIES = """
struct Body { float3 at, v; float mass; };
__device__ float3 operator*(float s, float3 v) { return make_float3(s * v.x, s * v.y, s * v.z); }
__device__ float3 operator+(float3 a, float3 b) { return make_float3(a.x + b.x, a.y + b.y, a.z + b.z); }
__global__ void drift(const Body* in, Body* out, float dt, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Body b = in[i];
    b.v = b.v + (-dt / b.mass) * b.at;
    b.at = b.at + dt * b.v;
    out[i] = b;
}
__global__ void energy(const Body* in, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 0.5f * in[i].mass * (in[i].v.x * in[i].v.x + in[i].v.y * in[i].v.y);
}"""


def test_structs_in_memory_are_bytes_and_so_are_their_gradients() -> None:
    """Of two kernels of one source, which share what it declares."""
    n = 40
    bodies = (torch.rand(n, 7, generator=torch.Generator().manual_seed(1)) + 0.5).requires_grad_()
    at, v, mass = bodies[:, :3], bodies[:, 3:6], bodies[:, 6:]
    moved = v - 0.1 / mass * at
    after = torch.cat([at + 0.1 * moved, moved, mass], 1)
    weights = torch.rand(n, 7)
    (right,) = torch.autograd.grad((after * weights).sum(), bodies, retain_graph=True)
    packed = bodies.detach().view(torch.uint8)
    found = rawkern.RawKernel(BODIES, "drift").derive(block=32)
    args = (packed, torch.empty_like(packed), 0.1, n)
    grads = found(2, args, {"out": weights.view(torch.uint8)})
    torch.testing.assert_close(grads["in"].view(torch.float32), right)
    assert found.verify(2, args) < 1e-6
    other = rawkern.RawKernel(BODIES, "energy").derive(block=32)
    grads = other(2, (packed, torch.empty(n), n), {"out": weights[:, 0]})
    total = 0.5 * mass[:, 0] * v[:, :2].square().sum(1)
    (right,) = torch.autograd.grad((total * weights[:, 0]).sum(), bodies)
    torch.testing.assert_close(grads["in"].view(torch.float32), right)


def test_floats_that_are_read_as_structs_have_gradients_of_their_shape() -> None:
    """Also the second ones of an operator."""
    n = 40
    bodies = (torch.rand(n, 7, generator=torch.Generator().manual_seed(1)) + 0.5).requires_grad_()
    kernel = rawkern.RawKernel(BODIES, "energy")

    @rawkern.op("test::energy_of_bodies", backward="derive")
    def energy(bodies: torch.Tensor) -> torch.Tensor:
        out = bodies.new_empty(len(bodies))
        kernel[2, 32](bodies, out, len(bodies))
        return out

    total = 0.5 * bodies[:, 6] * bodies[:, 3:5].square().sum(1)
    args = (bodies.detach(), torch.empty(n), n)
    found = kernel.derive(block=32)(2, args, {"out": torch.ones(n)})
    (right,) = torch.autograd.grad(total.sum(), bodies, create_graph=True)
    (ours,) = torch.autograd.grad(energy(bodies).sum(), bodies, create_graph=True)
    torch.testing.assert_close(found["in"], right)
    torch.testing.assert_close(ours, right)
    torch.testing.assert_close(*(torch.autograd.grad(g.square().sum(), bodies)[0] for g in (ours, right)))


LOCAL = """
template <typename T> struct Point {
    T x, y;
    __device__ Point(const T& a = 0, const T& b = 0) : x(a), y(b) {}
    __device__ Point operator-(const Point& p) const { return Point(x - p.x, y - p.y); }
};
struct Pair { float a, b; };
template <typename T> __device__ int chosen(const T* x, int n, Point<T> (&found)[12]) {
    int count = 0;
    for (int k = 0; k < 11; ++k) if (x[k] > 0.4f && k < n) found[count++] = Point<T>(x[k], x[k] * x[k]);
    return count;
}
template <typename T> __global__ void area(const T* x, T* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    Point<T> points[12];
    Pair pairs[2][3];
    int count = chosen<T>(x + i, n, points);
    for (int k = 0; k < 6; ++k) pairs[k / 3][k % 3] = {x[i + k], 2.f};
    T sum = points[11].x * x[i];
    for (int k = 0; k + 1 < count; ++k) {
        Point<T> d = points[k + 1] - points[k];
        sum += d.x * points[k].y - d.y * points[k].x;
    }
    y[i] = sum + pairs[n % 2][count % 3].a * pairs[0][1].b;
}"""


def test_local_arrays_of_structs_by_an_index_that_is_not_known() -> None:
    """They lie in memory, and begin with what their constructor sets."""
    found = rawkern.RawKernel(LOCAL, "area<float>").derive(block=32)
    x = torch.rand(64 + 12, generator=torch.Generator().manual_seed(2))
    assert "?" not in found.source  # an index, not a choice among all elements
    assert found.verify(2, (x, torch.zeros(64), 11)) < 1e-6


def test_arrays_that_are_no_tensors_are_refused() -> None:
    found = rawkern.RawKernel(BODIES, "energy").derive(block=32)
    with pytest.raises(TypeError, match=r"in is ndarray; pass a torch\.Tensor"):
        found(1, (torch.zeros(28, dtype=torch.uint8).numpy(), torch.empty(1), 1), {"out": torch.ones(1)})


def test_kernels_of_namespaces_and_enums() -> None:
    source = """
    namespace act {
    enum class Kind : int { RELU, SQUARE = 3 };
    template <Kind K, int N = 2> __global__ void apply(const float* x, float* y) {
        float v = x[threadIdx.x];
        if constexpr (K == Kind::RELU) y[threadIdx.x] = N * fmaxf(v, 0.f);
        else y[threadIdx.x] = v * v + static_cast<int>(Kind::SQUARE);
    }
    }"""
    x = torch.rand(32) - 0.5
    for kind, right in (("RELU", 2.0 * (x > 0)), ("SQUARE", 2 * x)):
        found = rawkern.RawKernel(source, f"act::apply<act::Kind::{kind}>").derive(block=32)
        torch.testing.assert_close(found(1, (x, torch.empty(32)), {"y": torch.ones(32)})["x"], right)
