"""What the CPU engine lacks raises before anything runs, with the instruction and its line of CUDA."""

from __future__ import annotations

import pytest
import torch

import rawkern

CHANGED_MAP = """extern "C" __global__ void k(float* x) {
    __shared__ float s[32];
    unsigned at = (unsigned)__cvta_generic_to_shared(s + threadIdx.x);
    x[threadIdx.x] = -1;
    asm volatile("tensormap.replace.tile.rank.global.b1024.b32 [%0], %1;" :: "l"(x), "r"(at));  // line 5
}"""
SPARSE = """extern "C" __global__ void k(float* x) {
    unsigned a = threadIdx.x;
    x[threadIdx.x] = -1;
    asm volatile("mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%4}, {%4,%4}, {%0,%1,%2,%3}, %4, 0x0;"
        : "+f"(x[0]), "+f"(x[1]), "+f"(x[2]), "+f"(x[3]) : "r"(a));
}"""
GROUP = """extern "C" __global__ void k(float* x) {
    x[threadIdx.x] = -1;
    asm volatile("tcgen05.wait::ld.sync.aligned;");
}"""
TEXTURE = """__device__ float fetch(cudaTextureObject_t t) { return tex2D<float>(t, 0.5f, 0.25f); }
extern "C" __global__ void k(float* x) {
    x[threadIdx.x] = -1;
    x[threadIdx.x] = fetch((cudaTextureObject_t)x);
}"""


