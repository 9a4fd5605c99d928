"""Counts of accesses against plain Python, on patterns of every kind, for all widths and any lanes."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest
import torch

import rawkern
from tests.engines.cpu.profiler.formulas import sectors, wavefronts

TYPES = {"char": 1, "short": 2, "int": 4, "double": 8, "int4": 16}
ROOM = 2048  # elements

CODE = r"""
extern "C" __global__ void pattern(const TYPE* x, TYPE* y, const int* at, const int* on, int n) {
  extern __shared__ __align__(128) char raw[];
  TYPE* s = (TYPE*)raw;
  for (int k = threadIdx.x; k < n; k += blockDim.x) s[k] = x[k];
  __syncthreads();
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (on[i]) {
    TYPE a = x[at[i]];
    TYPE b = s[at[i]];
    y[i] = a, y[i + gridDim.x * 32] = b;
  }
}
extern "C" __global__ void steps(TYPE* y, int offset) {
  extern __shared__ __align__(128) char raw[];
  TYPE* s = (TYPE*)raw;
  int i = threadIdx.x + threadIdx.y * blockDim.x, x = threadIdx.x;
  TYPE v = y[i];
  s[x + threadIdx.y * 32 + offset] = v;
  s[x * 2] = v;
  s[offset] = v;
  s[63 - x] = v;
  s[threadIdx.y * 4 + offset] = v;
  if (x < 5) s[x] = v;
  __syncthreads();
  y[i] = s[offset];
}
extern "C" __global__ void spaces(const int* x, int* y, int n) {
  __shared__ int s[32];
  int i = threadIdx.x, v[8];
  s[i] = x[i];
  for (int k = 0; k < 8; k++) v[k] = x[i] + k;
  __syncwarp();
  const int* p = i % 2 ? s : x;
  y[i] = p[i * n];
  y[i] += v[(n + i / 4) % 8];
}
"""


@cache
def module(name: str) -> rawkern.RawModule:
    return rawkern.RawModule(CODE.replace("TYPE", name))


def patterns(seed: int) -> list[list[int | None]]:
    """Elements that the lanes of a warp take, None for idle lanes."""
    draw = random.Random(seed)
    found: list[Any] = [
        [0] * 32,
        [*range(32)],
        [31 - k for k in range(32)],
        [2 * k for k in range(32)],
        [32 * k for k in range(32)],
        [33 * k for k in range(32)],
        [k // 2 for k in range(32)],
        [k // 4 * 2 + k % 2 for k in range(32)],
        [k ^ 1 for k in range(32)],
        [k // 8 * 16 for k in range(32)],
    ]
    found += [[draw.randrange(ROOM) for _ in range(32)] for _ in range(4)]
    found += [[draw.choice([3, 40, 1000]) for _ in range(32)] for _ in range(4)]
    for base in found[:12]:
        keep = draw.choice([0.2, 0.5, 0.9])
        found.append([x if draw.random() < keep else None for x in base])
    found.append([None if k >= 10 else k for k in range(32)])
    found.append([None if k < 16 else 5 * k for k in range(32)])
    found.append([None if k != 17 else 9 for k in range(32)])
    return found


def elements(name: str, count: int) -> torch.Tensor:
    made = torch.randint(0, 100, (count * TYPES[name],), dtype=torch.uint8)
    kind = {"char": torch.int8, "short": torch.int16, "int": torch.int32, "double": torch.float64, "int4": torch.int32}
    made = made.view(kind[name])
    return made.view(-1, 4) if name == "int4" else made


def counted(report, line: int, ptx: str, *names: str, last: int = 0) -> list[int]:
    """Sums over the instructions of a line, or of those up to the `last`, whose text begins so."""
    found = report.as_dict(instructions=True)["launches"][0]["instructions"]
    rows = [one["counters"] for one in found if line <= one["line"] <= (last or line) and one["ptx"].startswith(ptx)]
    assert rows
    return [sum(row.get(name, 0) for row in rows) for name in names]


SECTORS = (
    "memory_l2_theoretical_sectors_global",
    "memory_l2_theoretical_sectors_global_ideal",
    "memory_l1_tag_requests_global",
)
WAVEFRONTS = ("memory_l1_wavefronts_shared", "memory_l1_wavefronts_shared_ideal")


def added(found: list[tuple[int, ...]]) -> list[int]:
    return [sum(column) for column in zip(*found, strict=True)]


def line_with(text: str) -> int:
    (line,) = [k for k, each in enumerate(CODE.splitlines(), 1) if text in each]
    return line


@pytest.mark.parametrize("name", TYPES)
def test_patterns(name):
    size, every = TYPES[name], patterns(TYPES[name])
    x, y = elements(name, ROOM), elements(name, 64 * len(every))
    at = torch.tensor([0 if e is None else e for lanes in every for e in lanes], dtype=torch.int32)
    on = torch.tensor([e is not None for lanes in every for e in lanes], dtype=torch.int32)
    with rawkern.profile() as report:
        module(name).get_function("pattern")[len(every), 32, ROOM * size](x, y, at, on, ROOM)
    taken = [{k: e * size for k, e in enumerate(lanes) if e is not None} for lanes in every]
    expected = [sectors(list(lanes.values()), size) for lanes in taken]
    expected += [sectors([4 * k for k in lanes], 4) for lanes in taken]  # at[i] is in the same line
    first, last = line_with("a = x[at[i]]"), line_with("y[i] = a")  # structs are loaded where they are stored
    assert counted(report, first, "ld.global", *SECTORS, last=last) == added(expected)
    expected = [wavefronts(lanes, size) for lanes in taken]
    assert counted(report, first, "ld.shared", *WAVEFRONTS, last=last) == added(expected)


@pytest.mark.parametrize("block", [(32, 1), (16, 4), (8, 4), (64, 1)])
@pytest.mark.parametrize("name", TYPES)
def test_steps_that_are_known_when_code_is_made(name, block):
    size, offset = TYPES[name], 3
    with rawkern.profile() as report:
        module(name).get_function("steps")[1, block, 512 * size](elements(name, 128), offset)
    threads = [(x, y) for y in range(block[1]) for x in range(block[0])]
    lines: dict[str, Any] = {
        "s[x + threadIdx.y * 32 + offset]": lambda x, y: x + y * 32 + offset,
        "s[x * 2]": lambda x, y: x * 2,
        "s[offset] = v": lambda x, y: offset,
        "s[63 - x]": lambda x, y: 63 - x,
        "s[threadIdx.y * 4 + offset]": lambda x, y: y * 4 + offset,
        "if (x < 5) s[x]": lambda x, y: x if x < 5 else None,
    }
    for text, element in lines.items():
        expected = []
        for warp in range(0, len(threads), 32):
            own = {
                k: e * size for k, (x, y) in enumerate(threads[warp : warp + 32]) if (e := element(x, y)) is not None
            }
            expected.append(wavefronts(own, size))
        assert counted(report, line_with(text), "st.shared", *WAVEFRONTS) == added(expected), text


def test_generic_addresses_and_arrays_in_local_memory():
    x, y = torch.arange(64, dtype=torch.int32), torch.zeros(32, dtype=torch.int32)
    with rawkern.profile() as report:
        module("int").get_function("spaces")[1, 32](x, y, 1)
    assert torch.equal(y, torch.arange(32, dtype=torch.int32) * 2 + (1 + torch.arange(32) // 4).int() % 8)
    line = line_with("y[i] = p[i * n]")
    assert counted(report, line, "ld.u32", *SECTORS, *WAVEFRONTS) == [4, 2, 1, 1, 1]
    names = ("l1tex__t_requests_pipe_lsu_mem_local_op_ld.sum", "l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum")
    assert counted(report, line_with("y[i] += v"), "ld.local", *names) == [1, 8]  # 8 words, each of 4 lanes in a sector
