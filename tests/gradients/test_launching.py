"""Backwards whose blocks can have sums of their own: right with each choice of sums and each number of blocks."""

from __future__ import annotations

import re

import pytest
import torch

import rawkern
from rawkern.gradients import launching
from tests.gradients.all_cases import CASES
from tests.gradients.cases import BLOCK_REDUCTIONS

SOURCE = r"""
extern "C" __global__ void scaled_rows(const float* x, const float* w, const float* b, float* y, float a, int n) {
    extern __shared__ float row[];
    for (int c = threadIdx.x; c < n; c += blockDim.x) row[c] = a * x[blockIdx.x * n + c] * w[c];
    __syncthreads();
    for (int c = threadIdx.x; c < n; c += blockDim.x) y[blockIdx.x * n + c] = row[c] * row[c] + b[c];
}
extern "C" __global__ void filtered(const float* x, const float* w, float* y, int n) {
    int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y, p = blockIdx.z;
    if (c >= n) return;
    float sum = 0;
    for (int k = 0; k < 5; ++k) if (c + k < n) sum += w[k] * x[(p * gridDim.y + r) * n + c + k];
    y[(p * gridDim.y + r) * n + c] = sum * w[5 + threadIdx.x % 2];
}
extern "C" __global__ void biased(const float4* x, const float4* b, float4* y, int n) {
    int i = threadIdx.x;
    float4 v = x[blockIdx.x * blockDim.x + i], w = b[i];
    y[blockIdx.x * blockDim.x + i] = make_float4(v.x * w.x, v.y + w.y, v.z * w.z * w.w, v.w - w.w);
}
extern "C" __global__ void halves(const float* x, const float* w, const float* b, float* y) {
    int c = threadIdx.x, i = blockIdx.x * 64 + c;
    y[i] = x[i] * w[c] + b[c] * b[31 - c];
    y[i + 32] = x[i + 32] * w[c + 32];
}
"""


def filtered(x, w, y, n):
    padded = torch.nn.functional.pad(x, (0, 4))
    return sum(w[k] * padded[..., k : k + n] for k in range(5)) * w[5 + torch.arange(n, device=x.device) % 2]


def biased(x, b, y, n):
    v, w = x.unbind(-1), b.unbind(-1)
    return torch.stack((v[0] * w[0], v[1] + w[1], v[2] * w[2] * w[3], v[3] - w[3]), -1)


def halves(x, w, b, y):
    return x * w + torch.nn.functional.pad(b * b.flip(0), (0, 32))


#: Name: block, grid, bytes of dynamic shared memory, arguments, the same in torch, what to differentiate by.
KERNELS = {
    "scaled_rows": (32, (6, 1, 1), 400, lambda r: (r(6, 100), r(100), r(100), r(6, 100), 1.5, 100),
                    lambda x, w, b, y, a, n: (a * x * w) ** 2 + b, ("x", "w", "b", "a")),
    "filtered": (32, (2, 3, 2), 0, lambda r: (r(2, 3, 50), r(7), r(2, 3, 50), 50), filtered, ("x", "w")),
    "biased": (32, (5, 1, 1), 0, lambda r: (r(5, 32, 4), r(32, 4), r(5, 32, 4), 32), biased, ("x", "b")),
    "halves": (32, (5, 1, 1), 0, lambda r: (r(5, 64), r(64), r(32), r(5, 64)), halves, ("x", "w", "b")),
}  # fmt: skip


@pytest.fixture(scope="module")
def module() -> rawkern.RawModule:
    return rawkern.RawModule(SOURCE)


