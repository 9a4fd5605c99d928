"""Each finding with a kernel that has it, in the line that is to blame, and one that has not."""

from __future__ import annotations

import re
from random import Random

import pytest
import torch

import rawkern
from rawkern.profiling import banks
from rawkern.profiling.rules_memory import without_conflicts
from tests.engines.cpu.profiler.formulas import wavefronts

CODE = r"""
struct P { float a, b, c; };
#define K extern "C" __global__ void
#define I int i = blockIdx.x * blockDim.x + threadIdx.x
K strided_yes(const float* x, float* y) { I;
  y[i] = x[4 * i];  // here
}
K strided_no(const float* x, float* y) { I; y[i] = x[i]; }
K array_of_structs_yes(const P* x, float* y) { I;
  y[i] = x[i].a + x[i].c;  // here
}
K array_of_structs_no(const float* x, float* y) { I; y[i] = x[i] + x[i + 8192]; }
K misaligned_yes(const float* x, float* y) { I;
  y[i] = x[i + 3];  // here
}
K misaligned_no(const float* x, float* y) { I; y[i] = x[i + 8]; }
K uncoalesced_yes(const float* x, float* y) { I;
  y[i] = x[i * 7919 % 8192];  // here
}
K uncoalesced_no(const float* x, float* y) { I; y[i] = x[i ^ 5]; }
K redundant_loads_yes(const float* x, float* y) { I;
  float v = 0;
  for (int k = 0; k < 16; k++)
    v += x[i * 16 + k];  // here
  y[i] = v;
}
K redundant_loads_no(const float* x, float* y) { I;
  float v = 0;
  for (int k = 0; k < 16; k++) v += x[k * 8192 + i];
  y[i] = v;
}
K rereads_yes(const float* x, float* y) { I;
  float v = 0;
  for (int k = 0; k < 8; k++)
    v += x[k * 256 + threadIdx.x];  // here
  y[i] = v;
}
K rereads_no(const float* x, float* y) { I;
  float v = 0;
  for (int k = 0; k < 8; k++) v += x[k * 8192 + i];
  y[i] = v;
}
K bank_conflicts_yes(const float* x, float* y) { I;
  __shared__ float s[32][32];
  for (int r = threadIdx.x / 32; r < 32; r += 8) s[r][threadIdx.x % 32] = x[i];
  __syncthreads();
  y[i] = s[threadIdx.x % 32][threadIdx.x / 32];  // here
}
K bank_conflicts_no(const float* x, float* y) { I;
  __shared__ float s[32][33];
  for (int r = threadIdx.x / 32; r < 32; r += 8) s[r][threadIdx.x % 32] = x[i];
  __syncthreads();
  y[i] = s[threadIdx.x % 32][threadIdx.x / 32];
}
K contended_atomics_yes(const float* x, float* y) { I;
  atomicAdd(&y[i / 32], x[i]);  // here
}
K contended_atomics_no(const float* x, float* y) { I; atomicAdd(&y[i], x[i]); }
K divergent_branch_yes(const float* x, float* y) { I;
  float v = x[i];
  if (threadIdx.x % 4)  // here
    for (int k = 0; k < 20; k++) v = v * v + k;
  else
    for (int k = 0; k < 20; k++) v = sqrtf(v + k);
  y[i] = v;
}
K divergent_branch_no(const float* x, float* y) { I;
  float v = x[i];
  if (threadIdx.x / 32 % 4) for (int k = 0; k < 20; k++) v = v * v + k;
  else for (int k = 0; k < 20; k++) v = sqrtf(v + k);
  y[i] = v;
}
K divergent_loop_yes(const float* x, float* y) { I;
  float v = x[i];
#pragma unroll 1
  for (int k = 0; k < threadIdx.x % 32; k++)  // here
    v = v * v + k;
  y[i] = v;
}
K divergent_loop_no(const float* x, float* y) { I;
  float v = x[i];
#pragma unroll 1
  for (int k = 0; k < threadIdx.x / 32; k++) v = v * v + k;
  y[i] = v;
}
K local_array_yes(const float* x, float* y) { I;
  float v[16];
  for (int k = 0; k < 16; k++) v[k] = x[i] * k;
  y[i] = v[i % 13 + 1];  // here
}
K local_array_no(const float* x, float* y) { I;
  float v[16];
  for (int k = 0; k < 16; k++) v[k] = x[i] * k;
  y[i] = v[3] + v[5];
}
K double_arithmetic_yes(const float* x, float* y) { I;
  y[i] = x[i] * 0.1 + 1.7;  // here
}
K double_arithmetic_no(const float* x, float* y) { I; y[i] = x[i] * 0.1f + 1.7f; }
K idle_lanes(const float* x, float* y) { I;
  if (i % 4)
    y[i] = x[i];
  if (i % 2)
    y[i + 8192] = x[i];  // between
}
K power(const float* x, float* y) { I;
  y[i] = pow(x[i], 2.3);  // power
}
K scalar_accesses_yes(const float* x, float* y) { I;
  y[i] = x[i];  // here
}
K scalar_accesses_no(const float4* x, float4* y) { I; if (i < 2048) y[i] = x[i]; }
K low_occupancy_yes(const float* x, float* y) { I;
  __shared__ float s[12000];
  for (int k = threadIdx.x; k < 12000; k += blockDim.x) s[k] = x[k];
  __syncthreads();
  y[i] = s[i % 12000];
}
K low_occupancy_no(const float* x, float* y) { I; y[i] = x[i]; }
"""
LINES = CODE.splitlines()
KINDS = sorted(line.partition("_yes(")[0].split()[-1] for line in LINES if "_yes(" in line)
OF_THE_LAUNCH = ("low_occupancy",)


