"""A GPU's limits on the CPU engine: what its assembler rejects, in its words, and what launches reject."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import rawkern
from rawkern.base.gpus import LOCAL, SPECIFICATIONS, STATIC_SHARED, Specification
from rawkern.checked import launches
from rawkern.compile import cubin
from rawkern.compile.programs import compile_program
from rawkern.compile.source import CPU_ARCH, Source, from_path, from_text
from rawkern.engines import cpu
from rawkern.engines.cpu.needs import ptxas_errors
from rawkern.engines.cpu.runtime.jit import Translation
from rawkern.errors import CompileError, LaunchError
from rawkern.launch import modes
from tests import forked

KERNEL = 'extern "C" __global__ void f(int i, float* o)'
USE = "s[threadIdx.x + i] = i; __syncthreads(); *o = s[i];"
#: What is just too much, and the same with N one less, which is not.
TOO_MUCH = {
    "an array": (12289, f"{KERNEL} {{ __shared__ float s[N]; {USE} }}"),
    "arrays with room between them": (
        5456,
        f"{KERNEL} {{ __shared__ char c[5461]; __shared__ float4 v[2]; __shared__ short h[3]; __shared__ double s[N];"
        f" c[i] = h[i] = 3; v[i].x = c[i + 1]; o[1] = v[i + 1].x + h[1]; {USE} }}",
    ),
    "an array of the file": (49153, f"__shared__ char s[N]; {KERNEL} {{ {USE} }}"),
    "an array of a function": (
        12289,
        f"__device__ __noinline__ void g(int i, float* o) {{ __shared__ float s[N]; {USE} }} {KERNEL} {{ g(i, o); }}",
    ),
    "instances of a template": (
        12289,
        f"template <int M> __global__ void f(int i, float* o) {{ __shared__ float s[M]; {USE} }}"
        "template __global__ void f<N>(int, float*); template __global__ void f<N + 7>(int, float*);"
        "template __global__ void f<32>(int, float*);",
    ),
    "constants": (16385, f"__constant__ float c[N]; {KERNEL} {{ *o = c[i]; }}"),
    "constants with room between them": (65529, f"__constant__ char c[N]; __constant__ double d; {KERNEL} {{ *o = c[i] + d; }}"),
    "constants that no kernel uses": (65537, f"__constant__ char c[N]; {KERNEL} {{ *o = i; }}"),
}  # fmt: skip


def rejected(source: Source, arch: str) -> list[str]:
    """The assembler's errors, or those of the CPU engine, in the alphabet's order."""
    try:
        program = compile_program(source, arch)
        if arch == CPU_ARCH:
            cpu.load_module(program)
    except CompileError as error:
        return sorted(error.log.strip("\0\n ").splitlines())
    return []


@pytest.mark.parametrize("name", TOO_MUCH)
def test_what_the_assembler_rejects_in_its_words(name: str) -> None:
    least, code = TOO_MUCH[name]
    source = from_text(code, [f"-DN={least}"])
    said = rejected(source, "sm_80")
    assert said and all("uses too much" in line for line in said)
    assert rejected(source, CPU_ARCH) == said
    fits = from_text(code, [f"-DN={least - 8 if 'instances' in name else least - 1}"])
    assert rejected(fits, "sm_80") == rejected(fits, CPU_ARCH) == []


def with_parameters(size: int, version: str, folder: Path) -> Path:
    code = f'struct P {{ char c[{size}]; }}; extern "C" __global__ void f(P p, char* o) {{ *o = p.c[threadIdx.x]; }}'
    ptx = compile_program(from_text(code), CPU_ARCH).ptx
    at = ptx.index(".version ")
    path = folder / f"{size}_{version}.ptx"
    path.write_text(f"{ptx[:at]}.version {version}{ptx[ptx.index(chr(10), at) :]}")
    return path


@pytest.mark.parametrize(("size", "version"), [(4344, "8.0"), (4345, "8.0"), (4345, "8.1")])
def test_parameters_of_ptx(size: int, version: str, tmp_path: Path) -> None:
    path = with_parameters(size, version, tmp_path)
    found = ptxas_errors(Translation(path.read_text()).needs())
    too_much = size > 4344 and version == "8.0"
    assert found == (
        "ptxas error   : Entry function 'f' uses too much parameter space (0x1108 bytes, 0x1100 max)"
        if too_much
        else ""
    )
    if ptxas := shutil.which("ptxas"):  # what stands above is what it says, in CUDA 13.0
        command = [ptxas, "-arch=sm_80", str(path), "-o", os.devnull]
        said = subprocess.run(command, capture_output=True, text=True).stderr
        assert (found.partition(" : ")[2] in said) if too_much else not said
    if too_much:
        with pytest.raises(CompileError, match="4352; pass a pointer to large ones"):
            cpu.load_module(compile_program(from_path(path), CPU_ARCH))


def test_parameters_that_the_compiler_rejects() -> None:
    code = 'struct P { char c[32765]; }; extern "C" __global__ void f(P p, char* o) { *o = p.c[threadIdx.x]; }'
    for arch in ("sm_80", CPU_ARCH):
        with pytest.raises(CompileError, match=r"overflowed \(32773 bytes required.*\n.*limited to 32764 bytes"):
            compile_program(from_text(code), arch)


def test_the_error_of_a_kernel_says_what_to_do() -> None:
    code = TOO_MUCH["an array"][1]
    kernel = rawkern.RawKernel(code, options=("-DN=12289",))
    for use in (kernel.compile, lambda: kernel[1, 32](1, torch.zeros(2)), checked(kernel)):
        with pytest.raises(CompileError) as caught:
            use()
        headline, *rest = str(caught.value).splitlines()
        assert "test_limits.py" in headline
        assert headline.endswith("Entry function 'f' uses too much shared data (0xc004 bytes, 0xc000 max)")
        assert "limited to 48 KiB per block" in rest[0] and "extern __shared__" in rest[0]


def checked(kernel: rawkern.RawKernel):
    def launch() -> None:
        with rawkern.check():
            kernel[1, 32](1, torch.zeros(2))

    return launch


MIXED = """
extern "C" {
__global__ void __launch_bounds__(96) bounded(float* o) {
    __shared__ char c[5]; __shared__ double d[3]; __shared__ short h[7];
    c[threadIdx.x % 5] = 1; d[threadIdx.x % 3] = 2; h[threadIdx.x % 7] = 3;
    __syncthreads();
    o[threadIdx.x] = c[0] + d[1] + h[2];
}
__global__ void framed(float* o, int n) {
    float a[50];
    for (int i = 0; i < 50; i++) a[i] = o[i];
    for (int i = 0; i < n; i++) a[i * 7 % 50] += a[i * 3 % 50];
    o[threadIdx.x] = a[n];
}
__global__ void __launch_bounds__(2048) more_than_there_are(float* o) { *o = 1; }
__global__ void plain(float* o) { o[threadIdx.x] = 1; }
}"""


@pytest.mark.parametrize("arch", ["sm_80", "sm_120"])
def test_what_kernels_need_is_what_their_machine_code_needs(arch: str) -> None:
    source = from_text(MIXED)
    there = cubin.resources(compile_program(source, arch).code, arch)
    ours = Translation(compile_program(source, CPU_ARCH).ptx).needs().kernels
    for name, used in there.items():
        assert ours[name].shared == used.shared, name
        assert ours[name].max_threads == min(used.max_threads, 1024), name
        assert 0 <= ours[name].local - used.local < 64, name  # the frame is rounded up
    assert ours["bounded"].shared == 46 and ours["framed"].local >= 200


def test_launch_bounds(device: str) -> None:
    kernel = rawkern.RawKernel(MIXED, "bounded")
    o = torch.full((96,), float("nan"), device=device)
    kernel[1, 96](o)
    assert (o == 6).all()
    kernel.forall(96)(o)  # takes blocks that the kernel allows
    with pytest.raises(
        ValueError, match=r"bounded: block \(97, 1, 1\) has 97 threads, this kernel .* 96 per block on sm_"
    ):
        kernel[1, 97](o)
    if device == "cpu":
        assert kernel.attributes["max_threads_per_block"] == 96
        with rawkern.check(), pytest.raises(ValueError, match="at most 96 per block on sm_80"):
            kernel[1, 97](o)


def test_local_memory_of_a_thread(device: str) -> None:
    code = f"{KERNEL} {{ float a[N]; for (int k = 0; k < N; k++) a[k] = o[k % 9]; *o = a[i]; }}"
    o = torch.ones(9, device=device)
    large = rawkern.RawKernel(code, options=(f"-DN={LOCAL // 4 + 1}",))
    with pytest.raises(
        LaunchError, match="local memory, the maximum is 524288 bytes on sm_80" if device == "cpu" else ""
    ):
        large[1, 1](3, o)
    if device == "cpu":  # a GPU takes less where it has not the memory for all threads that it can hold
        rawkern.RawKernel(code, options=(f"-DN={LOCAL // 4}",))[1, 1](3, o)
        with rawkern.check(), pytest.raises(LaunchError, match="local memory"):
            large[1, 1](3, o)


def many_registers(bounds: str) -> str:
    """Sixty numbers that are all needed at a time."""
    return (
        f'extern "C" __global__ void {bounds} wide(double* x) {{ double a[60];'
        " for (int i = 0; i < 60; i++) a[i] = x[i * 1024 + threadIdx.x];"
        " for (int i = 0; i < 60; i++) for (int k = 0; k < 60; k++) a[k] = a[k] * a[(k + 7) % 60] + a[(k + i) % 60];"
        " for (int i = 0; i < 60; i++) x[i * 1024 + threadIdx.x] = a[i]; }"
    )


def test_registers_of_a_block(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU's driver knows, full checks read off the machine code."""
    x = torch.zeros(60 * 1024, dtype=torch.float64, device=device)
    kernel = rawkern.RawKernel(many_registers(""))
    few = rawkern.RawKernel(
        'extern "C" __global__ void __launch_bounds__(1024) few(double* x) { x[threadIdx.x] += 1; }'
    )[1, 1024]
    unbounded = rawkern.RawKernel('extern "C" __global__ void unbounded(double* x) { x[threadIdx.x] += 1; }')[1, 1024]
    text = (
        "at most" if device == "cuda" else r"wide: a block of 1024 threads needs \d+ registers on sm_80, \d+ a thread"
    )
    with rawkern.check(), pytest.raises(ValueError, match=text):
        kernel[1, 1024](x)
    with rawkern.check():
        kernel[1, 256](x)
        if device == "cpu":  # none is made where the compiler keeps the bounds, or few values are held
            monkeypatch.setattr(launches, "cubin", None)
            few(x)
            unbounded(x)
        rawkern.RawKernel(many_registers("__launch_bounds__(1024)"))[1, 1024](x)


