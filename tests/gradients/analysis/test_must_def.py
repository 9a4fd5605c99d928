"""Tiles that are loaded under conditions: which reads are of what the same iteration has set."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import rawkern
from tests.gradients.host import outcomes
from tests.gradients.random_guards import Guards
from tests.gradients.random_kernels import arguments
from tests.gradients.random_parts import Parts

HEAD = """extern "C" __global__ void program(const float* x, const float* w, const int* at, float* y, float* z, int n, int m) {
    __shared__ float s1[64];
    int t = threadIdx.x, i = blockIdx.x * 64 + t;
    float own = i < n ? x[i] : 0.0f, sum = 0.0f;
    for (int k = 0; k < n; k += 64) {
"""
TAIL = "\n__syncthreads();\n}\nif (i < n) y[i] = sum;\n}"
EACH = "for (int j = 0; j < {}; ++j) sum += own * s1[j] * s1[j];"
COUNT = "int most = min(64, n - k); if (t < most) s1[t] = x[k + t];"
LOADS = {
    "of a part": (COUNT, EACH.format("most")),
    "of a part, in a recurrence": (COUNT, "for (int j = 0; j < most; ++j) sum = 0.9f * sum + own * s1[j];"),
    "of a part, each its own": (COUNT, "if (t < most) sum += own * s1[t];"),
    "a count by ?:": ("int most = n - k < 64 ? n - k : 64; if (t < most) s1[t] = x[k + t];", EACH.format("most")),
    "the bound of the array": ("if (k + t < n) s1[t] = x[k + t];", EACH.format("64 && k + j < n")),
    "the least of two": ("if (k + t < n) s1[t] = x[k + t];", EACH.format("min(64, n - k)")),
    "less for later threads": ("int most = n - k - t; if (most > 0) s1[t] = x[k + t];", EACH.format("min(64, most)")),
    "a break": ("if (k + t < n) s1[t] = x[k + t];",
                "for (int j = 0; j < 64; ++j) { if (k + j >= n) break; sum += own * s1[j]; }"),
    "both sides": ("if (k + t < n) s1[t] = x[k + t]; else s1[t] = 0.0f;", EACH.format("64")),
    "zeros before": ("s1[t] = 0.0f; if (k + t < n) s1[t] = x[k + t];", EACH.format("64")),
}  # fmt: skip
STALE = {
    "unguarded": ("if (k + t < n) s1[t] = x[k + t];", EACH.format("64")),
    "the next place": ("if (k + t < n) s1[t] = x[k + t];", "for (int j = 0; j < 63 && k + j < n; ++j) sum += own * s1[j + 1] * s1[j];"),
    "one less": ("if (k + t + 1 < n) s1[t] = x[k + t];", EACH.format("64 && k + j < n")),
    "more in the condition": ("if (k + t < n && t != 3) s1[t] = x[k + t];", EACH.format("64 && k + j < n")),
    "a condition of values": ("if (k + t < n && own > 0.0f) s1[t] = x[k + t];", EACH.format("64 && k + j < n")),
    "a bound of the thread's": ("int most = n - k + t; if (most > 2 * t) s1[t] = x[k + t];", EACH.format("min(64, most)")),
    "of another thread": ("if (k + i < n) s1[t] = x[k + t];", EACH.format("64 && k + j < n")),
    "sides apart": ("if (k + t < n) s1[t] = x[k + t]; else s1[63 - t] = 0.0f;", EACH.format("64")),
    "unsigned numbers below 0": ("int most = n - k - 70; if (t < (unsigned)most + 3u) s1[t] = x[k + t];",
                                 "for (int j = 0; j < (unsigned)most; ++j) { if (j > 63) break; sum += own * s1[j] * s1[j]; }"),
}  # fmt: skip


def programs(sources):
    """As random programs are."""
    return {
        k: SimpleNamespace(
            source=each, block=(64, 1, 1), grid=(2, 1, 1), shared_mem=0, arguments=lambda k=k: arguments(k)
        )
        for k, each in enumerate(sources)
    }


def source(load, read):
    return f"{HEAD}{load}\n__syncthreads();\n{read}{TAIL}"


@pytest.mark.parametrize("what", STALE)
def test_what_another_iteration_left_is_refused(what) -> None:
    with pytest.raises(rawkern.NotDifferentiable, match="may be of another iteration"):
        rawkern.RawKernel(source(*STALE[what]), "program").derive(block=64)


ROWS = """extern "C" __global__ void program(const float* x, const float* w, const int* at, float* y, float* z, int n, int m) {
    __shared__ float s1[256];
    int t = threadIdx.x, i = blockIdx.x * 64 + t;
    float own = i < n ? x[i] : 0.0f, sum = 0.0f;
    for (int k = 0; k < n; k += 64) {
"""
LOADED = {
    "a row": ("if (k + t < n) for (int c = 0; c < 4; ++c) s1[t * 4 + c] = x[k + t] * w[c];", "s1[j * 4 + c]"),
    "a column": ("if (k + t < n) for (int c = 0; c < 4; ++c) s1[c * 64 + t] = x[k + t] * w[c];", "s1[c * 64 + j]"),
    "under its own condition": ("for (int c = 0; c < 4; ++c) if (k + t < n) s1[t * 4 + c] = x[k + t] * w[c];", "s1[j * 4 + c]"),
}  # fmt: skip
NOT_LOADED = {
    "less of a row": ("if (k + t < n) for (int c = 0; c < 3; ++c) s1[t * 4 + c] = x[k + t] * w[c];", "s1[j * 4 + c]"),
    "another row": ("if (k + t < n) for (int c = 0; c < 4; ++c) s1[t * 4 + c] = x[k + t] * w[c];", "s1[j * 4 + c + 1]"),
    "as many as the thread says": ("if (k + t < n) for (int c = 0; c < t % 5; ++c) s1[t * 4 + c] = x[k + t];", "s1[j * 4 + c]"),
    "one of them": ("if (k + t < n) for (int c = 0; c < 4; ++c) if (k + c < n) s1[t * 4 + c] = x[k + t];", "s1[j * 4 + c]"),
}  # fmt: skip
NESTED = "for (int j = 0; j < min(64, n - k); ++j) for (int c = 0; c < 4; ++c) sum += own * {0} * {0};"


def rows(load, read):
    return f"{ROWS}{load}\n__syncthreads();\n{NESTED.format(read)}{TAIL}"


def test_what_an_iteration_has_set_is_read_in_any_order() -> None:
    sources = [*(source(*each) for each in LOADS.values()), *(rows(*each) for each in LOADED.values())]
    assert outcomes(programs(sources)) == (len(sources), {}, {})


@pytest.mark.parametrize("what", NOT_LOADED)
def test_rows_that_another_iteration_left_are_refused(what) -> None:
    with pytest.raises(rawkern.NotDifferentiable, match="may be of another iteration"):
        rawkern.RawKernel(rows(*NOT_LOADED[what]), "program").derive(block=64)


def test_sides_that_other_threads_take_set_no_place_for_certain() -> None:
    source = """extern "C" __global__ void program(const float* x, float* y, int n) {
        __shared__ float s[8][8];
        int a = threadIdx.x, b = threadIdx.y;
        float sum = 0.0f;
        for (int k = 0; k < n; ++k) {
            if (a > k) s[a][b] = x[k * 64 + a * 8 + b]; else s[b][a] = x[k * 64 + b];
            __syncthreads();
            sum += s[a][b] * s[a][b];
            __syncthreads();
        }
        y[a * 8 + b] = sum;
    }"""
    with pytest.raises(rawkern.NotDifferentiable, match="may be of another iteration"):
        rawkern.RawKernel(source, "program").derive(block=(8, 8), grid=1)


@pytest.mark.parametrize("kind, least", [(Parts, 4), (Guards, 6)])
def test_random_parts_and_guards(kind, least) -> None:
    right, _, wrong = outcomes({seed: kind(seed) for seed in range(16)})
    assert not wrong
    assert right >= least