@pytest.fixture(scope="module")
def module():
    return rawkern.RawModule(CODE)


def found_in(module, name, blocks=32):
    x, y = torch.randn(1 << 17), torch.zeros(1 << 17)
    kernel = module.get_function(name)
    if name.startswith("array_of_structs_yes"):
        x = x[: 3 * 8192].view(torch.uint8)
    if name.startswith("scalar_accesses_no"):
        x, y = x.view(-1, 4), y.view(-1, 4)
    with rawkern.profile(device="h200") as report:
        kernel[blocks, 128 if "occupancy" in name else 256](x, y)
    return {finding.kind: finding for finding in report.findings}


@pytest.mark.parametrize("kind", KINDS)
def test_kernels_that_have_it_and_that_have_not(module, kind):
    finding = found_in(module, f"{kind}_yes")[kind]
    assert finding.cost > 0
    assert finding.message
    assert finding.remedy
    if kind in OF_THE_LAUNCH:
        assert finding.line == 0
    else:
        first = next(k for k, line in enumerate(LINES) if f" {kind}_yes(" in line)
        assert isinstance(finding.line, int)
        assert "// here" in LINES[finding.line - 1]
        assert first < finding.line <= next(k for k, line in enumerate(LINES[first:], first) if line == "}")
    assert kind not in found_in(module, f"{kind}_no")


def test_a_grid_smaller_than_the_gpu_is_told(module):
    assert "few_blocks" in found_in(module, "strided_no", 32)
    assert "few_blocks" not in found_in(module, "strided_no", 256)


def test_idle_lanes_shift_nothing(module):
    found = found_in(module, "idle_lanes")
    assert "misaligned" not in found
    assert "// between" in LINES[int(found["uncoalesced"].line) - 1]
    assert "inactive lanes leave gaps" in found["uncoalesced"].message


def test_doubles_of_functions_without_lines_are_at_their_call(module):
    found = found_in(module, "power")["double_arithmetic"]
    assert "// power" in LINES[int(found.line) - 1]
    assert found.message.endswith("results are converted to float")


