"""What the CPU engine lacks is refused before anything runs, with the instruction and the line of CUDA it comes from."""

from __future__ import annotations

import pytest
import torch

import rawkern

BULK_COPY = """extern "C" __global__ void k(float* x) {
    __shared__ float s[32];
    unsigned at = (unsigned)__cvta_generic_to_shared(s + threadIdx.x);
    x[threadIdx.x] = -1;
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 16, [%0];" :: "r"(at), "l"(x));  // line 5
}"""
SPARSE = """extern "C" __global__ void k(float* x) {
    unsigned a = threadIdx.x;
    x[threadIdx.x] = -1;
    asm volatile("mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%4}, {%4,%4}, {%0,%1,%2,%3}, %4, 0x0;"
        : "+f"(x[0]), "+f"(x[1]), "+f"(x[2]), "+f"(x[3]) : "r"(a));
}"""
GROUP = """extern "C" __global__ void k(float* x) {
    x[threadIdx.x] = -1;
    asm volatile("wgmma.fence.sync.aligned;");
}"""
TEXTURE = """__device__ float fetch(cudaTextureObject_t t) { return tex2D<float>(t, 0.5f, 0.25f); }
extern "C" __global__ void k(float* x) {
    x[threadIdx.x] = -1;
    x[threadIdx.x] = fetch((cudaTextureObject_t)x);
}"""


@pytest.mark.parametrize(
    "code, instruction, line",
    [
        (BULK_COPY, "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes", 5),
        (SPARSE, "mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", 5),  # the last line of the statement
        (GROUP, "wgmma.fence.sync.aligned", 3),
        (TEXTURE, "tex.2d.v4.f32.f32", 1),
    ],
    ids=["cp.async.bulk", "mma.sp", "wgmma", "texture"],
)
def test_an_instruction_that_the_engine_lacks(tmp_path, code, instruction, line):
    path = tmp_path / "lacking.cu"
    path.write_text(code)
    kernel = rawkern.load(path).k
    x = torch.full((32,), 7.5)
    for _ in range(2):  # a second launch does not find half a kernel
        with pytest.raises(rawkern.UnsupportedError) as caught:
            kernel[1, 32](x)
        message = str(caught.value)
        assert message.startswith(f"k: the PTX instruction {instruction} is not supported on the CPU engine")
        assert f"lacking.cu:{line}" in message
        assert (x == 7.5).all()


def test_the_line_of_an_inlined_function_comes_with_its_call(tmp_path):
    path = tmp_path / "lacking.cu"
    path.write_text(TEXTURE)
    with pytest.raises(rawkern.UnsupportedError, match=r"lacking\.cu:1, inlined at \S*lacking\.cu:4"):
        rawkern.load(path).k[1, 32](torch.zeros(32))


def test_other_kernels_of_the_module_run():
    code = BULK_COPY + '\nextern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }'
    module = rawkern.RawModule(code=code)
    x = torch.full((32,), 7.5)
    with pytest.raises(rawkern.UnsupportedError, match=r"cp\.async\.bulk"):
        module.k[1, 32](x)
    module.twice[1, 32](x)
    assert (x == 15).all()


def test_a_form_of_a_known_instruction():
    code = """extern "C" __global__ void k(long long* x) {
        asm volatile("{ .reg .b128 a; mov.b128 a, {%0, %0}; atom.global.exch.b128 a, [%1], a; }" :: "l"(x[0]), "l"(x));
    }"""
    x = torch.full((4,), 7)
    with pytest.raises((rawkern.UnsupportedError, rawkern.CompileError), match="128"):
        rawkern.RawKernel(code)[1, 1](x)
    assert (x == 7).all()