@pytest.mark.parametrize("at_a_time, room", [(1, 32 << 10), (2, 32 << 10), (3, 200), (1, 0), (7, 32 << 10)])
@pytest.mark.parametrize("name", KERNELS)
def test_sums_of_blocks(module, name, at_a_time, room, device, monkeypatch) -> None:
    monkeypatch.setattr(launching, "_processors", lambda _: at_a_time)
    monkeypatch.setattr(launching, "_at_a_time", lambda *_: at_a_time)
    monkeypatch.setattr(launching, "ROOM", room)
    block, grid, shared_mem, make, reference, wrt = KERNELS[name]
    draw = torch.Generator().manual_seed(1)
    args = make(lambda *shape: (torch.rand(shape, generator=draw) + 0.5).to(device))
    derived = module.get_function(name).derive(block=block, grid=grid, shared_mem=shared_mem, wrt=wrt)
    named = derived.named(args)
    weights = torch.rand(named["y"].shape, generator=draw).to(device)
    run, total = derived.launch(named, grid), torch.Size(grid).numel()
    flags = re.findall("true|false", run.kernel.name)
    assert len(flags) == len(wrt) - 1  # all but x
    if total < 2 * at_a_time or not room:  # no block would do the work of two, or there is no room
        assert run.grid == (total, 1, 1) and set(flags) == {"false"}
    else:
        assert run.grid == ((at_a_time, 1, 1) if "true" in flags else (total, 1, 1))
        assert ("false" in flags) == (room < 32 << 10 and name != "filtered")
    grads = derived(grid, args, {"y": weights})
    leaves = {n: torch.as_tensor(named[n], dtype=torch.float64, device=device).clone().requires_grad_() for n in wrt}
    (reference(*({**named, **leaves}).values()) * weights).sum().backward()
    for n in wrt:
        expected = leaves[n].grad
        assert expected is not None
        torch.testing.assert_close(grads[n].double().view(expected.shape), expected, rtol=1e-5, atol=1e-4)


def test_shared_memory_that_is_taken_leaves_no_sums(device) -> None:
    source = SOURCE.replace("extern __shared__ float row[];", "__shared__ float row[6000];")
    derived = rawkern.RawKernel(source, "scaled_rows").derive(block=64, grid=64, wrt=("w",))
    x, w, b, y = (torch.rand(shape).to(device) for shape in ((64, 1000), 1000, 1000, (64, 1000)))
    args = (x, w, b, y, 1.0, 1000)
    assert derived.launch(derived.named(args), (64, 1, 1)).kernel.name.startswith("scaled_rows_backward<false, 16, ")
    torch.testing.assert_close(derived(64, args, {"y": torch.ones_like(y)})["w"], (2 * w * x * x).sum(0))


