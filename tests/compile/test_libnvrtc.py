"""The binding of NVRTC's library."""

from __future__ import annotations

import pytest

from rawkern.compile import libnvrtc, toolchain

KERNEL = "template <class T> __global__ void k(T* x) { *x = 1; }"


def test_a_program_has_code_symbols_and_a_log() -> None:
    nvrtc = toolchain.nvrtc()
    assert list(nvrtc.architectures) == sorted(set(nvrtc.architectures)) and 90 in nvrtc.architectures
    with nvrtc.program(
        f'#include "ä.h"\n{KERNEL}\n__device__ void f() {{ int never; }}', "k.cu", {"ä.h": "//"}
    ) as program:
        program.expect("k<float>")
        program.compile(("-arch=sm_90",))
        assert program.symbol("k<float>") == "_Z1kIfEvPT_" and ".target sm_90" in program.ptx
        assert program.cubin[:4] == b"\x7fELF" and "never" in program.log
        with pytest.raises(libnvrtc.NvrtcError, match="NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID"):
            program.symbol("k<int>")


def test_what_is_rejected_tells_why() -> None:
    with toolchain.nvrtc().program("__global__ void k() { y = 1; }", "k.cu", {}) as program:
        with pytest.raises(libnvrtc.NvrtcError, match="NVRTC_ERROR_COMPILATION"):
            program.compile(("-arch=compute_80",))
        assert 'identifier "y" is undefined' in program.log


def test_another_library_is_no_nvrtc() -> None:
    with pytest.raises(AttributeError, match="nvrtcVersion"):
        libnvrtc.Nvrtc("libc.so.6")
