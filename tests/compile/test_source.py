"""Sources: what is included, what has changed, what the text declares."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

import pytest
import torch

import rawkern
from rawkern.compile import source
from rawkern.compile.declarations import blank, declarations
from rawkern.compile.source import Watch, from_path, from_text


def _header_paths(read: source.Source) -> set[str]:
    return {path for path, _ in read.headers}


def test_text_and_path(tmp_path: Path) -> None:
    code = "__global__ void k() {}\n"
    file = tmp_path / "k.cu"
    file.write_bytes(b"\xef\xbb\xbf" + code.replace("\n", "\r\n").encode())
    assert from_text(code).path is None and from_text(code).text == code
    assert from_path(file).path == str(file) and from_path(file).text == code


def test_closure_follows_the_rules_of_the_preprocessor(tmp_path: Path) -> None:
    src, inc = tmp_path / "src", tmp_path / "inc"
    (inc / "sub").mkdir(parents=True)
    src.mkdir()
    (src / "own.h").write_text("// own")
    (inc / "own.h").write_text("// hidden by the file's own directory, for quotes")
    (inc / "a.h").write_text('  #  include "sub/b.h"\n')
    (inc / "sub" / "b.h").write_text('#include "c.h"\n#include "../a.h" // a circle')
    (inc / "sub" / "c.h").write_text("#include <own.h>")
    (inc / "named.h").write_text("")
    file = src / "k.cu"
    file.write_text(
        '#include "own.h"\n#if 0\n#include <a.h>\n#endif\n#define H <named.h>\n#include H\n#include <cuda_fp16.h>\n'
    )
    read = from_path(file, include_dirs=[inc])
    expected = {src / "own.h", inc / "a.h", inc / "sub/b.h", inc / "sub/c.h", inc / "own.h", inc / "named.h"}
    assert _header_paths(read) == set(map(str, expected))
    assert dict(read.headers)[str(src / "own.h")] == hashlib.sha256(b"// own").hexdigest()
    assert str(inc / "cuda_fp16.h") in read.missing
    assert "cuda_fp16.h" not in read.local_names and "a.h" in read.local_names


def test_string_source_looks_in_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here.h").write_text("")
    monkeypatch.chdir(tmp_path)
    assert _header_paths(from_text('#include "here.h"')) == {str(tmp_path / "here.h")}
    assert _header_paths(from_text("#include <here.h>")) == set()
    assert _header_paths(from_text("", options=["-include=here.h"])) == {str(tmp_path / "here.h")}


def test_include_directories_in_options_are_taken_out(tmp_path: Path) -> None:
    (tmp_path / "x.h").write_text("")
    for options in (["-I", str(tmp_path)], [f"-I{tmp_path}"], [f"--include-path={tmp_path}"], [f"-I {tmp_path}"]):
        read = from_text("#include <x.h>", options=[*options, "-D", "N=4"])
        assert read.include_dirs == (str(tmp_path),)
        assert read.options == ("-DN=4",)
        assert len(read.headers) == 1


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (["-arch=sm_90"], ValueError, "'-arch=sm_90' cannot be used: the tensors' device decides the architecture"),
        (["--gpu-architecture=compute_80"], ValueError, "the tensors' device decides"),
        (["-rdc=true"], ValueError, "without a link step"),
        (["-dlto"], ValueError, "without a link step"),
        (["-time=t.csv"], ValueError, "'-time=t.csv' cannot be used: the compiler would write files"),
        (["--time=/tmp/t.csv"], ValueError, "would write files"),
        (["-create-pch=a.pch"], ValueError, "would write files"),
        (["--use-pch=a.pch"], ValueError, "would write files, or read"),
        (["--pch-dir=."], ValueError, "would write files"),
        (["--fdevice-time-trace=x"], ValueError, "would write files"),
        (["-Xptxas=-v,-o=x"], ValueError, "the assembler's input and output are rawkern's"),
        (["--ptxas-options=--options-file=x"], ValueError, "the assembler's input and output"),
        ("-DN=4", TypeError, "pass a tuple of strings"),
        ([4], TypeError, "pass a tuple of strings"),
        (None, TypeError, "options is None; pass a tuple of strings"),
        ((option for option in ("-DN=4",)), TypeError, "pass a tuple of strings"),  # it can be read only once
        (["-D"], ValueError, "'-D' has no value"),
        (["-I/not/there"], ValueError, "include directory /not/there is not a directory"),
    ],
)
def test_options_that_cannot_work(options: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        from_text("", options=options)  # type: ignore[arg-type]


def test_bad_sources(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"code is bytes, not str"):
        from_text(b"x")  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        from_path(tmp_path / "none.cu")
    (tmp_path / "bad.cu").write_bytes(b"// \xff\xfe")
    with pytest.raises(ValueError, match=r"bad.cu is not UTF-8 text"):
        from_path(tmp_path / "bad.cu")
    with pytest.raises(TypeError, match="pass a sequence of directories"):
        from_text("", include_dirs="include")
    with pytest.raises(TypeError, match="pass a sequence of directories"):
        from_text("", include_dirs=None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"kernel.cu has a NUL character in line 2; remove it"):
        from_text("// one\n// \0 the compiler would not see this")
    (tmp_path / "wide.cu").write_bytes("// one".encode("utf-16-le"))
    with pytest.raises(ValueError, match=r"wide.cu has a NUL character in line 1; .*save a file as UTF-8"):
        from_path(tmp_path / "wide.cu")
    with pytest.raises(ValueError, match=r"kernel.cu has an unpaired surrogate in line 2"):
        from_text("// one\n// \ud800")


def test_byte_order_mark(tmp_path: Path) -> None:
    assert from_text("\ufeff// one").text == "// one"
    (tmp_path / "k.cu").write_text("\ufeff// one", encoding="utf-8")
    assert from_path(tmp_path / "k.cu").text == "// one"


def test_missing_file_is_waited_for(tmp_path: Path) -> None:
    file = tmp_path / "k.cu"
    writer = threading.Timer(0.03, lambda: file.write_text("// saved"))
    writer.start()
    assert from_path(file).text == "// saved"
    writer.join()


# --- Watch -----------------------------------------------------------------------------------------------


@pytest.fixture
def watched(tmp_path: Path) -> Path:
    (tmp_path / "inc").mkdir()
    (tmp_path / "inc" / "h.h").write_text("// one")
    file = tmp_path / "k.cu"
    file.write_text('#include "inc/h.h"\n#include "later.h"\n')
    return file


def _later(watch: Watch) -> bool:
    """Ask again, as if the interval had passed."""
    watch.next_look = 0.0
    return watch.changed()


def test_watch_sees_file_and_header(watched: Path) -> None:
    for path, text in ((watched, "// new"), (watched.parent / "inc/h.h", "// two")):
        watched.write_text('#include "inc/h.h"\n')
        watch = Watch(from_path(watched))
        assert not _later(watch)
        path.write_text(text)
        assert _later(watch)
        assert watch.changed()  # and keeps saying so


def test_watch_sees_a_replaced_file_of_the_same_size_and_time(watched: Path) -> None:
    watch = Watch(from_path(watched))
    status = watched.stat()
    other = watched.with_suffix(".tmp")
    other.write_text(watched.read_text().replace("later", "LATER"))
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    os.replace(other, watched)
    assert _later(watch)


def test_watch_survives_deletion_and_sees_the_new_file(watched: Path) -> None:
    watch = Watch(from_path(watched))
    watched.unlink()
    assert not _later(watch)
    watched.write_text("// back")
    assert _later(watch)


def test_watch_sees_a_header_that_appears(watched: Path) -> None:
    watch = Watch(from_path(watched))
    assert not _later(watch)
    (watched.parent / "later.h").write_text("")
    assert _later(watch)


def test_watch_sees_an_edit_between_reading_and_watching(watched: Path) -> None:
    read = from_path(watched)
    watched.write_text("// edited at once")
    assert Watch(read).changed()


def test_watch_looks_at_the_disk_at_most_every_100_ms(watched: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(from_path(watched))
    looks: list[str] = []
    monkeypatch.setattr(source, "stamp", lambda path: looks.append(path))
    start = watch.next_look
    for tick in range(100):
        watch.changed(_now=lambda tick=tick: start - 0.1 + tick * 0.001)
    assert not looks
    watch.changed(_now=lambda: start + 0.001)
    watch.changed(_now=lambda: start + 0.002)
    assert looks and len(looks) == len(set(looks))


# --- Scan ------------------------------------------------------------------------------------------------


def test_blank_keeps_positions() -> None:
    text = 'int a; // "x\n/* __global__\n */ char c = \'"\'; extern "C" const char* s = R"x(\n)" )x" "\\"";\n'
    text += "#define A \\\n  __global__\n#if B\n"
    blanked = blank(text)
    assert len(blanked) == len(text)
    assert [i for i, c in enumerate(blanked) if c == "\n"] == [i for i, c in enumerate(text) if c == "\n"]
    assert "__global__" not in blanked and 'extern "C" const char* s =' in blanked and "#if" in blanked


@pytest.mark.parametrize(
    ("params", "names"),
    [
        ("", ()),
        ("void", ()),
        ("int n, float a, const float* x, float *y", ("n", "a", "x", "y")),
        ("const float* __restrict__ x, float* __restrict__", ("x", None)),
        ("unsigned int, unsigned n, long long", (None, "n", None)),
        ("const __grid_constant__ Params p, Params, const Params", ("p", None, None)),
        ("ns::P, ns::P p, Foo<int, 3> f, Foo<int, 3>", (None, "p", "f", None)),
        ("int n = (1 < 2), int m = f(3, 4), T t = T{1, 2}", ("n", "m", "t")),
        ("float x[], int (&a)[4], float (*f)(int, int), int m[2][3]", ("x", "a", "f", "m")),
        ("typename Traits<T>::type x, typename Traits<T>::type", ("x", None)),
        ("int /* count */ n, // first\n float* x", ("n", "x")),
        ("[[maybe_unused]] int n, int m __attribute__((unused))", ("n", "m")),
        ("float4* const* table, int&, int && r", ("table", None, "r")),
    ],
)
def test_parameter_names(params: str, names: tuple[str | None, ...]) -> None:
    (kernel,) = declarations(f"__global__ void k({params}) {{}}")
    assert kernel.params == names


def test_declarations() -> None:
    found = declarations(r"""
        // __global__ void commented() {}
        const char* s = "__global__ void text() {}";
        #define MAKE(name) __global__ void name() {}
        extern "C" __global__ __launch_bounds__(256, 2) void a(int n);
        __global__ void __launch_bounds__(BLOCK * 2) b(int n) { if (n) { } }
        extern "C" { __global__ void c() {} namespace in { __global__ void d() {} } }
        namespace x::y { namespace { static __global__ void e() {} } inline namespace v1 {
            template <class T, int N = (3 > 2)> __global__ void f(T* x) {} } }
        template <> __global__ void f<float>(float* x) {}
        template __global__ void f<int>(int* x);
        __global__ BOUNDS(128) void g(int n) {}
        struct S { __device__ void method() {} };
        #if OLD
        __global__ void h(int a) {
        #else
        __global__ void h(int b) {
        #endif
        }
        namespace [[deprecated]] old { __global__ void i() {} }
        __global__ void last(int z) {}
    """)
    kinds = {(kernel.name, kernel.template, kernel.extern_c) for kernel in found}
    assert kinds == {
        ("a", False, True),
        ("b", False, False),
        ("c", False, True),
        ("in::d", False, True),
        ("x::y::e", False, False),
        ("x::y::v1::f", True, False),
        ("g", False, False),
        ("h", False, False),
        ("old::i", False, False),
        ("last", False, False),
    }
    assert [kernel.line for kernel in found if kernel.name == "last"] == [21]
    assert [kernel.definition for kernel in found if kernel.name in ("a", "b")] == [False, True]


@pytest.mark.parametrize(
    "use",
    [
        lambda code: rawkern.RawKernel(code, "f<\ud800>").signature,
        lambda code: rawkern.RawKernel(code, "f(\ud800)").signature,
        lambda code: rawkern.RawKernel(code, "f", ("-DX=\ud800",)).signature,
        lambda code: rawkern.RawKernel(path="/\ud800.cu").signature,
        lambda code: rawkern.RawModule(code, name_expressions=("f<\ud800>",)).get_function("f").signature,
        lambda code: rawkern.RawModule(code).get_global("f\ud800"),
        lambda code: rawkern.RawModule(code).constant("f\ud800"),
        lambda code: rawkern.elementwise("T x", "T y", "y = x + \ud800", "half")(torch.ones(1)),
    ],
)
def test_an_unpaired_surrogate_raises_an_error_in_words(use) -> None:
    with pytest.raises(ValueError, match=r"an unpaired surrogate") as caught:
        use('extern "C" __global__ void f(float* y) { *y = 1; }')
    assert type(caught.value) is ValueError


def test_names_of_files_that_are_not_text(tmp_path: Path) -> None:
    """The bytes of a path are what they are; Python has them as unpaired surrogates."""
    folder = tmp_path / os.fsdecode(b"\xff")
    folder.mkdir()
    (folder / "two.h").write_text("#define TWO 2")
    file = folder / os.fsdecode(b"k\xfe.cu")
    file.write_text('#include "two.h"\nextern "C" __global__ void f(float* y) { *y = TWO; }')
    y = torch.zeros(1)
    rawkern.RawKernel(path=file)[1, 1](y)
    assert y.item() == 2
