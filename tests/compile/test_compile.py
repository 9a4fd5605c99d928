"""Source to program: exact types, headers, errors that can be read, and the cache."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rawkern.base import cache, pip
from rawkern.compile import compile, layout, lookup, nvrtc, toolchain
from rawkern.compile import programs as compiler
from rawkern.compile.programs import Program, compile_program, parameter_names, templates
from rawkern.compile.source import CPU_ARCH, from_path, from_text
from rawkern.errors import CompileError, MissingDependencyError
from rawkern.kernel import RawKernel

ROOT = Path(__file__).parents[2]
SQUARE = (
    'extern "C" __global__ void square(int n, const float* x, float* y) '
    "{ int i = threadIdx.x; if (i < n) y[i] = x[i] * x[i]; }"
)


def _compile(code: str, *names: str, arch: str = CPU_ARCH, **settings) -> Program:
    return compile_program(from_text(code, **settings), arch, names)


def _types(program: Program) -> dict[str, tuple[str, ...]]:
    return {entry.name: entry.params for entry in program.entries}


def _rejected(code: str, *names: str, **settings) -> CompileError:
    with pytest.raises(CompileError) as caught:
        _compile(code, *names, **settings)
    return caught.value


# --- Code ------------------------------------------------------------------------------------------------


def test_ptx_for_the_cpu() -> None:
    program = _compile(SQUARE)
    (entry,) = program.entries
    assert (entry.symbol, entry.name, entry.params) == ("square", "square", ("int", "const float*", "float*"))
    assert ".target sm_80" in program.ptx and ".entry square(" in program.ptx
    assert '.file\t1 "kernel.cu"' in program.ptx and "\t.loc\t1 1 " in program.ptx
    assert "mul.f32" in program.ptx and ".ftz" not in program.ptx
    assert "rawkern" not in program.ptx


def test_cubin_without_a_gpu() -> None:
    program = _compile(SQUARE, arch="sm_90")
    assert program.code[:4] == b"\x7fELF"
    assert program.entries == _compile(SQUARE).entries


@pytest.mark.parametrize("arch", ["90", "sm90", "sm_", "compute_80;", ""])
def test_bad_architecture(arch: str) -> None:
    with pytest.raises(ValueError, match=r"unknown architecture .*; use 'sm_90'"):
        _compile(SQUARE, arch=arch)


def test_architecture_that_nvrtc_does_not_know() -> None:
    with pytest.raises(CompileError, match="invalid value for --gpu-architecture"):
        _compile(SQUARE, arch="sm_12")


def test_language_standard() -> None:
    check = "static_assert(__cplusplus == %dL); __global__ void k() {}"
    _compile(check % 201703)
    _compile(check % 202002, options=["-std=c++20"])
    _compile(check % 202002, options=["--std", "c++20"])
    assert _types(_compile('extern "C" __global__ void k(int x) {}', options=["-std=c++11"])) == {"k": ("int",)}


def test_users_macros_do_not_disturb_the_probes() -> None:
    letters = (
        "".join(f"#define {c} 4\n" for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZTN")
        + "#define type 1\n#define SIZE 2\n#define TYPE 3\n"
    )
    assert _types(_compile(letters + SQUARE)) == {"square": ("int", "const float*", "float*")}


def test_options_reach_the_compiler() -> None:
    program = _compile("__global__ void k(float* x) { x[0] = x[1] * N; }", options=["-DN=7.5f", "-ftz=true"])
    assert "0f40F00000" in program.ptx and "mul.ftz.f32" in program.ptx


def test_file_is_named_in_line_information(tmp_path: Path) -> None:
    (tmp_path / "sq.cu").write_text("\n\n" + SQUARE)
    program = compile_program(from_path(tmp_path / "sq.cu"), CPU_ARCH)
    assert f'.file\t1 "{tmp_path}/sq.cu"' in program.ptx and "\t.loc\t1 3 " in program.ptx


# --- Types -----------------------------------------------------------------------------------------------


def test_types_through_typedefs_macros_and_namespaces() -> None:
    program = _compile(r"""
        #include <cstdint>
        typedef const float cf; using Table = float4* const*; using Callback = int (*)(int);
        #define PARAM(t, n) t* __restrict__ n
        namespace ns { struct P { int a; }; template <class A, class B> struct Pair { A a; B b; };
            __global__ void spaced(P p, const P* q, Pair<int, const float*> r, P& s) {} }
        extern "C" __global__ void __launch_bounds__(128) c_kernel(const int n, cf* x, PARAM(double, y), Table t,
            Callback f, uint64_t u, int64_t i, size_t z, unsigned char uc, signed char sc, char c,
            const volatile short* v, float w[4], const __grid_constant__ ns::P p, void* any, const void* const* anys,
            long l, bool b) {}
        static __global__ void internal(int* x) { *x = 1; }
        namespace { struct Hidden { int h; }; __global__ void unnamed(Hidden h) {} }
        #if 0
        extern "C" __global__ void left_out(int x) {}
        #endif
        #define MAKE(name) extern "C" __global__ void made_##name(long long n, float* x) {}
        MAKE(one)
        namespace deep { MAKE(two) }
    """)
    assert _types(program) == {
        "ns::spaced": ("ns::P", "const ns::P*", "ns::Pair<int, float const*>", "ns::P&"),
        "c_kernel": (
            "int", "const float*", "double*", "float4* const*", "int (*)(int)", "unsigned long long", "long long",
            "unsigned long",
            "unsigned char", "signed char", "char", "const volatile short*", "float*", "ns::P", "void*",
            "const void* const*", "long", "bool",
        ),
        "internal": ("int*",),
        "unnamed": ("(anonymous namespace)::Hidden",),
        "made_one": ("long long", "float*"),
        "made_two": ("long long", "float*"),
    }  # fmt: skip
    assert "left_out" not in program.ptx and "rawkern" not in program.ptx


def test_half_types() -> None:
    program = _compile("""
        #include <cuda_fp16.h>
        #include <cuda_bf16.h>
        #include <cuda_fp8.h>
        #define HALF half a, const half* x, __half2* y
        #define PARAMS HALF, nv_bfloat16 b, __nv_bfloat162* z, __nv_fp8_e4m3* e, __nv_fp8_e5m2 f
        extern "C" __global__ void k(PARAMS) {}
        __global__ void m(PARAMS) {}
    """)
    expected = (
        "__half",
        "const __half*",
        "__half2*",
        "__nv_bfloat16",
        "__nv_bfloat162*",
        "__nv_fp8_e4m3*",
        "__nv_fp8_e5m2",
    )
    assert _types(program) == {"k": expected, "m": expected}


def test_enumerations_are_their_integers() -> None:
    program = _compile("""
        enum class Mode : unsigned char { A, B };
        namespace ns { enum class Wide : long long { Z }; __global__ void mangled(Wide w, const Mode* m) {}
            __global__ void over(Wide w) {} __global__ void over(Wide* w) {} }
        extern "C" __global__ void plain(Mode m, Mode* out) {}
    """)
    assert sorted((entry.name, entry.params) for entry in program.entries) == [
        ("ns::mangled", ("long long", "const unsigned char*")),
        ("ns::over", ("long long",)),
        ("ns::over", ("long long*",)),
        ("plain", ("unsigned char", "unsigned char*")),
    ]


TEMPLATES = """
template <class T> struct Traits { using pointer = T*; };
template <class T, int N = 2> __global__ void axpy(typename Traits<T>::pointer x, T a) { x[0] = a * N; }
namespace ns { template <class T> __global__ void inner(const T* x, T* y) { *y = *x; } }
template __global__ void axpy<double, 3>(double* x, double a);
__global__ void over(int a) {}
__global__ void over(int a, float* b) { *b = a; }
"""


def test_instances_and_overloads() -> None:
    asked = ("axpy<float, 4>", "axpy<int>", "ns::inner< short >", "over(int, float *)", "axpy<float,4>")
    program = _compile(TEMPLATES, *asked)
    assert sorted((entry.name, entry.params) for entry in program.entries) == [
        ("axpy<double, 3>", ("double*", "double")),
        ("axpy<float, 4>", ("float*", "float")),
        ("axpy<int, 2>", ("int*", "int")),
        ("ns::inner<short>", ("const short*", "short*")),
        ("over", ("int",)),
        ("over", ("int", "float*")),
    ]
    assert [entry.params for name in asked if (entry := lookup.entry(program, name))] == [
        ("float*", "float"), ("int*", "int"), ("const short*", "short*"), ("int", "float*"), ("float*", "float"),
    ]  # fmt: skip
    assert lookup.entry(program, "axpy<float,4>") == lookup.entry(program, "axpy<float, 4>") is not None
    with pytest.raises(ValueError, match="more than one kernel 'over'"):
        lookup.entry(program, "over")
    assert templates(program.source) == ("axpy", "ns::inner")


@pytest.mark.parametrize("name", ["axpy<foo>", "nothing<int>", "over(double)", "axpy", "ns::missing"])
def test_unknown_instance_lists_what_is_there(name: str) -> None:
    error = _rejected(TEMPLATES, "axpy<float>", name)
    assert f"has no kernel {name!r}" in str(error) and "axpy<float>'" not in str(error)
    assert "kernels: over, axpy<double, 3>" in str(error) or "axpy<double, 3>, over" in str(error)
    assert "templates: axpy<class T" in str(error)


def test_instance_of_an_overloaded_template() -> None:
    code = "template <class T> __global__ void v(T x) {} template <class T> __global__ void v(T* x, int n) {}"
    assert _types(_compile(code, "v<float>(float*, int)")) == {"v<float>": ("float*", "int")}
    assert "overloaded; add parameter types, such as 'v<float>(float*, int)'" in str(_rejected(code, "v<float>"))


def test_error_inside_an_instance_names_the_users_line() -> None:
    code = "template <class T> __global__ void k(T* x) {\n  x->call();\n}\n"
    error = _rejected(code, "k<int>")
    assert (error.file, error.line) == ("kernel.cu", 2) and "pointer-to-class" in str(error)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("__device__ int f() { return 1; }", "no __global__ function is defined in it"),
        ("template <class T> __global__ void k(T* x) {}", "name an instance of k, such as k<float>"),
        ("#if 0\n__global__ void k() {}\n#endif", "left out by #if or only declared"),
        ("", "no __global__ function is defined in it"),
    ],
)
def test_source_without_a_kernel(code: str, message: str) -> None:
    assert message in str(_rejected(code))


# --- Names -----------------------------------------------------------------------------------


def test_parameter_names() -> None:
    code = r"""
        #define MAKE(name) extern "C" __global__ void made_##name(long long count, float* data, int) { data[0] = 1; }
        MAKE(one)
        #define ARG(x) x
        __global__ void odd(int ARG(hidden), float f) {}
        __global__ void over(int a) {}
        __global__ void over(float b, int, int n) {}
        namespace ns { extern "C" __global__ void spaced(int only); extern "C" __global__ void spaced(int real) {} }
        template <class T> __global__ void tmpl(T* first, int = 3) {}
        extern "C" __global__ void none() {}
        __global__ void twin(int a) {}
        __global__ void typed(char half, size_t) {}
        __global__ void twin(double b) {}
        __global__ void longer(int n
        #ifdef MAKE
            , float* there
        #endif
        ) {}
        __global__ void chosen(
        #ifdef UNKNOWN
            char a
        #else
            int b
        #endif
        ) {}
    """
    program = _compile(code, "tmpl<float>")
    names = {(entry.name, entry.params[:1]): parameter_names(program, entry) for entry in program.entries}
    assert names == {
        ("made_one", ("long long",)): ("count", "data", "arg2"),
        ("odd", ("int",)): ("hidden", "f"),
        ("over", ("int",)): ("a",),
        ("over", ("float",)): ("b", "arg1", "n"),
        ("spaced", ("int",)): ("real",),
        ("tmpl<float>", ("float*",)): ("first", "arg1"),
        ("none", ()): (),
        ("twin", ("int",)): ("a",),
        ("typed", ("char",)): ("half", "arg1"),
        ("twin", ("double",)): ("b",),
        ("longer", ("int",)): ("n", "there"),
        ("chosen", ("int",)): ("b",),
    }


def test_parameter_names_from_a_header(tmp_path: Path) -> None:
    (tmp_path / "k.h").write_text('extern "C" __global__ void k(int first, float* second) {}')
    program = _compile("#include <k.h>\n", include_dirs=[tmp_path])
    assert parameter_names(program, program.entries[0]) == ("first", "second")


def test_parameter_names_are_kept_with_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compiled already is not read again for the names."""
    code = 'extern "C" __global__ void kept(int first, float*, int first_again) {}\n#define NAMED kept'
    first = _compile(code)
    compiler._programs.clear()
    again = _compile(code)
    monkeypatch.setattr(layout, "parameter_names", lambda *_: pytest.fail("the text is read again"))
    assert parameter_names(again, again.entries[0]) == ("first", "arg1", "first_again") and again == first