DYNAMIC = """
extern "C" __global__ void last(float* o) {
    extern __shared__ float s[];
    __shared__ float own[256];
    own[threadIdx.x] = 2;
    unsigned bytes;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
    s[bytes / 4 - 1 - threadIdx.x] = threadIdx.x;
    __syncthreads();
    o[threadIdx.x] = s[bytes / 4 - 1 - threadIdx.x] + own[threadIdx.x ^ 1];
}"""


@pytest.mark.parametrize("gpu", SPECIFICATIONS.values(), ids=lambda gpu: gpu.name)
def test_dynamic_shared_memory_by_architecture(gpu: Specification) -> None:
    kernel, o = LAST, torch.empty(32)
    room = gpu.shared_per_block - 1024
    with rawkern.architecture(gpu.name):
        kernel[1, 32, room](o)
        assert o.tolist() == [k + 2 for k in range(32)]
        why = rf"last: shared_mem is {room + 1} bytes, the maximum on {gpu.name} is {room} bytes \({room + 1024} less 1024"
        with pytest.raises(ValueError, match=why):
            kernel[1, 32, room + 1](o)
    assert room + 1024 >= STATIC_SHARED


LAST = rawkern.RawKernel(DYNAMIC)


def test_limits_hold_again_behind_an_architecture() -> None:
    """Native code makes launches from the third on, and knows what was allowed."""
    o, room = torch.empty(32), 100 * 1024
    launch = LAST[1, 32, room]
    for _ in range(2):
        for _ in range(4):
            launch(o)
        with rawkern.architecture("sm_86"), rawkern.architecture("sm_75"):
            for _ in range(3):
                with pytest.raises(ValueError, match="the maximum on sm_75 is"):
                    launch(o)
        with rawkern.check(level="off"), rawkern.architecture("sm_90"):
            launch(o)


