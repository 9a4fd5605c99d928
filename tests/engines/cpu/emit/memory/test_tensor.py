"""Tensor copies; tests/engines/cpu/test_hopper.py compares more with what an H200 gave."""

from __future__ import annotations

import pytest
import torch

import rawkern
from rawkern.errors import CheckError, LaunchError, OutOfBoundsError, ReadOnlyError

ROWS, COLUMNS = 8, 32  # of a box

DOUBLED = r"""
#include <cuda.h>
extern "C" __global__ void doubled(const __grid_constant__ CUtensorMap from, const __grid_constant__ CUtensorMap to,
                                   float* seen, int x, int y, int waits) {
    __shared__ alignas(1024) float s[8 * 32];
    __shared__ alignas(8) unsigned long long bar;
    unsigned at = (unsigned)__cvta_generic_to_shared(s), b = (unsigned)__cvta_generic_to_shared(&bar);
    for (int i = threadIdx.x; i < 256; i += 32) s[i] = -1;
    if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], 1; fence.proxy.async.shared::cta;" :: "r"(b));
    __syncwarp();
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 1024;" :: "r"(b) : "memory");
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
            " [%0], [%1, {%3, %4}], [%2];" :: "r"(at), "l"(&from), "r"(b), "r"(x), "r"(y) : "memory");
    }
    __syncwarp();
    if (waits) asm volatile("{ .reg .pred p; L: mbarrier.try_wait.parity.shared.b64 p, [%0], 0; @!p bra L; }"
        :: "r"(b) : "memory");
    for (int i = threadIdx.x; i < 256; i += 32) { seen[i] = s[i]; s[i] = 2 * s[i]; }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
    if (threadIdx.x == 0 && x >= 0 && y >= 0) {
        asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%1, {%2, %3}], [%0];"
            :: "r"(at), "l"(&to), "r"(x), "r"(y) : "memory");
        asm volatile("cp.async.bulk.commit_group;\n cp.async.bulk.wait_group 0;" ::: "memory");
    }
}"""


def boxed(x: torch.Tensor, row: int, column: int) -> torch.Tensor:
    """A box of a matrix, with zeros outside."""
    padded = torch.nn.functional.pad(x, (32, 32, 8, 48))
    return padded[row + 8 : row + 8 + ROWS, column + 32 : column + 32 + COLUMNS]


def swizzled(box: torch.Tensor) -> torch.Tensor:
    """How rows of 128 bytes lie in shared memory: units of 16 bytes, by number xor the row's."""
    units = box.reshape(ROWS, 8, 4)
    picks = torch.arange(8)[:, None] ^ torch.arange(8)[None, :]
    return torch.stack([units[r, picks[r]] for r in range(ROWS)]).reshape(-1)


def test_a_box_is_copied_changed_and_copied_back(device: str) -> None:
    """With elements outside, whose places get zeros, and which are not written; a map follows its tensor.

    A GPU reads at negative coordinates, but does not write there.
    """
    if device == "cuda" and torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("this GPU has no tensor copies")
    kernel = rawkern.RawKernel(DOUBLED)
    x, seen = torch.rand(20, 68, device=device), torch.empty(256, device=device)
    y = torch.zeros_like(x)
    from_, to = (rawkern.tensor_map(t, (ROWS, COLUMNS), swizzle=128) for t in (x, y))
    for column, row in ((8, 3), (48, 16), (-4, -5), (0, 40)):
        y.zero_()
        kernel[1, 32](from_, to, seen, column, row, 1)
        expected = boxed(x, row, column)
        assert seen.cpu().equal(swizzled(expected.cpu()))
        if row < 0:
            assert not y.any()
            continue
        inside = boxed(torch.ones_like(x), row, column).bool()
        assert boxed(y, row, column)[inside].equal(2 * expected[inside])
        assert y.count_nonzero() == expected.count_nonzero()
    z = torch.rand(9, 32, device=device)
    x.data = z  # other memory, and another shape
    kernel[1, 32](from_, to, seen, 0, 2, 1)
    assert seen.cpu().equal(swizzled(boxed(z, 2, 0).cpu()))
    if device == "cuda":
        pinned = rawkern.tensor_map(torch.zeros(8, 32).pin_memory(), (8, 32))
        with pytest.raises(ValueError, match=r"argument 1 'from' maps a tensor on cpu; map one on cuda:0"):
            kernel[1, 32](pinned, to, seen, 0, 2, 1)
        return
    with rawkern.check():
        kernel[1, 32](from_, to, seen, 0, 2, 1)
        with pytest.raises(CheckError, match=r"line 19: .*reads s\[0\](?s:.)*line 14"):
            kernel[1, 32](from_, to, seen, 0, 2, 0)
    kernel[1, 32](from_, to, seen, 0, 2, 0)
    assert (seen == -1).all()  # no thread has waited
    with rawkern.order(0):
        kernel[1, 32](from_, to, seen, 0, 2, 0)
    assert seen.equal(swizzled(boxed(z, 2, 0)))
    with pytest.raises(ReadOnlyError, match=r"line 24: .* writes to"):
        kernel[1, 32](from_, rawkern.tensor_map(y, (8, 32), read_only=True), seen, 0, 2, 1)
    with pytest.raises(OutOfBoundsError, match=r"copies s\[71\]; s has 64 elements of 16 bytes"):
        kernel[1, 32](rawkern.tensor_map(x, (9, 32)), to, seen, 0, 2, 1)


