"""What printf and assert read and print: strings wherever they lie, and nothing beyond what a thread may read."""

from __future__ import annotations

import ctypes
import struct
import time

import pytest
import torch

import rawkern
from rawkern.engines.cpu.runtime.printf import MOST, formatted

KERNELS = r"""
#include <cassert>
extern "C" __device__ int vprintf(const char*, void*);
__device__ char variable[8] = "global";
__device__ char open[8] = {'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'};
__constant__ char fixed[8] = "const";
extern "C" __global__ void text(char* x, int where) {
    __shared__ char s[8];
    extern __shared__ char d[];
    char own[8] = {'l', (char)('a' + where), 0};
    char* h = where == 5 ? (char*)malloc(4) : nullptr;
    s[0] = d[0] = 's'; s[1] = d[1] = 0;
    const char* p = where == 0 ? s : where == 1 ? d : where == 2 ? own : where == 3 ? variable : where == 4 ? fixed : h;
    if (where == 5) { h[0] = 'h'; h[1] = 0; }
    if (where == 6) p = x;
    if (where == 7) p = nullptr;
    printf("<%s>\n", p);
    printf(where == 7 ? "-" : p);
    free(h);
}
extern "C" __global__ void open_ended(char* x, int where) {
    __shared__ char s[8];
    char own[8];
    char* h = (char*)malloc(4);
    for (int i = 0; i < 8; ++i) s[i] = 'a', own[i] = 'b';
    for (int i = 0; i < 4; ++i) h[i] = 'c';
    const char* p = where == 0 ? s : where == 1 ? own : where == 2 ? open : where == 3 ? h : x;
    printf("%.3s|", p);
    printf("%s", p);
}
extern "C" __global__ void wild(unsigned long long a, int which) {
    if (which == 0) vprintf("%d %s\n", (void*)a);
    if (which == 1) vprintf((const char*)a, nullptr);
    if (which == 2) __assertfail((const char*)a, "f", 3, "g", 1);
    if (which == 3) printf("%s", (const char*)a);
    if (which == 4) vprintf("%d", nullptr);
    if (which == 5) { int v[1] = {7}; vprintf("%d %d %d %d %d %d %d %d %d", v); }
    if (which == 6) { int v[4] = {1, 2, 3, 4}; vprintf("%d %d %d", v); }
}
extern "C" __global__ void wide(int which, int n) {
    for (int i = 0; i < n; ++i) {
        if (which == 0) printf("%2147483647d", 1);
        if (which == 1) printf("%*d", 0x7fffffff, 1);
        if (which == 2) printf("%*d", (int)0x80000000, 1);
        if (which == 3) printf("%.2147483647f", 1.0);
        if (which == 4) printf("%.*e", 0x7ffffff0, 1.0);
        if (which == 5) printf("%99999999999999999999s", "a");
        if (which == 6) printf("%1000000d%1000000d", 1, 2);
        if (which == 7) printf("%5d|%-4d|%.3f|%.*s|%.*d", 1, 2, 1.5, 2, "abc", -2147483647, 3);
    }
}
"""
LEVELS = ["bounds", "full"]


@pytest.fixture(scope="module")
def module() -> rawkern.RawModule:
    return rawkern.RawModule(KERNELS)


@pytest.mark.parametrize("level", LEVELS)
def test_strings_in_all_memory(module, capsys, level: str) -> None:
    x = torch.tensor([*b"ten", 0], dtype=torch.int8)
    words = ["s", "s", "lc", "global", "const", "h", "ten"]
    with rawkern.check(level=level):
        for where, word in enumerate(words):
            module.get_function("text")[1, 1, 16](x, where)
            assert capsys.readouterr().out == f"<{word}>\n{word}"
        module.get_function("text")[1, 1, 16](x, 7)
        assert capsys.readouterr().out == "<(null)>\n-"


@pytest.mark.parametrize("level", LEVELS)
def test_strings_without_an_end(module, capsys, level: str) -> None:
    x = torch.full((8,), ord("x"), dtype=torch.int8)
    with rawkern.check(level=level):
        for where, letters in enumerate(("aaa", "bbb", "abc", "ccc", "xxx")):
            if where == 1:
                continue  # a thread's local variables are one piece of memory
            with pytest.raises(
                rawkern.OutOfBoundsError,
                match=r"open_ended: .*thread \(0,0,0\).*without a terminating zero in its [48] bytes",
            ):
                module.get_function("open_ended")[1, 1](x, where)
            assert capsys.readouterr().out == f"{letters}|"


@pytest.mark.parametrize("level", LEVELS)
def test_wild_addresses(module, capsys, level: str) -> None:
    for which in range(5):
        for address in (16, 4096, 1 << 63, (1 << 64) - 8):
            with rawkern.check(level=level), pytest.raises(rawkern.OutOfBoundsError, match=r"wild: .*thread \(0,0,0\)"):
                module.get_function("wild")[1, 1](address, which)
    module.get_function("wild")[1, 1](0, 6)
    assert capsys.readouterr().out == "1 2 3"
    with pytest.raises(rawkern.OutOfBoundsError, match="reads an argument at address"):
        module.get_function("wild")[1, 1](0, 5)


def test_huge_widths(module, capsys) -> None:
    for which in range(7):
        with pytest.raises(rawkern.LaunchError, match=f"wide: .*one call prints more than {MOST} characters"):
            module.get_function("wide")[1, 32](which, 1)
    module.get_function("wide")[1, 1](7, 1)
    assert capsys.readouterr().out == "    1|2   |1.500|ab|3"


def test_a_limit_of_time_ends_what_prints_for_ever(module, capsys) -> None:
    begin = time.perf_counter()
    with rawkern.time_limit(0.3), pytest.raises(rawkern.LaunchTimeoutError):
        module.get_function("wide")[1, 32](7, 1 << 30)
    assert time.perf_counter() - begin < 10
    capsys.readouterr()


def test_formats_of_any_kind_raise_what_is_rawkern_s() -> None:
    """Any format expands, or raises an error of rawkern's."""
    memory = ctypes.create_string_buffer(struct.pack("=8q", *range(8)), 64)
    at = ctypes.addressof(memory)
    room = lambda address: max(at + 64 - address, 0) if address >= at else 0  # noqa: E731
    for flags in ("", "-+0 #"):
        for width in ("", "*", "0000000000000012", "٣", "9" * 5000):
            for precision in ("", ".", ".*", ".-4", ".000000000000002", "." + "9" * 5000):
                for length in ("", "hh", "h", "ll", "L"):
                    for conversion in "diouxXeEfFgGaAcpn%yq":
                        try:
                            formatted(f"%{flags}{width}{precision}{length}{conversion}", at, room)
                        except rawkern.LaunchError as error:
                            assert "9999" in width + precision, error
    assert formatted("%hhd %hu %lld %5.1f", at, lambda _: -1).startswith("0 ")
