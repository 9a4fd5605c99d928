"""Sources with inline assembly are compiled in another process, which NVRTC may crash, and as they would be here."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import rawkern
from rawkern.compile import helper, nvrtc, source
from rawkern.compile.files import own_sources

PLAIN = 'extern "C" __global__ void k(float* x) {{ asm volatile("add.f32 %0, %0, %0;" : "+f"(x[{}])); }}'
CRASHES = """extern "C" __global__ void k(float* x) {
    __shared__ float s[4];
    unsigned long long g = __cvta_generic_to_global(s);
    asm volatile("st.global.u32 [%0], 1;" :: "l"(g));
}"""


@pytest.fixture(autouse=True)
def cold(monkeypatch) -> None:
    """No helper is there before a test, and none stays."""
    found: list = []
    monkeypatch.setattr(helper, "_idle", found)
    yield
    while found:
        found.pop().close()


def _run(text: str, arch: str = "compute_80", include_dirs: Sequence[Path] = (), **how) -> nvrtc.Result:
    return nvrtc.run_nvrtc(source.from_text(text, include_dirs=include_dirs), arch, **how)


def test_a_crash_is_an_error() -> None:
    for _ in range(2):
        with pytest.raises(rawkern.CompileError, match=r"NVRTC crashed on this source; .* remove one asm statement"):
            rawkern.RawKernel(CRASHES).ptx()
        assert _run(PLAIN.format(3)).ok  # with the next helper, which then meets what crashes


@pytest.mark.parametrize("arch", ["compute_80", "sm_90"])
def test_it_gives_what_nvrtc_gives_here(monkeypatch, arch: str) -> None:
    texts = [PLAIN.format(1), PLAIN.format("wrong"), "#warning asm\n" + PLAIN.format(2)]
    there = [_run(text, arch, expressions=["k"]) for text in texts]
    assert len(helper._idle) == 1
    monkeypatch.setattr(sys, "executable", "")  # nothing that could be started
    assert there == [_run(text, arch, expressions=["k"]) for text in texts]
    assert [result.ok for result in there] == [True, False, True]
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    monkeypatch.setattr(helper, "_idle", [])
    assert _run(texts[0], arch, expressions=["k"]) == there[0]


def test_assembly_is_seen_wherever_it_stands(monkeypatch, tmp_path) -> None:
    asked: list = []
    monkeypatch.setattr(helper, "compiled", lambda *args: asked.append(args))
    (tmp_path / "own.h").write_text('__device__ void f() { __asm__ volatile(""); }')
    for text in ('#include "own.h"\n', "__asm(1)", "asm volatile", "// __masm asms\n"):
        here = source.from_text(text + '\nextern "C" __global__ void k() {}', include_dirs=[tmp_path])
        nvrtc.run_nvrtc(here, "compute_80")
    assert len(asked) >= 3 and "__masm" not in asked[-1][2]


def test_rawkerns_own_assembly_is_compiled_here(monkeypatch) -> None:
    asked: list = []
    monkeypatch.setattr(helper, "compiled", lambda *args: asked.append(args))
    own = own_sources()
    here = source.from_path(own / "nbody.cu", include_dirs=[own])
    assert "asm" in here.text and nvrtc.run_nvrtc(here, "compute_80").ok and not asked
    kernel = 'extern "C" __global__ void k(float* x) { %s }'
    assert _run('#include "fast.cuh"\n' + kernel % "", include_dirs=[own]).ok and not asked
    assert _run('#include "fast.cuh"\n' + kernel % 'asm("");', include_dirs=[own]).ok and len(asked) == 1


def test_where_it_is_compiled(tmp_path, monkeypatch) -> None:
    assert _run(PLAIN.format(0)).ok
    (tmp_path / "here.h").write_text("#define INDEX 7\n")
    monkeypatch.chdir(tmp_path)
    assert _run('#include "here.h"\n' + PLAIN.format("INDEX")).ok
    assert len(helper._idle) == 1


def test_helpers_that_have_ended() -> None:
    assert _run(PLAIN.format(0)).ok
    (one,) = helper._idle
    with pytest.raises(ChildProcessError):  # a wait for all children does not see it
        os.waitpid(one._pid, os.WNOHANG)
    os.kill(one._pid, signal.SIGKILL)
    assert _run(PLAIN.format(1)).ok and helper._idle[0] is not one
    helper._idle[0].ask = lambda request: None  # it was about to end, as nothing had come for long
    assert _run(PLAIN.format(2)).ok


def test_threads() -> None:
    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(lambda k: _run(PLAIN.format(k)), range(12)))
    assert all(f"{4 * k}" in result.ptx for k, result in enumerate(results))
    assert 1 <= len(helper._idle) <= helper.MOST


def test_forked_children_have_their_own() -> None:
    assert _run(PLAIN.format(0)).ok
    pid = os.fork()
    if pid == 0:
        ok = False
        try:
            ok = _run(PLAIN.format(1)).ok and all(one.owner == os.getpid() for one in helper._idle)
        finally:
            os._exit(0 if ok else 1)
    assert _run(PLAIN.format(2)).ok
    assert os.waitpid(pid, 0)[1] == 0


def test_an_interrupt_ends_it() -> None:
    slow = "template <int N> __device__ float f(float x) { return f<N - 1>(x) * f<N - 1>(x + N); }\n"
    slow += "template <> __device__ float f<0>(float x) { return x * x; }\n"
    text = slow + 'extern "C" __global__ void k(float* x) { asm volatile(""); x[0] = f<14>(x[1]); }'
    assert _run(PLAIN.format(0)).ok
    (one,) = helper._idle
    timer = threading.Timer(0.2, signal.raise_signal, [signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        _run(text)
    timer.join()
    assert not helper._idle and one._from.closed
    for _ in range(1000):
        if not _runs(one._pid):
            break
        threading.Event().wait(0.01)
    assert not _runs(one._pid)
    assert _run(PLAIN.format(1)).ok


def _runs(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