# --- Errors -------------------------------------------------------------------------------------------


def test_missing_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "_libraries", lambda: ["libnvrtc.so.0", os.devnull])
    toolchain.nvrtc.cache_clear()
    message = rf"NVRTC, which cannot be loaded \[{os.devnull}: .*\]; run: {re.escape(pip.command())}$"
    code = "__global__ void missing_nvrtc() {}"
    try:
        for use in (lambda: _compile(code), lambda: RawKernel(code)[1, 1]()):
            with pytest.raises(MissingDependencyError, match=message):
                use()
    finally:
        toolchain.nvrtc.cache_clear()


# --- Cache -----------------------------------------------------------------------------------------------


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An empty disk cache and memory; the list grows by one for each run of NVRTC."""
    monkeypatch.setenv("RAWKERN_CACHE_DIR", str(tmp_path / "fresh"))
    monkeypatch.setattr(compiler, "_programs", type(compiler._programs)())
    runs: list[str] = []
    real = nvrtc.run_nvrtc

    def counted(source, arch, *args, **kwargs):
        runs.append(arch)
        return real(source, arch, *args, **kwargs)

    monkeypatch.setattr(compile, "run_nvrtc", counted)
    return runs


def test_one_run_of_nvrtc_gives_code_and_types(fresh: list[str]) -> None:
    _compile(SQUARE)
    assert fresh == [CPU_ARCH]


def test_one_run_of_nvrtc_tells_an_error_of_the_source(fresh: list[str]) -> None:
    assert _rejected(SQUARE.replace("x[i] * x[i]", "x[i] * w")).log.count("error:") == 1
    assert fresh == [CPU_ARCH]
    left_out = f"#if 0\n{SQUARE}\n#endif\n__global__ void k(float* x) {{ x[0] = w; }}"
    for code in (left_out, SQUARE.replace("const float*", "const half*"), SQUARE[:-1]):  # the probes fail, too
        fresh.clear()
        error = _rejected(code)
        assert len(fresh) == 2 and "__rawkern" not in error.log and "__nv_name_map" not in error.log


def test_memory_and_disk(fresh: list[str]) -> None:
    first = _compile(SQUARE)
    assert _compile(SQUARE) is first
    compiler._programs.clear()
    again = _compile(SQUARE)
    assert (again.code, again.entries, again.symbols, again.log) == (
        first.code,
        first.entries,
        first.symbols,
        first.log,
    )
    assert len(fresh) == 1


def test_every_part_of_the_key_counts(fresh: list[str], tmp_path: Path) -> None:
    header = tmp_path / "n.h"
    header.write_text("#define N 1")
    base = '#include "n.h"\ntemplate <class T> __global__ void t(T* x) {}\n' + SQUARE
    settings = {"include_dirs": [tmp_path]}
    keys = {_compile(base, **settings).key}
    keys.add(_compile(base + "\n", **settings).key)
    keys.add(_compile(base, options=["-DA=1"], **settings).key)
    keys.add(_compile(base, "t<int>", **settings).key)
    keys.add(_compile(base, arch="sm_90", **settings).key)
    header.write_text("#define N 2")
    keys.add(_compile(base, **settings).key)
    file = tmp_path / "k.cu"
    file.write_text(base)
    keys.add(compile_program(from_path(file, include_dirs=[tmp_path]), CPU_ARCH).key)
    assert len(keys) == 7


def test_changed_header_changes_the_code(fresh: list[str], tmp_path: Path) -> None:
    header = tmp_path / "n.h"
    code = '#include "n.h"\nextern "C" __global__ void k(int* x) { x[0] = N; }'
    for value in (12345, 54321):
        header.write_text(f"#define N {value}")
        assert f" {value};" in _compile(code, include_dirs=[tmp_path]).ptx


def test_header_edited_while_compiling_is_not_stored(fresh: list[str], tmp_path: Path) -> None:
    header = tmp_path / "n.h"
    header.write_text("#define N 1")
    read = from_text('#include "n.h"\n__global__ void k(int* x) { x[0] = N; }', include_dirs=[tmp_path])
    header.write_text("#define N 2")  # after the source was read, before it is compiled
    edited = compile_program(read, CPU_ARCH)
    key = edited.key
    assert cache.get(key) is None and ", 2;" in edited.ptx
    header.write_text("#define N 1")  # and set back: the program of the edit is not what this source is
    assert ", 1;" in compile_program(read, CPU_ARCH).ptx
    assert cache.get(key) is not None


def test_damaged_program_is_rebuilt(fresh: list[str]) -> None:
    first = _compile(SQUARE)
    for path in cache.directory().rglob("program-*"):
        path.write_bytes(path.read_bytes()[:-20])
    compiler._programs.clear()
    assert _compile(SQUARE).code == first.code
    assert len(fresh) == 2


def test_threads_compile_once(fresh: list[str]) -> None:
    programs: list[Program] = []
    threads = [threading.Thread(target=lambda: programs.append(_compile(SQUARE))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fresh) == 1 and len(programs) == 8 and len({id(program) for program in programs}) == 1


def test_failure_is_not_kept(fresh: list[str], tmp_path: Path) -> None:
    file = tmp_path / "k.cu"
    for text, good in (("__global__ void k( {}", False), ("__global__ void k() {}", True)):
        file.write_text(text)
        if good:
            compile_program(from_path(file), CPU_ARCH)
        else:
            with pytest.raises(CompileError):
                compile_program(from_path(file), CPU_ARCH)


def test_warm_start_needs_no_compiler(tmp_path: Path) -> None:
    program = (
        "import sys, time\n"
        "from rawkern.compile import programs as compiler, source\n"
        "start = time.process_time()\n"
        f"read = source.from_text({SQUARE!r})\n"
        "program = compiler.compile_program(read, 'compute_80')\n"
        "compiler.parameter_names(program, program.entries[0])\n"
        "print(time.process_time() - start, 'libnvrtc' in open('/proc/self/maps').read())\n"
    )
    environment = {**os.environ, "RAWKERN_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    outputs = []
    for _ in range(2):
        run = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        outputs.append(run.stdout.split())
    assert outputs[0][1] == "True"
    assert outputs[1][1] == "False"
    assert float(outputs[1][0]) < 0.02  # seconds of the process; 0.6 ms were seen


def test_a_cubin_is_whole() -> None:
    """Bindings that take machine code for a string cut its last byte off, which readers of ELF mind."""
    code = 'extern "C" __global__ void k(float* x) { x[0] = 1; }'
    for arch in ("sm_80", "sm_90", "sm_120"):
        cubin = _compile(code, arch=arch).code
        programs, sections = struct.unpack_from("<2Q", cubin, 32)
        sizes = struct.unpack_from("<4H", cubin, 54)  # of a program header, their number, the same for sections
        assert len(cubin) == max(programs + sizes[0] * sizes[1], sections + sizes[2] * sizes[3])
