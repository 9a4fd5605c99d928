"""The line table of machine code names the file of a source that came as a string; nothing else of it changes."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from rawkern.base import cache
from rawkern.compile import elf, linetable
from rawkern.compile.programs import compile_program
from rawkern.compile.source import from_path, from_text

CODE = """#include "sub/kernel.cu"
extern "C" __global__ void first(float* x) {
  x[threadIdx.x] = twice(x[threadIdx.x]);
}
extern "C" __global__ void second(float* x) {
  x[threadIdx.x] += sinf(x[1]);
}
"""
HEADER = "__device__ __noinline__ float twice(float x) {\n  return x * x + 2;\n}\n"
SET_ADDRESS = b"\0\x09\x02"  # of which a relocated address follows


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "kernel.cu").write_text(HEADER)
    monkeypatch.setenv("RAWKERN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def parts(cubin: bytes) -> dict[str, bytes]:
    return {s.name: cubin[s.offset : s.offset + s.size] for s in elf.sections(cubin) if not s.name.startswith(".nv.sh")}


def headers(cubin: bytes) -> list[tuple[int, ...]]:
    start, count = *struct.unpack_from("<Q", cubin, 40), *struct.unpack_from("<H", cubin, 60)
    return [struct.unpack_from("<IIQQQQIIQQ", cubin, start + 64 * k) for k in range(count)]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_a_string_is_a_file_with_its_name_in_the_line_table(folder: Path, arch: str) -> None:
    program = compile_program(from_text(CODE), arch)
    made = linetable.findable(program)
    (entry,) = [each for each in cache.entries() if each.key.startswith("source-")]
    assert entry.path.read_text() == CODE
    assert entry.path.suffix == ".cu"
    before, after = parts(program.code), parts(made)
    table = after.pop(".debug_line")
    assert os.fsencode(entry.path) + b"\0\0" in table
    assert table.count(b"kernel.cu\0") == 1  # that of the header, which is a file as it is
    assert os.fsencode(folder / "sub") + b"\0" in table
    assert struct.unpack_from("<I", table)[0] + 4 == len(table)
    old = before.pop(".debug_line")
    assert table[10 + struct.unpack_from("<I", table, 6)[0] :] == old[10 + struct.unpack_from("<I", old, 6)[0] :]
    moved = {name for name in before if before[name] != after[name]}
    assert moved == {".rel.debug_line" if arch == "sm_80" else ".rela.debug_line"}
    found = after[moved.pop()]
    for at in range(0, len(found), 16 if arch == "sm_80" else 24):
        (place,) = struct.unpack_from("<Q", found, at)
        assert table[place - 3 : place] == SET_ADDRESS


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_sections_keep_their_alignment_and_segments_their_content(folder: Path, arch: str) -> None:
    old = compile_program(from_text(CODE), arch).code
    new = linetable.renamed(old, b"/somewhere/" + b"x" * 300)
    assert len(new) > len(old) + 256
    for before, after in zip(headers(old), headers(new), strict=True):
        assert (after[4] - before[4]) % (before[8] or 1) == 0
    start, size, count = *struct.unpack_from("<Q", old, 32), *struct.unpack_from("<2H", old, 54)
    (there,) = struct.unpack_from("<Q", new, 32)
    assert there + size * count == len(new)  # the table still ends the file
    for k in range(count):
        kind, _, at, _, _, length = struct.unpack_from("<IIQQQQ", old, start + size * k)
        other = struct.unpack_from("<IIQQQQ", new, there + size * k)
        assert (other[0], other[5]) == (kind, length)
        if at != start:
            assert new[other[2] : other[2] + length] == old[at : at + length]


def test_what_is_a_file_stays_as_it_is(folder: Path) -> None:
    (folder / "own.cu").write_text(CODE)
    program = compile_program(from_path("own.cu"), "sm_90")
    assert linetable.findable(program) is program.code


def test_nothing_is_written_where_that_is_off_or_the_cache_takes_no_files(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = compile_program(from_text(CODE), "sm_90")
    monkeypatch.setenv("RAWKERN_SOURCES", "off")
    assert linetable.findable(program) is program.code
    monkeypatch.delenv("RAWKERN_SOURCES")
    (folder / "file").write_text("")
    monkeypatch.setenv("RAWKERN_CACHE_DIR", str(folder / "file" / "none"))
    assert linetable.findable(program) is program.code
    assert not [each for each in folder.rglob("source-*")]


@pytest.mark.gpu
def test_the_driver_loads_code_with_another_line_table(folder: Path) -> None:
    import torch
    from cupy.cuda import driver

    torch.cuda.init()
    torch.zeros(1, device="cuda")  # in whose context it is loaded
    major, minor = torch.cuda.get_device_capability()
    program = compile_program(from_text(CODE), f"sm_{major}{minor}")
    made = linetable.findable(program)
    assert made != program.code
    module = driver.moduleLoadData(made)
    assert driver.moduleGetFunction(module, "first") and driver.moduleGetFunction(module, "second")
    driver.moduleUnload(module)


def test_tables_of_other_versions_are_left_alone(folder: Path) -> None:
    code = bytearray(compile_program(from_text(CODE), "sm_90").code)
    table = next(section for section in elf.sections(bytes(code)) if section.name == ".debug_line")
    struct.pack_into("<H", code, table.offset + 4, 5)
    assert linetable.renamed(bytes(code), b"/x.cu") == code