def test_copies_that_raise() -> None:
    kernel, seen = rawkern.RawKernel(DOUBLED), torch.empty(256)
    map_ = rawkern.tensor_map(torch.rand(20, 68), (8, 32))
    with pytest.raises(LaunchError, match=r"line 14: .* with a first coordinate that is not a multiple of 16 bytes"):
        kernel[1, 32](map_, map_, seen, 1, 0, 1)
    for x, y in ((-4, 0), (0, -1)):
        with pytest.raises(
            LaunchError, match=r"line 24: .* copies .* to a negative coordinate, which is an illegal instruction"
        ):
            rawkern.RawKernel(DOUBLED.replace(" && x >= 0 && y >= 0", ""))[1, 32](map_, map_, seen, x, y, 1)
    with pytest.raises(LaunchError, match=r"a number of dimensions that differs from its tensor map"):
        kernel[1, 32](rawkern.tensor_map(torch.rand(1360), 256), map_, seen, 0, 0, 1)
    with pytest.raises(LaunchError, match=r"that is not a tensor map's; pass rawkern\.tensor_map"):
        kernel[1, 32](bytes(128), map_, seen, 0, 0, 1)
    with pytest.raises(LaunchError, match=r"not a multiple of 128 bytes"):
        rawkern.RawKernel(DOUBLED.replace('"r"(at), "l"(&from)', '"r"(at + 16), "l"(&from)'))[1, 32](
            map_, map_, seen, 0, 0, 1
        )


REDUCED = r"""
#include <cuda.h>
template <typename T> __device__ void put(const CUtensorMap& map, const T* x, int column) {
    __shared__ alignas(128) T s[16];
    if (threadIdx.x < 16) s[threadIdx.x] = x[threadIdx.x];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
    if (threadIdx.x == 0) {
        asm volatile("cp.reduce.async.bulk.tensor.1d.global.shared::cta.WHAT.tile.bulk_group [%0, {%2}], [%1];"
            :: "l"(&map), "r"((unsigned)__cvta_generic_to_shared(s)), "r"(column) : "memory");
        asm volatile("cp.async.bulk.commit_group;\n cp.async.bulk.wait_group 0;" ::: "memory");
    }
}
extern "C" __global__ void words(const __grid_constant__ CUtensorMap map, const int* x, int c) { put(map, x, c); }
extern "C" __global__ void longs(const __grid_constant__ CUtensorMap map, const long long* x, int c) { put(map, x, c); }
extern "C" __global__ void halves(const __grid_constant__ CUtensorMap map, const short* x, int c) { put(map, x, c); }"""


# What an H100 takes; the rest is an illegal instruction there.
REDUCTIONS = {
    "add": (torch.int32, torch.uint32, torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64),
    "max": (torch.int32, torch.uint32, torch.int64, torch.uint64, torch.float16, torch.bfloat16),
    "xor": (torch.int32, torch.uint32, torch.uint64),
}


@pytest.mark.parametrize("what", REDUCTIONS)
def test_reductions(device: str, what: str) -> None:
    """Of the elements of a box in a tensor, of the tensor's type."""
    if device == "cuda" and torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("this GPU has no tensor copies")
    module = rawkern.RawModule(code=REDUCED.replace("WHAT", what))
    does = {"add": torch.add, "max": torch.maximum, "xor": torch.bitwise_xor}[what]
    for dtype in (*REDUCTIONS["add"], torch.int64):
        bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
        kernel = {2: module.halves, 4: module.words, 8: module.longs}[dtype.itemsize]
        x = torch.arange(16).mul(-1).add(20).to(dtype).to(device)
        y = torch.arange(32).to(dtype).to(device)
        before = y.clone()
        if dtype not in REDUCTIONS[what]:
            if device == "cpu":
                with pytest.raises(
                    LaunchError, match=r"line 10, .* elements of a type that this reduction does not support"
                ):
                    kernel[1, 32](rawkern.tensor_map(y, 16), x.view(bits), 8)
            continue
        kernel[1, 32](rawkern.tensor_map(y, 16), x.view(bits), 24)  # half of it is outside
        wide = dtype if dtype.is_floating_point else torch.int64
        expected = does(before[24:].to(wide), x[:8].to(wide)).to(dtype)
        assert y[:24].equal(before[:24]) and y[24:].equal(expected), dtype


