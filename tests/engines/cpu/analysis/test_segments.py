"""Blocks whose rows are half or a quarter of a warp: addresses that start again in each segment of the lanes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import rawkern

CODE = r"""
// W: width of a row made of a one-dimensional block's threads; 0: the block's own rows
template <int W> struct At {
    int x, line, width;
    __device__ At() {
        if (W) { x = threadIdx.x % (W ? W : 1); line = threadIdx.x / (W ? W : 1); width = W; }
        else { x = threadIdx.x; line = threadIdx.y + blockDim.y * threadIdx.z; width = blockDim.x; }
    }
};
template <class T, int W> __global__ void patterns(const T* in, T* out, int lines, int pitch, int offset, int some) {
    At<W> a;
    if (a.line * a.width + a.x >= some) return;
    out += (size_t)blockIdx.x * 11 * lines * pitch + a.line * pitch + a.x;
    const T* from = in + offset;
    int next = lines * pitch;
    out[0] = from[a.line * pitch + a.x];
    out[next] = from[a.line * pitch];
    out[2 * next] = from[a.x];
    out[3 * next] = from[a.line * pitch + a.width - 1 - a.x];
    out[4 * next] = from[a.line * pitch + 2 * a.x];
    out[5 * next] = from[a.x * pitch + a.line];
    out[6 * next] = from[(a.line ^ 1) * pitch + a.x];
    out[7 * next] = from[(a.line * 3 / 2 % 5) * pitch + a.x];
    out[8 * next] = from[(min(a.line, 2) << (a.line & 1)) * pitch + (a.x ^ 5) % a.width];
    out[9 * next] = from[(long long)-a.line + 2 * lines + (long long)a.x];
    out[10 * next] = from[(unsigned)(a.x - 3) + 3u + (abs(1 - a.line) & ~1) * pitch];
}
template <class V> __global__ void vectors(const V* in, V* out, int pitch) {
    int line = threadIdx.y + blockDim.y * threadIdx.z;
    V v = in[line * pitch + threadIdx.x], first = in[line * pitch];
    auto t = v.x; v.x = v.y; v.y = t;
    out[(2 * line) * pitch + threadIdx.x] = v;
    out[(2 * line + 1) * pitch + threadIdx.x] = first;
}
template <class T, int N> __global__ void matmul(int n, const T* a, const T* b, T* c) {
    __shared__ T as[N][N], bs[N][N];
    int row = blockIdx.y * N + threadIdx.y, col = blockIdx.x * N + threadIdx.x;
    T sum = 0;
    for (int t = 0; t < n; t += N) {
        as[threadIdx.y][threadIdx.x] = row < n && t + threadIdx.x < n ? a[row * n + t + threadIdx.x] : T(0);
        bs[threadIdx.y][threadIdx.x] = col < n && t + threadIdx.y < n ? b[(t + threadIdx.y) * n + col] : T(0);
        __syncthreads();
        for (int k = 0; k < N; k++) sum += as[threadIdx.y][k] * bs[k][threadIdx.x];
        __syncthreads();
    }
    if (row < n && col < n) c[row * n + col] = sum;
}
extern "C" __global__ void one_of_each_row(int* rows, int2* pairs) {
    int line = threadIdx.y + blockDim.y * threadIdx.z, v = line * 100 + threadIdx.x;
    rows[line] = v;
    pairs[line] = make_int2(v, -v);
}
extern "C" __global__ void wrapping(const unsigned char* in, unsigned char* out, unsigned start) {
    out[threadIdx.y * blockDim.x + threadIdx.x] = in[start + 2 * threadIdx.y + threadIdx.x];   // modulo 2^32
}
extern "C" __global__ void bits(int* out) {
    int t = threadIdx.x;
    int* o = out + 8 * t;
    o[0] = t & 15; o[1] = t & 7; o[2] = t & 16; o[3] = t & 24; o[4] = t >> 4; o[5] = t / 8; o[6] = (t & 48) - (t >> 3) * 5; o[7] = t & 0x1e7;
}
"""
MODULE = rawkern.RawModule(code=CODE)
DTYPES = {"float": torch.float32, "short": torch.int16, "double": torch.float64}
BLOCKS = [(16, 16), (8, 8), (8, 4, 2), (16, 2), (16, 3), (8, 3, 3), (16, 1, 3), (8, 1, 2), (24, 2), (4, 4, 4), (48, 2)]


def values(n: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    whole = torch.randint(-30000, 30000, (n,), generator=generator).to(dtype)
    return whole / 2 if dtype.is_floating_point else whole


def expected(flat: np.ndarray, width: int, lines: int, pitch: int, offset: int, some: int, poison) -> np.ndarray:
    line, x = np.divmod(np.arange(width * lines), width)
    where = [
        line * pitch + x, line * pitch, x, line * pitch + width - 1 - x, line * pitch + 2 * x, x * pitch + line,
        (line ^ 1) * pitch + x, (line * 3 // 2 % 5) * pitch + x,
        (np.minimum(line, 2) << (line & 1)) * pitch + (x ^ 5) % width, 2 * lines - line + x,
        x + (abs(1 - line) & ~1) * pitch,
    ]  # fmt: skip
    want = np.full((len(where), lines * pitch), poison, flat.dtype)
    on = np.arange(width * lines) < some
    for k, index in enumerate(where):
        want[k, (line * pitch + x)[on]] = flat[(offset + index)[on]]
    return want


def check(device: str, ctype: str, block: tuple, row: int) -> None:
    """`row`: threads of a row where a one-dimensional block is cut into rows, else 0."""
    dtype = DTYPES[ctype]
    width, threads = row or block[0], int(np.prod(block))
    lines = threads // width
    pitch = 2 * max(width, lines) + 3
    kernel = MODULE.get_function(f"patterns<{ctype}, {row}>")
    flat = values((lines + width + 6) * pitch, dtype)
    for offset, some in ((0, threads), (1, threads), (3, threads - 5), (2, 9)):
        out = torch.full((2, 11, lines * pitch), 77, dtype=dtype, device=device)
        kernel[2, block](flat.to(device), out, lines, pitch, offset, some)
        want = expected(flat.numpy(), width, lines, pitch, offset, some, 77)
        for got in out.cpu().numpy():
            np.testing.assert_array_equal(got, want, f"{block} {offset} {some}")


@pytest.mark.parametrize("ctype", DTYPES)
def test_patterns_of_addresses(device, ctype):
    for block in BLOCKS:
        check(device, ctype, block, 0)


@pytest.mark.parametrize("row", [16, 8, 4, 24])
def test_rows_cut_from_one_dimensional_blocks(device, row):
    check(device, "float", (8 * row,), row)


@pytest.mark.parametrize(
    ("vector", "scalar", "count"), [("float4", "float", 4), ("short2", "short", 2), ("double2", "double", 2)]
)
def test_vector_types(device, vector, scalar, count):
    kernel, dtype, pitch = MODULE.get_function(f"vectors<{vector}>"), DTYPES[scalar], 19
    for block in ((16, 4), (8, 6), (8, 2, 2)):
        width, lines = block[0], int(np.prod(block)) // block[0]
        x = values(lines * pitch * count, dtype)
        out = torch.full((lines, 2, pitch, count), 77, dtype=dtype, device=device)
        kernel[1, block](x.to(device), out, pitch)
        rows = x.view(lines, pitch, count)
        turned = rows[:, :, [1, 0, 2, 3][:count]]
        want = torch.full((lines, 2, pitch, count), 77, dtype=dtype)
        want[:, 0, :width] = turned[:, :width]
        want[:, 1, :width] = rows[:, :1].expand(lines, width, count)
        np.testing.assert_array_equal(out.cpu().numpy(), want.numpy())


@pytest.mark.parametrize("tile", [8, 16])
@pytest.mark.parametrize("ctype", ["float", "double"])
def test_tiled_matmul(device, ctype, tile):
    kernel = MODULE.get_function(f"matmul<{ctype}, {tile}>")
    for n in (tile * 3, 37):
        a, b = (torch.randn(n, n, dtype=DTYPES[ctype], generator=torch.Generator().manual_seed(s)) for s in (1, 2))
        c = torch.full((n, n), float("nan"), dtype=a.dtype, device=device)
        blocks = -(-n // tile)
        kernel[(blocks, blocks), (tile, tile)](n, a.to(device), b.to(device), c)
        torch.testing.assert_close(c.cpu().double(), a.double() @ b.double(), rtol=1e-4, atol=1e-5)


@pytest.mark.rawkern_finding("RaceError")
@pytest.mark.parametrize("block", [(16, 5), (8, 8), (8, 3, 2)])
def test_stores_to_one_address_leave_one_of_the_values(device, block):
    lines = int(np.prod(block)) // block[0]
    rows = torch.full((lines + 1,), -1, dtype=torch.int32, device=device)
    pairs = torch.full((2 * lines + 2,), -1, dtype=torch.int32, device=device)
    MODULE.get_function("one_of_each_row")[1, block](rows, pairs)
    rows, pairs = rows.cpu(), pairs.cpu().view(-1, 2)
    assert rows[lines] == -1 and (pairs[lines] == -1).all()
    assert (rows[:lines] // 100 == torch.arange(lines)).all() and (rows[:lines] % 100 < block[0]).all()
    assert (pairs[:lines, 0] // 100 == torch.arange(lines)).all() and (pairs[:lines].sum(1) == 0).all()


@pytest.mark.parametrize("block", [(16, 4), (8, 8)])
def test_an_index_wraps_within_a_segment(device, block):
    size = 1 << 32
    memory = torch.from_numpy(np.zeros(size + 64, np.uint8)).to(device)  # of which a few pages are touched
    ends = torch.arange(64, dtype=torch.uint8)
    memory[:64], memory[size - 64 : size] = ends.to(device), (ends + 100).to(device)
    memory[size:] = 255  # where addresses that do not wrap would lie
    for before in (5, 12, 40):
        out = torch.full((64,), 77, dtype=torch.uint8, device=device)
        MODULE.get_function("wrapping")[1, block](memory, out, size - before)
        y, x = np.divmod(np.arange(64), block[0])
        at = 2 * y + x - before
        np.testing.assert_array_equal(out.cpu().numpy(), np.where(at < 0, 164 + at, at))


def test_bits_of_the_thread_index(device):
    out = torch.full((320, 8), -1, dtype=torch.int32, device=device)
    MODULE.get_function("bits")[1, 320](out)
    t = np.arange(320)
    want = [t & 15, t & 7, t & 16, t & 24, t >> 4, t // 8, (t & 48) - (t >> 3) * 5, t & 0x1E7]
    np.testing.assert_array_equal(out.cpu().numpy(), np.stack(want, 1))