def test_findings_are_in_the_order_of_what_they_cost(module):
    found = list(found_in(module, "bank_conflicts_yes").values())
    assert [f.cost for f in found] == sorted((f.cost for f in found), reverse=True)
    assert "pad rows of 128 bytes to 132" in str(next(f for f in found if f.kind == "bank_conflicts"))


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
def test_advice_against_bank_conflicts_fixes_them(size):
    strides = [stride for stride in range(size, 1100, size) if conflicts(lambda t, s=stride: t * s, size)]
    assert len(strides) > 20
    for stride in strides:
        remedy = without_conflicts(stride, size)
        if match := re.search(r"pad rows of (\d+) bytes to (\d+)", remedy):
            padded = int(match[2])
            assert int(match[1]) == stride
            assert not conflicts(lambda t, s=padded: t * s, size), stride
        else:
            more, after = map(int, re.findall(r"\d+", remedy))
            assert not conflicts(lambda t, s=stride, m=more, n=after: t * s + t * s // n * m, size), stride


TILES = """
#define TILE(name, load, store) extern "C" __global__ void name(const ELEMENT* x, ELEMENT* y) { \\
  __shared__ ELEMENT s[SIDE][PITCH];                                                            \\
  for (int r = threadIdx.y; r < SIDE; r += blockDim.y) s load = x[r * SIDE + threadIdx.x];      \\
  __syncthreads();                                                                              \\
  for (int r = threadIdx.y; r < SIDE; r += blockDim.y) y[r * SIDE + threadIdx.x] = s store; }
TILE(rows, [r][threadIdx.x], [r][threadIdx.x])
TILE(columns, [threadIdx.x][r], [threadIdx.x][r])
TILE(transposed, [r][threadIdx.x], [threadIdx.x][r])
"""


def tile(name, pitch, block=(16, 16), dtype=torch.float32):
    """The remedies against conflicts of a tile, and the wavefronts, as times of those without conflicts."""
    of = {torch.float32: "float", torch.float64: "double", torch.int16: "short"}[dtype]
    options = (f"-DELEMENT={of}", f"-DSIDE={block[0]}", f"-DPITCH={pitch}")
    x = torch.ones(block[0] ** 2, dtype=dtype)
    with rawkern.profile() as report:
        rawkern.RawModule(TILES, options=options).get_function(name)[1, block](x, x.clone())
    counted = report.as_dict()["launches"][0]["counters"]
    times = counted["memory_l1_wavefronts_shared"] / counted["memory_l1_wavefronts_shared_ideal"]
    return {f.remedy for f in report.findings if f.kind == "bank_conflicts"}, times


@pytest.mark.parametrize("name", ["rows", "columns", "transposed"])
@pytest.mark.parametrize(
    ("pitch", "block", "dtype"),
    [
        (20, (16, 16), torch.float32), (17, (16, 16), torch.float32), (16, (16, 16), torch.float32),
        (9, (8, 8), torch.float32), (16, (16, 8), torch.float64), (16, (16, 4), torch.int16),
    ],
)  # fmt: skip
def test_advice_for_blocks_with_short_rows_fixes_them(name, pitch, block, dtype):
    remedies, before = tile(name, pitch, block, dtype)
    for remedy in remedies:
        found = re.fullmatch(
            r"pad rows of (\d+) bytes to (\d+)(?:, which leaves ([\d.]+) times the wavefronts)?", remedy
        )
        if found is None:
            assert remedy == "use blocks with rows of 32 threads, or swizzle the column with the row"
            assert name == "transposed"
            continue
        assert int(found[1]) == pitch * dtype.itemsize
        again, after = tile(name, int(found[2]) // dtype.itemsize, block, dtype)
        assert after < before and after == pytest.approx(float(found[3] or 1), rel=0.01)
        assert not again or found[3]
        assert not any(other.startswith("pad rows") for other in again)  # nothing goes round in circles


def test_blocks_with_short_rows_as_they_are_known():
    assert tile("rows", 20)[0] == {"pad rows of 80 bytes to 192"}
    assert tile("rows", 48) == (set(), 1.0) and tile("rows", 33)[1] > 1
    assert tile("transposed", 33, (32, 8)) == (set(), 1.0)  # rows of 32 threads


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
def test_wavefronts_are_those_of_the_formulas(size):
    draw = Random(size)
    for reach in (4, 16, 64, 1024):
        for _ in range(50):
            lanes = {k: draw.randrange(reach) * size for k in range(32) if draw.random() < 0.9}
            assert banks.wavefronts(lanes, size) == wavefronts(lanes, size)


def conflicts(place, size):
    found, ideal = wavefronts({lane: place(lane) for lane in range(32)}, size)
    return found > ideal


#: Findings on the built-in operators, and why they are right.
REASONS = {
    "scalar_accesses": "the instances for the CPU take one element a thread; on a GPU those of 16 bytes are taken",
    "rereads": "each block of n-body reads all bodies, which a cache holds",
}


def test_ready_made_operators_have_no_finding_without_a_reason():
    x = torch.randn(256, 1024)
    w, b = torch.randn(1024), torch.randn(1024)
    with rawkern.profile() as report:
        rawkern.square(x)
        rawkern.gelu(x)
        rawkern.softmax(x, -1)
        rawkern.layer_norm(x, (1024,), w, b)
        rawkern.rms_norm(x, (1024,), w)
        rawkern.sum(x)
        rawkern.cross_entropy(x, torch.randint(0, 1024, (256,)))
        rawkern.nbody_forces(torch.randn(3, 512), torch.rand(512))
    assert len(report) >= 8
    assert not [str(f) for f in report.findings if not REASONS.get(f.kind)]
