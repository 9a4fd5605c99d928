"""Counts belong to the line that a user has written: in functions that were inlined, headers, macros, templates."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import rawkern

HEADER = """\
#pragma once
// a comment
__device__ inline float loaded(const float* p) {
  return *p;  // header
}
"""
CODE = """\
#include <cuda_fp16.h>
#include "own.cuh"
#define PUT(p, v) do { float w = (v); \\
  (p)[0] = w; } while (0)
template <int STEP> struct View {
  const float* base;
  __device__ float operator[](int i) const {
    return base[i * STEP];  // member
  }
};
__device__ float twice(const float* p) {
  return 2 * p[64];  // inlined
}
__device__ __noinline__ void called(float* p) {
  p[32] = 7;  // called
}
extern "C" __global__ void lines(const float* x, const __half2* h, float* y) {
  int i = threadIdx.x;
  float v = loaded(x + i);
  v += View<3>{x + 512}[i];
  v += twice(x + i);
  called(y + i);
  auto square = [=](int k) {
    float f = x[k * 2 + 256];  // lambda
    return f * f;
  };
  v += square(i);
  __half2 two = __ldg(h + i);  // intrinsic
  v += __low2float(two);
  PUT(y + i, v);  // macro
}
"""


def marked(text: str, mark: str) -> int:
    (line,) = [k for k, each in enumerate(text.splitlines(), 1) if each.endswith(f"// {mark}")]
    return line


@pytest.fixture(scope="module", params=["file", "string"])
def lines(request, tmp_path_factory):
    folder: Path = tmp_path_factory.mktemp("lines")
    (folder / "own.cuh").write_text(HEADER)
    if request.param == "file":
        (folder / "lines.cu").write_text(CODE)
        kernel = rawkern.RawKernel(path=folder / "lines.cu")
    else:
        kernel = rawkern.RawKernel(CODE, options=(f"-I{folder}",))
    with rawkern.profile() as report:
        kernel[1, 32](torch.ones(1024), torch.ones(32, 2).half(), torch.zeros(64))
    (launch,) = report.as_dict()["launches"]
    return folder, launch


def test_each_access_is_at_its_line(lines):
    folder, launch = lines
    sectors = {line: row.get("memory_l2_theoretical_sectors_global", 0) for line, row in launch["lines"].items()}
    expected = {f"{folder / 'own.cuh'}:{marked(HEADER, 'header')}": 4}
    expected |= {marked(CODE, mark): 4 for mark in ("inlined", "called", "intrinsic", "macro")}
    expected |= {marked(CODE, "member"): 12, marked(CODE, "lambda"): 8}
    assert {line: count for line, count in sectors.items() if count} == expected


def test_the_text_of_each_line_is_there(lines):
    folder, launch = lines
    assert launch["source"][marked(CODE, "macro")].strip() == "PUT(y + i, v);  // macro"
    assert launch["source"][f"{folder / 'own.cuh'}:4"].strip() == "return *p;  // header"
    assert set(launch["lines"]) - set(launch["source"]) <= {"no line"}
