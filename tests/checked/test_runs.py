"""Accesses of whole warps, which are followed many at a time: the same is found as lane by lane, for all widths and shapes."""

from __future__ import annotations

import pytest
import torch

import rawkern

TYPES = {"char": torch.int8, "short": torch.int16, "int": torch.int32, "double": torch.float64, "int4": torch.int32}
CODE = "\n".join(
    f"""
extern "C" __global__ void shared_{t}(int n, int shift, int sync, const {t}* x, {t}* out) {{
    __shared__ {t} s[64];
    int i = threadIdx.x + threadIdx.y * blockDim.x;
    if (i < n) s[i] = x[i];
    if (sync & 1) __syncthreads();
    {t} v = x[0];
    if (i < n) v = s[(i + shift) % n];
    if (sync & 2) __syncthreads();
    if (i < n) s[i] = x[n - 1 - i];
    out[i] = v;
}}
extern "C" __global__ void global_{t}(int n, int shift, int sync, {t}* s, {t}* out) {{
    int i = threadIdx.x + threadIdx.y * blockDim.x;
    if (i < n) s[i] = out[63 - i];
    if (sync & 1) __syncthreads();
    {t} v = out[0];
    if (i < n) v = s[(i + shift) % n];
    if (sync & 2) __syncthreads();
    if (i < n) s[i] = out[i];
    __syncthreads();
    out[i] = v;
}}"""
    for t in TYPES
)
SHAPES = [(64, 1), (16, 4), (8, 8), (5, 11)]
CASES = (
    [(t, (64, 1)) for t in TYPES] + [("int", shape) for shape in SHAPES[1:]] + [("short", (16, 4)), ("char", (8, 8))]
)


@pytest.fixture(scope="module")
def module():
    return rawkern.RawModule(code=CODE)


def values(t: str) -> torch.Tensor:
    x = torch.arange(64 * (4 if t == "int4" else 1)) * 7 % 61
    return x.to(TYPES[t])


@pytest.mark.parametrize(("t", "block"), CASES, ids=str)
@pytest.mark.parametrize("space", ["shared", "global"])
def test_what_is_not_ordered_is_found(module, space, t, block):
    kernel, most = getattr(module, f"{space}_{t}"), min(64, block[0] * block[1])
    per = 4 if t == "int4" else 1
    for n in {most, most - 14, 1}:
        for shift in (0, 1, 16, 33):
            for sync in range(4):
                x, out = values(t), values(t) + 1
                want = x.view(64, per)[:n].roll(-(shift % n), 0)
                if space == "global":
                    want = out.view(64, per).flip(0)[:n].roll(-(shift % n), 0)
                apart = shift % n != 0
                try:
                    with rawkern.check():
                        kernel[1, block](n, shift, sync, x, out)
                except rawkern.CheckError as error:
                    kinds = {r.error for r in error.reports}
                    assert apart and sync != 3, (n, shift, sync, str(error))
                    assert rawkern.RaceError in kinds
                    assert kinds <= {rawkern.RaceError, rawkern.UninitializedReadError}
                    races = [r for r in error.reports if r.error is rawkern.RaceError]
                    assert all(r.access.thread != r.other.thread for r in races)
                else:
                    assert not apart or sync == 3, (n, shift, sync)
                    assert torch.equal(out.view(64, per)[:n], want), (n, shift, sync)


EDGES = r"""
template <class T> __device__ void edge(int from, const T* x, T* out) {
    int i = threadIdx.x;
    out[i] = x[i + from];
}
extern "C" __global__ void edge_short(int from, const short* x, short* out) { edge(from, x, out); }
extern "C" __global__ void edge_double(int from, const double* x, double* out) { edge(from, x, out); }
extern "C" __global__ void part(int n, int from, const float* x, float* out) {
    __shared__ float s[64];
    int i = threadIdx.x;
    if (i >= from && i < n) s[i] = x[i];
    __syncthreads();
    float v = s[i];
    if (i & 1) out[i] = v;
}
"""


def test_edges_of_tensors():
    module = rawkern.RawModule(code=EDGES)
    for t in ("short", "double"):
        x, kernel = torch.arange(40).to(TYPES[t]), getattr(module, f"edge_{t}")
        for start, bad, index in ((-1, 0, -1), (0, None, 0), (8, None, 0), (9, 31, 40), (30, 10, 40), (-31, 0, -31)):
            out = torch.full((32,), -5, dtype=TYPES[t])
            with rawkern.check():
                if bad is None:
                    kernel[1, 32](start, x, out)
                    assert torch.equal(out, x[start : start + 32])
                    continue
                with pytest.raises(rawkern.OutOfBoundsError) as caught:
                    kernel[1, 32](start, x, out)
            report = caught.value.reports[0]
            assert (report.access.thread[0], report.index, report.name, report.size) == (bad, index, "x", 40)
            where = torch.arange(32) + start
            inside = (where >= 0) & (where < 40)  # lanes that fail get zeros
            assert torch.equal(out, torch.where(inside, x[where.clamp(0, 39)], 0))


@pytest.mark.parametrize(
    ("start", "stop", "first"), [(0, 64, None), (0, 63, 63), (1, 64, None), (2, 64, 1), (0, 50, 51)]
)
def test_parts_of_shared_memory_that_are_not_set(start, stop, first):
    x, out = torch.arange(64.0), torch.zeros(64)
    kernel = rawkern.RawModule(code=EDGES).part
    with rawkern.check():
        if first is None:
            kernel[1, 64](stop, start, x, out)
            return
        with pytest.raises(rawkern.UninitializedReadError) as caught:
            kernel[1, 64](stop, start, x, out)
    report = caught.value.reports[0]
    assert (report.name, report.line, report.access.thread) == ("s", 13, (first, 0, 0))
