"""Compilations with precompiled headers give what those without do."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from rawkern.compile import pch
from rawkern.compile.libnvrtc import Nvrtc
from rawkern.compile.nvrtc import Result, run_nvrtc
from rawkern.compile.source import CPU_ARCH, Source, from_path, from_text
from rawkern.compile.toolchain import nvrtc

pytestmark = pytest.mark.skipif(nvrtc().version < pch._SINCE, reason="NVRTC has no precompiled headers")
KERNEL = 'extern "C" __global__ void k(float* x) {{ x[threadIdx.x] = {}; }}'


@pytest.fixture(autouse=True)
def how(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What each compilation did with a file, in a process that has none yet."""
    monkeypatch.setattr(pch, "_known", type(pch._known)())
    found: list[str] = []
    real = Nvrtc.compiled

    def compiled(self, options, *rest):
        found.append(next((o[1:].partition("-")[0] for o in options if o.startswith(("-use-pch", "-create-pch"))), "-"))
        return real(self, options, *rest)

    monkeypatch.setattr(Nvrtc, "compiled", compiled)
    return found


def compiled(source: Source, **options) -> Result:
    return run_nvrtc(source, CPU_ARCH, ("k",), **options)


def whole(monkeypatch: pytest.MonkeyPatch, source: Source) -> Result:
    """The result without precompiled headers."""
    with monkeypatch.context() as patch:
        patch.setattr(pch, "_SINCE", (999, 0))
        return compiled(source)


@pytest.mark.parametrize(
    "beginning, value",
    [
        ("#include <cuda_fp16.h>", "__half2float(__float2half(x[{}]))"),
        (
            "/* of\n ours */ // too\n#define N 3\n#include <cuda_fp16.h>\n",
            "N + {}",
        ),
        ('#include "pack.cuh"\n#include <cstdint>', "uint32_t({})"),
        (
            "#if __CUDA_ARCH__ >= 800\n#include <cuda_bf16.h>\n#endif\n#define \\\n TWO 2",
            "TWO * __bfloat162float(__float2bfloat16({}))",
        ),
    ],
)
def test_results_are_the_same(beginning: str, value: str, how: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    own = Path(__file__).parents[2] / "cuda_src"
    sources = [
        from_text(f"{beginning}\n{KERNEL.format(value.format(number))}", include_dirs=[own]) for number in range(4)
    ]
    found = [compiled(source) for source in sources]
    assert how == ["-", "create", "use", "use"]
    assert found == [whole(monkeypatch, source) for source in sources]
    assert len({result.ptx for result in found}) == 4


def test_what_is_compiled_is_told_apart(how: list[str]) -> None:
    """Options, macros before an include, and other headers."""
    sources = [
        from_text(f"{define}#include <cuda_fp16.h>\n#ifndef N\n#define N 0\n#endif\n{KERNEL.format('N')}", options)
        for define, options in (("", ()), ("#define N 1\n", ()), ("", ("-DN=2",)))
    ]
    rounds = [[compiled(source).ptx for source in sources] for _ in range(3)]
    assert rounds[0] == rounds[1] == rounds[2] and len(set(rounds[0])) == 3
    assert how == ["-"] * 3 + ["create"] * 3 + ["use"] * 3


def test_an_edited_header(tmp_path: Path, how: list[str]) -> None:
    header, file = tmp_path / "value.h", tmp_path / "k.cu"
    file.write_text(f'#include "value.h"\n{KERNEL.format("VALUE")}')
    found = []
    for value in ("1.0f", "2.0f", "1.0f"):
        header.write_text(f"#define VALUE {value}\n")
        found += [compiled(from_path(file)).ptx for _ in range(3)]
    assert len(set(found[:3])) == len(set(found[3:6])) == 1 and found[0] != found[3] and found[6:] == found[:3]
    assert how == ["-", "create", "use"] * 2 + ["use"] * 3


def test_a_header_edited_meanwhile_is_not_kept(tmp_path: Path, how: list[str]) -> None:
    header, file = tmp_path / "value.h", tmp_path / "k.cu"
    file.write_text(f'#include "value.h"\n{KERNEL.format("VALUE")}')
    header.write_text("#define VALUE 1.0f\n")
    read = from_path(file)
    first = compiled(read)
    header.write_text("#define VALUE 2.0f\n")
    other = compiled(read)
    header.write_text("#define VALUE 1.0f\n")
    assert first.ptx != other.ptx and compiled(from_path(file)) == first
    assert how == ["-", "create", "create"]


def test_errors_and_warnings_are_all_there(tmp_path: Path, how: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    right = "#include <cuda_fp16.h>\n" + KERNEL.format("1")
    wrong = from_text(right.replace("= 1", "= undefined_name"))
    compiled(from_text(right))
    assert compiled(wrong) == whole(monkeypatch, wrong)  # nothing is saved yet
    compiled(from_text(right))
    how.clear()
    assert compiled(wrong) == whole(monkeypatch, wrong)
    assert how[:2] == ["use", "-"]
    (tmp_path / "warns.h").write_text("inline __device__ int f() { int unused; return 1; }\n")
    warns = from_text('#include "warns.h"\n' + KERNEL.format("f()"), include_dirs=[tmp_path])
    how.clear()
    found = [compiled(warns) for _ in range(pch._LAST + 1)]
    assert "unused" in found[0].log and all(one == found[0] for one in found)
    assert how == ["-", *["create"] * (pch._LAST - pch._FIRST + 1), "-"]


def test_a_file_that_cannot_be_used(how: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    source = from_text("#include <cuda_fp16.h>\n" + KERNEL.format("1"))
    first, _ = compiled(source), compiled(source)
    (known,) = pch._known.values()
    known.close()
    known.file = os.open(os.devnull, os.O_RDONLY)
    assert compiled(source) == first and known.file is None
    assert how[2:] == ["use", "-"]
    how.clear()
    with monkeypatch.context() as patch:
        patch.setattr(pch.tempfile, "TemporaryDirectory", lambda **_: (_ for _ in ()).throw(OSError("read-only")))
        pch._known.clear()
        assert [compiled(source) for _ in range(3)] == [first] * 3
    assert how == ["-"] * 3


def test_the_oldest_files_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pch, "_MOST_BYTES", 20 << 20)
    for number in range(4):
        source = from_text(f"#define N {number}\n#include <cuda_fp16.h>\n" + KERNEL.format("N"))
        for _ in range(3):
            compiled(source)
    files = [known.file for known in pch._known.values()]
    assert 1 <= len(files) <= 2 and None not in files
    assert sum(os.fstat(file).st_size for file in files if file is not None) <= 20 << 20


def test_a_forked_child_and_threads(how: list[str]) -> None:
    sources = [from_text("#include <cuda_fp16.h>\n" + KERNEL.format(number)) for number in range(3)]
    expected = [compiled(source) for source in sources]
    child = os.fork()
    if not child:
        os._exit(0 if [compiled(source) for source in sources] == expected and how[-3:] == ["use"] * 3 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    found: dict[int, list[Result]] = {}

    def run(number: int) -> None:
        found[number] = [compiled(source) for source in sources * 3]

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys(range(4), expected * 3)
