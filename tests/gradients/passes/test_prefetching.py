"""Double buffers in one dimension: what selects the half, and what is not one."""

from __future__ import annotations

import pytest
import torch

import rawkern

LATE = "what iterations read of s may be of another iteration"


def kernel(read, stored, before="s[t] = x[t];", start="", turn="", shared="__shared__ float s[2 * 64];"):
    return rawkern.RawKernel(
        f"""extern "C" __global__ void k(const float* x, const float* w, float* y, int tiles) {{
            {shared}
            int t = threadIdx.x; {start}
            float sum = 0.0f;
            {before}
            __syncthreads();
            for (int k = 0; k < tiles; ++k) {{
                if (k + 1 < tiles) {stored} = x[(k + 1) * 64 + t];
                for (int j = 0; j < 64; ++j) sum += {read} * w[j];
                __syncthreads();
                {turn}
            }}
            y[blockIdx.x * 64 + t] = sum * w[t];
        }}""",
        "k",
    )


DYNAMIC = "extern __shared__ float s[];"
SWAPPED = {
    "start": "float *now = s, *next = s + 64;", "before": "now[t] = x[t];",
    "turn": "float* last = now; now = next; next = last;",
}  # fmt: skip
HALVES = {
    "a product": kernel("s[(k & 1) * 64 + j]", "s[((k + 1) & 1) * 64 + t]"),
    "a shift": kernel("s[((k % 2) << 6) + j]", "s[((1 - k % 2) << 6) + t]"),
    "from the end": kernel("s[(k & 1) * 64 + 63 - j]", "s[((k & 1) ^ 1) * 64 + t]"),
    "an offset": kernel("s[o + j]", "s[64 - o + t]", start="int o = 0;", turn="o = 64 - o;"),
    "an offset by bits": kernel("s[o + j]", "s[(o ^ 64) + t]", start="int o = 0;", turn="o ^= 64;"),
    "pointers": kernel("(s + (k & 1) * 64)[j]", "(s + ((k + 1) & 1) * 64)[t]"),
    "swapped pointers": kernel("now[j]", "next[t]", **SWAPPED),
    "swapped pointers of a launch's memory": kernel("now[j]", "next[t]", shared=DYNAMIC, **SWAPPED),
    "the second half first": kernel("s[64 - o + j]", "s[o + t]", "s[64 + t] = x[t];", "int o = 0;", "o ^= 64;"),
}


@pytest.mark.parametrize("name", HALVES)
def test_derives(name) -> None:
    derived = HALVES[name].derive(block=64, grid=2, shared_mem=512)
    draw = torch.Generator().manual_seed(1)
    assert (
        derived.verify(2, (torch.rand(5 * 64, generator=draw), torch.rand(64, generator=draw), torch.zeros(128), 5))
        < 1e-8
    )


OTHERS = {
    "an element of the other half": kernel("s[(k & 1) * 64 + j + 1]", "s[((k + 1) & 1) * 64 + t]"),
    "halves that overlap": kernel("s[(k & 1) * 63 + j]", "s[((k + 1) & 1) * 63 + t]"),
    "the half that is read": kernel("s[(k & 1) * 64 + j]", "s[(k & 1) * 64 + t]"),
    "pointers that are not swapped": kernel("now[j]", "next[t]", **{**SWAPPED, "turn": "now = next;"}),
    "a first tile in the other half": kernel("s[(k & 1) * 64 + j]", "s[((k + 1) & 1) * 64 + t]", "s[64 + t] = x[t];"),
    "more shared memory than two tiles": kernel("now[j]", "next[t]", shared="__shared__ float s[192];", **SWAPPED),
}


@pytest.mark.parametrize("name", OTHERS)
def test_is_not_a_double_buffer(name) -> None:
    with pytest.raises(rawkern.NotDifferentiable, match=LATE):
        OTHERS[name].derive(block=64, grid=2)
