"""Comparisons that scalars decide for a warp: lanes at the limit, wrap-around, both orders, 64-bit indices, rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import rawkern

OPERATORS = ("<", "<=", ">", ">=")
TYPES = {"int": np.int32, "unsigned": np.uint32, "long long": np.int64, "unsigned long long": np.uint64}


def source(ty: str, step: int) -> str:
    """Each of the operators, both ways round, in branches, combined and as values; arithmetic wraps around."""
    word = "unsigned long long" if "long" in ty else "unsigned"
    lines = []
    for k, op in enumerate(OPERATORS):
        lines.append(f"if (v {op} bound) out[{2 * k} * n + i] = 1;")
        lines.append(f"if (bound {op} v) {{ out[{2 * k + 1} * n + i] = 2; }} else out[{2 * k + 1} * n + i] = 3;")
    return f"""extern "C" __global__ void k(int n, {ty} first, {ty} bound, {ty} low, int flag, int* out) {{
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        {ty} v = ({ty})(({word})first + ({word})i * ({word}){step});
        {"".join(lines)}
        if (v < bound && v > low) out[8 * n + i] = 4;
        if (v >= bound || flag) out[9 * n + i] = 5;
        out[10 * n + i] = (v < bound) + 2 * !(v > low || flag);
    }}"""


@pytest.mark.parametrize(
    ("ty", "step"),
    [
        ("int", 1), ("unsigned", 1), ("int", 3), ("int", -1), ("unsigned", -2), ("int", 0x08000000),
        ("long long", 1), ("unsigned long long", 4),
    ],
)  # fmt: skip
def test_every_lane_decides_by_itself(ty, step):
    dtype, n = TYPES[ty], 64
    kernel, info = rawkern.RawKernel(source(ty, step)), np.iinfo(TYPES[ty])
    extremes = [int(x) % 2**64 for x in (info.max - 31, info.min + 5, info.max, info.min)]
    near = [x % 2**64 for x in (0, 1, 31, 32, 33, 63, 64, -1, -32, 17)]

    def cast(values) -> np.ndarray:
        return np.array(values, np.uint64).astype(f"u{dtype().itemsize}").view(dtype)

    for first in [near[0], near[3], near[7], *extremes]:
        for bound in (*near, *extremes):
            flag, low = (first ^ bound) & 1, int(cast([(first + 3 * step) % 2**64])[0])
            lanes = cast([(first + step * k) % 2**64 for k in range(n)])
            start, limit = (int(cast([x])[0]) for x in (first, bound))
            out = torch.full((11 * n,), -7, dtype=torch.int32)
            kernel[1, n](n, start, limit, low, flag, out)
            want = np.full((11, n), -7)
            for k, op in enumerate((np.less, np.less_equal, np.greater, np.greater_equal)):
                want[2 * k][op(lanes, dtype(limit))] = 1
                want[2 * k + 1] = np.where(op(dtype(limit), lanes), 2, 3)
            below, above = lanes < dtype(limit), lanes > dtype(low)
            want[8][below & above] = 4
            want[9][~below | bool(flag)] = 5
            want[10] = below + 2 * ~(above | bool(flag))
            assert np.array_equal(out.numpy().reshape(11, n), want), (start, limit, flag)


def test_rows_of_half_warps_decide_each():
    code = """extern "C" __global__ void k(int rows, int columns, int* out) {
        int x = blockIdx.x * 16 + threadIdx.x, y = threadIdx.y;
        if (x >= columns || y >= rows) return;
        out[y * 64 + x] = 100 * y + x;
    }"""
    kernel = rawkern.RawKernel(code)
    for rows, columns in ((8, 64), (7, 64), (8, 63), (3, 17), (1, 1), (0, 9), (5, 16)):
        out = torch.full((8, 64), -1, dtype=torch.int32)
        kernel[4, (16, 8)](rows, columns, out)
        want = torch.full((8, 64), -1, dtype=torch.int32)
        y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
        want[:rows, :columns] = (100 * y + x).int()
        assert torch.equal(out, want)