@pytest.mark.parametrize(
    "code, instruction, line",
    [
        (CHANGED_MAP, "tensormap.replace.tile.rank.global.b1024.b32", 5),
        (SPARSE, "mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", 5),  # the last line of the statement
        (GROUP, "tcgen05.wait::ld.sync.aligned", 3),
        (TEXTURE, "tex.2d.v4.f32.f32", 1),
    ],
    ids=["tensormap", "mma.sp", "tcgen05", "texture"],
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


def test_functions_of_the_compilers_own_headers_are_in_no_folder():
    """NVRTC names its built-in header as if it were in the current directory."""
    k = rawkern.RawKernel(
        'extern "C" __global__ void k(cudaTextureObject_t t, float* x) { x[0] = tex1Dfetch<float>(t, 3); }'
    )
    with pytest.raises(rawkern.UnsupportedError, match=r"comes from __nv_nvrtc_.*, inlined at \S+\.py:\d+, line 1$"):
        k[1, 1](0, torch.zeros(3))


def test_other_kernels_of_the_module_run():
    code = CHANGED_MAP + '\nextern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }'
    module = rawkern.RawModule(code=code)
    x = torch.full((32,), 7.5)
    with pytest.raises(rawkern.UnsupportedError, match=r"tensormap\.replace"):
        module.k[1, 32](x)
    module.twice[1, 32](x)
    assert (x == 15).all()


FINE = """
__device__ __noinline__ float twice(float x) { return 2 * x; }
extern "C" __global__ void fine(float* x) { x[threadIdx.x] = twice(x[threadIdx.x]); }"""


@pytest.mark.parametrize(
    "code, why",
    [
        ('asm volatile("mov.u32 %0, %1 %2;" : "=r"(n) : "r"(n), "r"(n));', r"operand not understood: '%r\d+ %r\d+'"),
        ('asm volatile("mov.u32 %0, %1" : "=r"(n) : "r"(n));', r"operands? not understood|statement without an end"),
        ('asm volatile("{ .weird 5; }");', "directive not supported: '.weird 5'"),
        ('asm volatile("{ .reg .b32 a b; }");', "registers not understood: '.reg .b32 a b'"),
        ('asm volatile("{ .shared .weird s; }");', "variable not understood: '.shared .weird s'"),
        ('asm volatile("{ .reg .b32 t; ld.shared.b32 t, [%0*4]; }" :: "r"(n));', "address not understood"),
        ('asm volatile("mov.u32 %0, %%strange;" : "=r"(n));', "special register %strange"),
        ('asm volatile("mov.u32 %0, strange;" : "=r"(n));', "symbol strange"),
        ('asm volatile("strange %0;" :: "r"(n));', "PTX instruction strange"),
        ('asm volatile("{ call strange, (%0); }" :: "r"(n));', "call of strange with values"),
        ('asm volatile("call strange;");', "function strange has no definition"),
        ("n = surf1Dread<int>((cudaSurfaceObject_t)n, 0);", "surfaces"),
        ("n = *(int*)malloc(4) + outside(n);", "function outside\\(int\\) has no definition"),
    ],
)
@pytest.mark.parametrize("called", [False, True], ids=["direct", "called"])
def test_statements_that_are_not_understood_concern_their_own_kernels(code, why, called):
    source = "__device__ int outside(int);\n" + FINE
    body = f"unsigned n = threadIdx.x; {code} x[threadIdx.x] = n;"
    if called:
        source += f"""
__device__ __noinline__ void inner(float* x) {{ {body} }}
extern "C" __global__ void k(float* x) {{ x[0] = -1; inner(x); }}"""
    else:
        source += f'\nextern "C" __global__ void k(float* x) {{ x[0] = -1; {body} }}'
    module = rawkern.RawModule(code=source)
    x = torch.full((32,), 7.5)
    with pytest.raises(rawkern.UnsupportedError, match=why) as caught:
        module.k[1, 32](x)
    assert str(caught.value).startswith("k: ")
    assert (x == 7.5).all()
    module.fine[1, 32](x)
    assert (x == 15).all()


def test_a_form_of_a_known_instruction():
    code = """extern "C" __global__ void k(long long* x) {
        unsigned a = x[0], b = x[1];
        asm volatile("mma.sp.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3}, {%2, %3}, {%0, %1}, %2, 0x0;"
            : "+r"(a), "+r"(b) : "r"(1), "r"(2));
        x[2] = a + b;
    }"""
    x = torch.full((4,), 7)
    with pytest.raises((rawkern.UnsupportedError, rawkern.CompileError), match=r"mma\.sp"):
        rawkern.RawKernel(code)[1, 1](x)
    assert (x == 7).all()


ABSENT = [
    ("tld4.r.2d.v4.f32.f32 {%f1, %f1, %f1, %f1}, [%rd1, {%f1, %f1}];", "textures"),
    ("txq.width.b32 %r1, [%rd1];", "textures"),
    ("suld.b.1d.b32.trap %r1, [%rd1, {%r1}];", "surfaces"),
    ("sust.b.2d.b32.trap [%rd1, {%r1, %r1}], %r1;", "surfaces"),
    ("sured.b.add.1d.u32.trap [%rd1, {%r1}], %r1;", "surfaces"),
    ("mma.sp.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%r1,%r1}, {%r1,%r1}, {%r1,%r1}, {%r1,%r1}, %r1, 0x0;", "sparse"),
    ("wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16 {%f1,%f1,%f1,%f1}, %rd1, %rd1, %r1, 0, 1, 1, 1, 0, 0;", "sparse"),
    ("tcgen05.fence::before_thread_sync;", "capability 10.0"),
    ("tensormap.replace.tile.rank.global.b1024.b32 [%rd1], 1;", "changes of tensor maps"),
    ("cp.async.bulk.tensor.3d.shared::cta.global.im2col::w.mbarrier::complete_tx::bytes [%r1], [%rd1, {%r1, %r1, %r1}], [%r1], {%r1};", "im2col"),
    ("clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%r1], [%r1];", "capability 10.0"),


    ("multimem.ld_reduce.global.add.f32 %f1, [%rd1];", "several GPUs"),
    ("fence.proxy.tensormap::generic.acquire [%rd1], 128;", "expected 1 of"),
    ("mma.sync.aligned.m16n8k8.col.col.f16.f16.f16.f16 {%r1,%r1}, {%r1,%r1}, {%r1}, {%r1,%r1};", "expected 1 of row"),
]  # fmt: skip


def test_every_absent_instruction_names_its_line_also_in_device_functions(tmp_path):
    """One function for each, called by a kernel of its own; nothing of it runs."""
    lines = []
    for k, (text, _) in enumerate(ABSENT):
        asm = "{ .reg .b32 %r<2>; .reg .b64 %rd<2>; .reg .f32 %f<2>; " + text + " }"
        lines.append(f'__device__ __noinline__ void f{k}(float* x) {{ x[0] = 1; asm volatile("{asm}"); }}')
    for k in range(len(ABSENT)):
        lines.append(f'extern "C" __global__ void k{k}(float* x) {{ x[0] = 2; f{k}(x + 1); }}')
    path = tmp_path / "absent.cu"
    path.write_text("\n".join(lines))
    module = rawkern.load(path)
    x = torch.full((2,), 7.5)
    for k, (text, why) in enumerate(ABSENT):
        with pytest.raises(rawkern.UnsupportedError) as caught:
            module.get_function(f"k{k}")[1, 1](x)
        message, op = str(caught.value), text.split()[0].rstrip(";")
        assert message.startswith(f"k{k}: the PTX instruction {op} is not supported on the CPU engine ("), message
        assert why in message and f"absent.cu:{k + 1}" in message, message
    assert (x == 7.5).all()


def test_exit_in_a_function_that_calls_itself(tmp_path):
    path = tmp_path / "ends.cu"
    path.write_text("""__device__ __noinline__ int f(int n) {
        if (n < 0) asm volatile("exit;");  // line 2
        return n < 2 ? n : f(n - 1) + f(n - 2);
    }
    extern "C" __global__ void k(int* x) { x[threadIdx.x] = f(x[threadIdx.x]); }""")
    with pytest.raises(rawkern.UnsupportedError, match=r"^k: the PTX instruction exit .*calls itself.*ends\.cu:2"):
        rawkern.load(path).k[1, 4](torch.zeros(4, dtype=torch.int32))


def test_kernels_that_launch_kernels(tmp_path):
    path = tmp_path / "nested.cu"
    path.write_text("""extern "C" __global__ void child(int* x) { x[0] = 1; }
    extern "C" __global__ void k(int* x) {
        child<<<1, 1>>>(x);
    }""")
    with pytest.raises(rawkern.CompileError, match=r"nested\.cu:3"):
        rawkern.load(path).k[1, 1](torch.zeros(1, dtype=torch.int32))
