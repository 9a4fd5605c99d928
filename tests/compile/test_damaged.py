"""Files of compiled code that are damaged, by seeds: each is loaded, or raises an error that names the file."""

from __future__ import annotations

import json
import random
import re
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rawkern
from rawkern.base.llvm import host
from rawkern.cli import main
from rawkern.compile import cubin
from rawkern.compile.source import FATBIN
from rawkern.engines.cpu import load_module
from rawkern.errors import CompileError, RawkernError

CODE = r"""
struct Pair { float a; double b; };
__device__ int counter;
__constant__ float table[4] = {1, 2, 3, 4};
__device__ __noinline__ float helper(float x, int n) {
    for (int i = 0; i < n; i++) x = x * 1.5f + i;
    return x;
}
__global__ void typed(const float* x, float* y, int n, Pair p) {
    __shared__ float s[64];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    s[threadIdx.x % 64] = i < n ? x[i] : 0;
    __syncthreads();
    if (i < n) {
        y[i] = helper(s[63 - threadIdx.x % 64], n) * table[i & 3] + p.b;
        atomicAdd(&counter, 1);
    }
}
extern "C" __global__ void plain(unsigned long long a, short b, double* c, char d) {
    c[threadIdx.x] = (double)(a + b) * 2 + d;
    if (threadIdx.x == 99) printf("%d %f\n", b, c[0]);
}
"""
TOKEN = re.compile(r"[%$.\w]+|\S")
TOKENS = ("", "{", "}", ";", ",", "[", "]", "(", ")", ":", "-1", "99999999999", "4294967296", "0x7fffffffffffffff", "%x",
          ".b8", "0", "1e400", "_", "|", '"', "/*", "//", "é")  # fmt: skip


@pytest.fixture(scope="module")
def kernel() -> rawkern.RawKernel:
    return rawkern.RawModule(CODE).get_function("plain")


def damaged_bytes(r: random.Random, data: bytes) -> bytes:
    made = bytearray(data)
    for _ in range(r.choice((1, 1, 2, 8))):
        near = r.choice((len(made), min(len(made), 64)))  # all of it, or its header; what is last are tables
        at = r.choice((r.randrange(near), max(len(made) - 1 - r.randrange(3000), 0)))
        match r.randrange(4):
            case 0:
                made[at] ^= 1 << r.randrange(8)
            case 1:
                made[at : at + 4] = r.choice((b"\xff" * 4, b"\0" * 4, b"\0\0\0\x80"))
            case 2:
                del made[max(at, 4) : at + r.choice((1, 4, 64, len(made)))]
            case 3:
                made[at:at] = r.randbytes(r.choice((1, 8)))
    return bytes(made)


def damaged_text(r: random.Random, text: str) -> str:
    for _ in range(r.choice((1, 1, 2, 5))):
        lines, found = text.split("\n"), [*TOKEN.finditer(text)]
        at, other = r.randrange(len(lines)), r.randrange(len(lines))
        match r.randrange(8):
            case 0:
                del lines[at]
            case 1:
                lines.insert(at, lines[other])
            case 2:
                lines[at], lines[other] = lines[other], lines[at]
            case 3:
                del lines[at:]
            case _:
                token = r.choice(found or [re.match("", text)])
                new = r.choice((*TOKENS, *(found and [r.choice(found)[0]])))
                lines = (text[: token.start()] + new + text[token.end() :]).split("\n")
        text = "\n".join(lines)
    return text


def damaged_json(r: random.Random, text: str) -> str:
    if r.random() < 0.3:
        return damaged_text(r, text)
    found = json.loads(text)
    at: Any = found
    while True:
        key = r.choice([*at] if isinstance(at, dict) else range(len(at)))
        if not at[key] or not isinstance(at[key], (dict, list)) or r.random() < 0.15:
            at[key] = r.choice((None, -1, 1.5, "x", "", [], {}, ["x"], {"x": 1}, [[1]], True, 10**30))
            return json.dumps(found)
        at = at[key]


def each_is_read_or_rejected(
    file: Path, count: int, damage: Callable[[random.Random], bytes], read: Callable[[], Any]
) -> None:
    rejected = 0
    for seed in range(count):
        file.write_bytes(damage(random.Random(seed)))
        begin = time.monotonic()
        try:
            read()
        except (RawkernError, ValueError) as error:
            assert isinstance(error, CompileError) or file.name in str(error), (seed, error)
            assert isinstance(error, RawkernError) or type(error) is ValueError, (seed, error)
            rejected += 1
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
        assert time.monotonic() - begin < 20, seed
    assert count // 10 < rejected < count


def signatures(file: Path) -> None:
    module = rawkern.RawModule(path=file)
    for name in module.kernels:
        assert module.get_function(name).signature


def test_machine_code(kernel: rawkern.RawKernel, tmp_path: Path) -> None:
    code, file = kernel.cubin("sm_80"), tmp_path / "k.cubin"
    each_is_read_or_rejected(file, 600, lambda r: damaged_bytes(r, code), lambda: signatures(file))


def test_what_machine_code_says_of_its_kernels(kernel: rawkern.RawKernel) -> None:
    code = kernel.cubin("sm_80")
    for seed in range(400):
        made = damaged_bytes(random.Random(seed), code)
        try:
            cubin.resources(made, "sm_80")
        except RawkernError as error:
            assert "byte" in str(error) or "cubin" in str(error)


def test_fatbins(kernel: rawkern.RawKernel, tmp_path: Path) -> None:
    code, file = kernel.cubin("sm_80"), tmp_path / "k.fatbin"
    part = struct.pack("<HHIQ", 2, 0x101, 64, len(code)).ljust(64, b"\0") + code
    whole = FATBIN + struct.pack("<HHQ", 1, 16, len(part)) + part
    each_is_read_or_rejected(file, 200, lambda r: damaged_bytes(r, whole), lambda: signatures(file))


def test_a_part_of_a_fatbin_that_takes_no_bytes(tmp_path: Path) -> None:
    file = tmp_path / "k.fatbin"
    file.write_bytes(FATBIN + struct.pack("<HHQ", 1, 16, 0) + bytes(64))
    with pytest.raises(RawkernError, match=r"k\.fatbin: this machine code is damaged at byte 16"):
        signatures(file)


def test_ptx(kernel: rawkern.RawKernel, tmp_path: Path) -> None:
    """As far as machine code is made of it."""
    text, file = kernel.ptx(), tmp_path / "k.ptx"

    def read() -> None:
        module = rawkern.RawModule(path=file)
        program = module.unit.current().program()
        loaded = load_module(program)
        for name in module.kernels:
            assert module.get_function(name).signature
        for entry in program.entries:
            with loaded.named():
                loaded.translation.lower(entry.symbol, loaded.layout, "line", host(), loaded.instrument)

    each_is_read_or_rejected(file, 250, lambda r: damaged_text(r, text).encode(), read)


def test_manifests(tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text(CODE)
    built = ["build", str(tmp_path / "k.cu"), "--package", str(tmp_path / "made"), "--arch", "sm_80"]
    assert main(built) == 0
    file = tmp_path / "made" / "k.json"
    text = file.read_text()

    def read() -> None:
        module = rawkern.RawModule(path=file)
        for name in module.kernels:
            assert module.get_function(name).signature
        assert module.get_function("plain").ptx()
        with pytest.raises(ValueError, match="does not have the constant"):
            module.constant("N")

    each_is_read_or_rejected(file, 500, lambda r: damaged_json(r, text).encode(), read)