PIXELS = r"""
#include <cuda.h>
extern "C" __global__ void pixels(const __grid_constant__ CUtensorMap map, float* out, int bytes, int image) {
    __shared__ alignas(128) float s[1024];
    __shared__ alignas(8) unsigned long long bar;
    unsigned at = (unsigned)__cvta_generic_to_shared(s), b = (unsigned)__cvta_generic_to_shared(&bar);
    short x = blockIdx.x, y = blockIdx.y;
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared.b64 [%0], 1; fence.proxy.async.shared::cta;" :: "r"(b) : "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" :: "r"(b), "r"(bytes) : "memory");
        asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
            " [%0], [%1, {%3, %4, %4, %5}], [%2], {%6, %7};"
            :: "r"(at), "l"(&map), "r"(b), "r"(0), "r"(-1), "r"(image), "h"(x), "h"(y) : "memory");
    }
    __syncwarp();
    asm volatile("{ .reg .pred p; L: mbarrier.try_wait.parity.shared.b64 p, [%0], 0; @!p bra L; }" :: "r"(b) : "memory");
    int block = blockIdx.y * gridDim.x + blockIdx.x;
    for (int i = threadIdx.x; i < bytes / 4; i += 32) out[block * (bytes / 4) + i] = s[i];
}"""


@pytest.mark.parametrize("stride", [1, 2])
def test_im2col(device: str, stride: int) -> None:
    """The columns of a convolution with a 3 x 3 filter, as torch has them; those of the second image come last."""
    if device == "cuda" and torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("this GPU has no tensor copies")
    kernel, (height, width, channels) = rawkern.RawKernel(PIXELS), (5, 7, 4)
    x = torch.rand(2, height, width, channels, device=device)
    columns = torch.nn.functional.unfold(x.permute(0, 3, 1, 2), 3, padding=1, stride=stride)  # image, channel and
    expected = columns.view(2, channels, 9, -1).permute(2, 0, 3, 1)  # place in the filter, pixel
    count = expected.shape[2]
    steps = (1, stride, stride, 1)
    map_ = rawkern.tensor_map(x, (count + 5, channels), im2col=((-1, -1), (-1, -1)), element_strides=steps)
    out = torch.empty(9, count + 5, channels, device=device)
    kernel[(3, 3), 32](map_, out, out[0].nbytes, 0)
    assert out[:, :count].equal(expected[:, 0]) and out[:, count:].equal(expected[:, 1, :5])
    kernel[(3, 3), 32](map_, out, out[0].nbytes, 1)
    assert out[:, :count].equal(expected[:, 1]) and not out[:, count:].any()
    if device == "cpu":
        with rawkern.check():
            kernel[(3, 3), 32](map_, out, out[0].nbytes, 0)
        with pytest.raises(
            LaunchError, match=r"line 13: .* in a mode \(im2col or tiled\) that is not its tensor map's"
        ):
            kernel[(3, 3), 32](rawkern.tensor_map(x, (1, 2, 3, 4)), out, out[0].nbytes, 0)


def test_maps_in_structs_and_in_memory() -> None:
    """A member of a struct by value is a map, too; one that a kernel finds in memory leads to nothing that is gone."""
    code = DOUBLED.replace('extern "C"', 'struct Maps { int n; CUtensorMap to; };\nextern "C"')
    code = code.replace("const __grid_constant__ CUtensorMap from", "const CUtensorMap* from").replace("&from", "from")
    code = code.replace("const __grid_constant__ CUtensorMap to", "const __grid_constant__ Maps maps")
    kernel = rawkern.RawKernel(code.replace("&to", "&maps.to"))
    x, y, seen, memory = torch.rand(8, 32), torch.zeros(8, 32), torch.zeros(256), torch.zeros(192, dtype=torch.uint8)
    place = memory[-memory.data_ptr() % 64 :][:128]
    place.copy_(torch.frombuffer(bytearray(rawkern.tensor_map(x, (8, 32)).encoded()), dtype=torch.uint8))
    maps = {"n": 1, "to": rawkern.tensor_map(y, (8, 32))}
    kernel[1, 32](place, maps, seen, 0, 0, 1)
    assert y.equal(2 * x) and seen.view(8, 32).equal(x)
    del x
    with pytest.raises(
        OutOfBoundsError, match=r"line 15: .* is not in the memory of any argument .*: memory that was freed, or never"
    ):
        kernel[1, 32](place, maps, seen, 0, 0, 1)