@pytest.mark.parametrize("name", ["sm_91", "", "hopper", "90.5", None, True])
def test_architectures_that_there_are_not(name: object) -> None:
    with pytest.raises(ValueError, match=r"it is one of sm_70, .*sm_121"):
        rawkern.architecture(name)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["sm_90", "compute_90", "90", "9.0", "sm_90a"])
def test_names_of_an_architecture(name: str) -> None:
    with rawkern.architecture(name):
        LAST[1, 32, 200 * 1024](torch.empty(32))


def test_the_environments_architecture_and_order() -> None:
    program = (
        "import torch, rawkern\n"
        f"kernel = rawkern.RawKernel({DYNAMIC!r})\n"
        "o = torch.empty(32)\n"
        "kernel[1, 32, 200 * 1024](o)\n"
        "from rawkern.engines.cpu.runtime.order import seed\n"
        "print(int(o.sum()), seed.current)\n"
    )

    environment = {**os.environ, "RAWKERN_ARCH": "sm_90", "RAWKERN_ORDER": "7"}
    done = subprocess.run([*forked.python(), "-c", program], env=environment, capture_output=True, text=True)
    assert done.stdout == "560 7\n", done.stderr


def test_what_the_environment_cannot_mean() -> None:
    with pytest.raises(ValueError, match="the variable is 'x'; it is one of sm_70"):
        modes.parse_gpu("x", "the variable")
    for wrong in ("-1", "x", "1.5", ""):
        with pytest.raises(ValueError, match=f"the variable is '{wrong}'; a seed is an int, 0 or more"):
            modes.parse_seed(wrong, "the variable")