def test_rows_that_all_threads_go_through_equally_often(device: str) -> None:
    source = """extern "C" __global__ void powered(const float* x, const float* w, float* y, int n) {
        float sum = 0;
        for (int c = threadIdx.x; c < n; c += 32) sum += x[blockIdx.x * n + c] * w[c];
        for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(0xffffffff, sum, o);
        for (int c = threadIdx.x; c < n; c += 32) y[blockIdx.x * n + c] = sum * x[blockIdx.x * n + c];
    }"""
    derived = rawkern.RawKernel(source, "powered").derive(block=32, grid=3, wrt=("x",))
    assert "// steps: n / 32 rounded up, or 0; how often a thread goes through a row." in derived.source
    times = {1: 1, 20: 1, 32: 1, 33: 2, 96: 3, 100: 4, 500: 16, 1695: 53, 1696: 53, 1697: 0, 5000: 0}
    for n, steps in times.items():
        x, w, weights = (torch.rand(shape, device=device) - 0.4 for shape in ((3, n), (n,), (3, n)))
        args = (x, w, torch.empty_like(x), n)
        run = derived.launch(derived.named(args), (3, 1, 1))
        assert run.kernel.name.startswith(f"powered_backward<{steps}, ")
        right = torch.func.grad(lambda x: ((x @ w)[:, None] * x * weights).sum())(x)  # noqa: B023
        torch.testing.assert_close(derived(3, args, {"y": weights})["x"], right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("block", [(32, 2, 1), (16, 16, 1), (8, 8, 6), (1024, 1, 1)], ids=str)
def test_sums_and_maxima_of_blocks_of_all_shapes(device: str, block: tuple[int, int, int]) -> None:
    threads = torch.Size(block).numel()
    source = """extern "C" __global__ void softmax(const float* x, float* y, int n) {
        __shared__ float part[THREADS];
        int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
        float largest = -INFINITY, sum = 0;
        for (int c = thread; c < n; c += THREADS) largest = fmaxf(largest, x[blockIdx.x * n + c]);
        part[thread] = largest;
        __syncthreads();
        for (int k = POWER / 2; k > 0; k /= 2) {
            if (thread < k && thread + k < THREADS) part[thread] = fmaxf(part[thread], part[thread + k]);
            __syncthreads();
        }
        largest = part[0];
        __syncthreads();
        for (int c = thread; c < n; c += THREADS) sum += expf(x[blockIdx.x * n + c] - largest);
        part[thread] = sum;
        __syncthreads();
        for (int k = POWER / 2; k > 0; k /= 2) {
            if (thread < k && thread + k < THREADS) part[thread] += part[thread + k];
            __syncthreads();
        }
        for (int c = thread; c < n; c += THREADS)
            y[blockIdx.x * n + c] = expf(x[blockIdx.x * n + c] - largest) / part[0];
    }"""
    source = source.replace("THREADS", str(threads)).replace("POWER", str(1 << (threads - 1).bit_length()))
    derived = rawkern.RawKernel(source, "softmax").derive(block=block, grid=3)
    assert all(f" = block_{name}(" in derived.source for name in ("sum", "max"))
    for n in (1, threads - 1, threads, 2 * threads + 5):
        x, weights = (torch.rand((3, n), device=device) for _ in range(2))
        x[0] = 0.5  # all of them are the largest
        right = torch.func.grad(lambda x: (x.softmax(1) * weights).sum())(x)  # noqa: B023
        grad = derived(3, (x, torch.empty_like(x), n), {"y": weights})["x"]
        torch.testing.assert_close(grad, right, rtol=1e-4, atol=1e-6)


def test_rows_of_several_lengths(device: str) -> None:
    source = """extern "C" __global__ void outer(
        const float4* x, const float* w, float* y, unsigned int n, long long m) {
        float sum = 0;
        for (unsigned int c = threadIdx.x; c < n / 4; c += blockDim.x) {
            float4 v = x[blockIdx.x * (n / 4) + c];
            sum += v.x * v.y + v.z * v.w;
        }
        for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(0xffffffff, sum, o);
        for (int c = threadIdx.x; m > c; c += blockDim.x) y[blockIdx.x * m + c] = sum * w[c] * w[c];
    }"""
    derived = rawkern.RawKernel(source, "outer").derive(block=32, grid=3)
    assert all(f"// steps{k}: " in derived.source for k in ("", "_2")) and "steps_3" not in derived.source
    for n, m, steps in ((128, 32, "1, 1"), (4, 5, "1, 1"), (500, 70, "4, 3"), (6000, 100, "0, 4"), (36, 9000, "1, 0")):
        x, w, weights = (torch.rand(shape, device=device) - 0.4 for shape in ((3, n), (m,), (3, m)))
        args = (x, w, torch.empty_like(weights), n, m)
        run = derived.launch(derived.named(args), (3, 1, 1))
        assert f"<{steps}, " in run.kernel.name or f", {steps}, " in run.kernel.name

        def value(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            a, b, c, d = x.reshape(3, -1, 4).unbind(-1)
            return ((a * b + c * d).sum(1)[:, None] * w * w * weights).sum()  # noqa: B023

        right = torch.func.grad(value, (0, 1))(x, w)
        grads = derived(3, args, {"y": weights})
        for name, expected in zip(("x", "w"), right, strict=True):
            torch.testing.assert_close(grads[name], expected, rtol=1e-4, atol=1e-4)


def test_variables_of_the_device(device: str) -> None:
    source = r"""
    __constant__ float taps[5];
    __constant__ int turns[2][3] = {{1, 2, 0}, {2, 2, 1}};
    namespace lib { __device__ float2 offset = {0.5f, 2.0f}; }
    using namespace lib;
    __device__ float at(const float* x, int i, int n) { return i >= 0 && i < n ? x[i] : offset.x; }
    extern "C" __global__ void filtered(const float* x, float* y, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        float sum = 0;
        for (int k = 0; k < 5; ++k) sum += taps[k] * at(x, i + k - 2, n);
        y[i] = sum * sum * turns[i % 2][i % 3] + offset.y;
    }"""
    module = rawkern.RawModule(source)
    kernel = module.get_function("filtered")
    n = 100
    x, taps = torch.randn(n, device=device), torch.randn(5, device=device)
    turns = module.get_global("turns", device)[torch.arange(n) % 2, torch.arange(n) % 3]

    def formula(x, outside):
        padded = torch.nn.functional.pad(x, (2, 2), value=outside)
        return (sum(taps[k] * padded[k : k + n] for k in range(5)) ** 2 * turns).sum()

    @rawkern.op("derivedvariables::filtered", backward="derive", verify=True)
    def filtered(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        kernel[4, 32](x, y, n)
        return y

    derived = kernel.derive(block=32, grid=4)
    kept = module.get_global("taps", "cpu").clone()
    for outside in (0.5, 1.5):  # a variable that changes is read again
        module.get_global("taps", device).copy_(taps)
        module.get_global("lib::offset", device)[0] = outside
        right = torch.func.grad(formula)(x, outside)
        grads = derived(4, (x, torch.empty(n, device=device), n), {"y": torch.ones(n, device=device)})
        torch.testing.assert_close(grads["x"], right)
        derived.verify(4, (x, torch.empty(n, device=device), n))
        leaf = x.clone().requires_grad_()
        filtered(leaf).sum().backward()
        torch.testing.assert_close(leaf.grad, right)
    assert device == "cpu" or torch.equal(module.get_global("taps", "cpu"), kept)  # verifying leaves no trace


def test_accessors_of_any_strides_and_sizes(device: str) -> None:
    """What a backward assumes of sizes is asked before; where it does not hold, additions are atomic."""
    case = CASES["highway"]
    kernel = rawkern.RawKernel(case.source, case.name)
    derived = kernel.derive(block=case.block, grid=case.grid)
    draw = lambda *shape: torch.randn(shape, device=device)  # noqa: E731
    ones = torch.ones(4, 40, device=device)

    def compare(grads, parts, x, read) -> None:
        right = torch.func.grad(lambda p, x: case.reference(p, read(x), ones)["y"].sum(), (0, 1))(parts, x)
        for name, expected in zip(("parts", "x"), right, strict=True):
            torch.testing.assert_close(grads[name], expected, rtol=1e-4, atol=1e-5)

    parts, x, y = draw(4, 40, 2).transpose(1, 2), draw(40, 4).t(), draw(40, 4).t()
    assert derived.fitting(derived.checked_grid(case.grid), derived.named((parts, x, y))) is derived
    compare(derived(case.grid, (parts, x, y), {"y": ones}), parts, x, lambda x: x)
    # Rows of 32, so that threads of two blocks read the same elements, as they lead into the next row.
    short, y = draw(6, 32), draw(4, 40)
    general = derived.fitting(derived.checked_grid(case.grid), derived.named((parts, short, y)))
    assert (derived.atomics, general.atomics) == (0, 3)
    flat = lambda x: x.flatten().as_strided((4, 40), (32, 1))  # noqa: E731
    compare(derived(case.grid, (parts, short, y), {"y": ones}), parts, short, flat)

    @rawkern.op("derivedaccessors::highway", backward="derive", verify=True)
    def highway(parts: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        kernel[case.grid, case.block](parts, x, y)
        return y

    leaves = draw(4, 2, 40).requires_grad_(), draw(4, 40).requires_grad_()
    found = torch.autograd.grad(highway(*leaves).sum(), leaves)
    grads = dict(zip(("parts", "x"), found, strict=True))
    compare(grads, leaves[0].detach(), leaves[1].detach(), lambda x: x)
    with pytest.raises(rawkern.LaunchError, match="elements of y share memory"):
        derived(case.grid, (parts, x, draw(1, 40).expand(4, 40)), {"y": ones})
    with pytest.raises(TypeError, match=r"x is float; pass a torch\.Tensor"):
        derived(case.grid, (parts, 1.0, y), {"y": ones})


ROWS = (
    BLOCK_REDUCTIONS
    + r"""
extern "C" __global__ void normalized(const float* x, float* y, int n) {
    __shared__ float part[32];
    x += blockIdx.x * n, y += blockIdx.x * n;
    float sum = 0;
    for (int c = threadIdx.x; c < n; c += blockDim.x) sum += x[c] * x[c];
    float scale = rsqrtf(block_sum(sum, part));
    for (int c = threadIdx.x; c < n; c += blockDim.x) y[c] = x[c] * scale;
}
extern "C" __global__ void weighted(const float* x, const float* w, float* y, int n) {
    __shared__ float part[32];
    float sum = 0;
    for (int c = threadIdx.x; c < n; c += blockDim.x) sum += x[blockIdx.x * n + c];
    sum = block_sum(sum, part);
    for (int c = threadIdx.x; c < n; c += blockDim.x) y[blockIdx.x * n + c] = x[blockIdx.x * n + c] * w[c] * sum;
}
"""
)


def test_sums_of_what_one_thread_reads_in_several_lines_need_no_atomics(module) -> None:
    source = module.get_function("halves").derive(block=32).source
    assert source.count("sum_w[") > 2 and "atomicAdd(&sum_w[" not in source
    assert "atomicAdd(&sum_b[" in source  # which two threads read


def test_blocks_suit_the_length_of_a_row_on_a_gpu(device) -> None:
    rows = rawkern.RawModule(ROWS)
    derived = rows.get_function("normalized").derive(block=1024)
    draw = torch.Generator().manual_seed(3)
    suits = ((1000, 64, False), (12000, 256, False), (32000, 512, True), (40000, 1024, True), (60000, 1024, False))
    for n, threads, staged in suits:
        x, grad = (torch.randn(3, n, generator=draw).to(device) for _ in range(2))
        args = x, torch.empty_like(x), n
        assert derived.fitting((3, 1, 1), derived.named(args)).block[0] == (threads if device == "cuda" else 1024)
        assert launching.block_for(derived._text, derived.named(args), (3, 1, 1)) == (threads, staged)
        want = torch.nn.functional.normalize(leaf := x.clone().requires_grad_())
        want.backward(grad)
        torch.testing.assert_close(derived(3, args, {"y": grad})["x"], leaf.grad, rtol=1e-4, atol=1e-5)
    weighted = rows.get_function("weighted").derive(block=256)
    for n, threads in ((40, 128), (4096, 256), (8192, 512), (9000, 1024), (12000, 1024)):
        args = torch.zeros(2, n), torch.zeros(n), torch.zeros(2, n), n
        assert launching.block_for(weighted._text, weighted.named(args), (2, 1, 1)) == (threads, False)
    assert launching.block_for(derived._text, derived.named((x, x, 2**40)), (3, 1, 1)) is None  # nothing is certain
    n, count = 12000, 600 if device == "cuda" else 40
    args = tuple(torch.randn(shape, generator=draw).to(device) for shape in ((count, n), (n,), (count, n)))
    run = weighted.fitting((count, 1, 1), weighted.named((*args, n))).launch(weighted.named((*args, n)), (count, 1, 1))
    assert run.shared_mem == (48000 if device == "cuda" else 0)  # sums of a block that has a processor for itself
    leaves = [t.clone().double().requires_grad_() for t in args[:2]]
    (leaves[0] * leaves[1] * leaves[0].sum(1, keepdim=True)).backward(args[2].double())
    found = weighted(count, (*args, n), {"y": args[2]})
    for name, leaf in zip(("x", "w"), leaves, strict=True):
        error = (found[name] - leaf.grad).abs().max() / leaf.grad.abs().max()
        assert error < 1e-5, (name, error)
