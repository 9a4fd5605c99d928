"""`rawkern build --package`: what it rejects, and what it does to the files of an earlier build."""

from __future__ import annotations

from pathlib import Path

import pytest

from rawkern.cli import main

TEMPLATE = "template <class T> __global__ void half_of(T* x) { x[threadIdx.x] /= 2; }\n"
PLAIN = 'extern "C" __global__ void clear(float* x) { x[threadIdx.x] = 0; }\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "other").mkdir()
    for name, text in (("halves.cu", TEMPLATE), ("clear.cu", PLAIN), ("other/clear.cu", PLAIN)):
        (tmp_path / name).write_text(text)
    (tmp_path / "broken.cu").write_text("__global__ void broken(float* x) { y = x; }\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("clear.cu halves.cu", "build shows one file; remove halves.cu (only --package takes several)"),
        ("clear.cu --package made", "--package needs the target architectures, such as --arch sm_80"),
        ("clear.cu --package made --arch sm_80 --ptx --block 64", "remove --ptx, --block"),
        (
            "clear.cu other/clear.cu --package made --arch sm_80",
            "two sources are named clear, so their output files would collide",
        ),
        ("clear.cu --package made --arch sm_80 --kernel half_of<int>", "--kernel half_of<int>: no file has a template"),
        ("clear.cu --package made --arch sm_80 --kernel clear", "--kernel clear: no file has a template"),
        ("clear.cu --package made --arch sm_10", "--arch sm_10: this compiler knows sm_"),
        ("clear.cu --package made --arch sm_80 --constant N", "'N' is not a constant expression"),
        ("clear.cu --constant N", "--constant goes with --package"),
        ("halves.cu --package made --arch sm_80", "no kernel that is not a template"),
        ("clear.cu broken.cu --package made --arch sm_80", 'identifier "y" is undefined'),
    ],
)
def test_rejected(arguments: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With nothing written."""
    assert main(["build", *arguments.split()]) == 1
    assert message in capsys.readouterr().err
    assert not (folder / "made").exists()


def test_several_sources_and_a_later_build(folder: Path) -> None:
    both = ["build", "halves.cu", "clear.cu", "--package", "made", "--kernel", "half_of<float>"]
    assert main([*both, "--arch", "sm_80", "--arch", "sm_90"]) == 0
    (folder / "made" / "notes.txt").write_text("kept")
    codes = {"sm_80.cubin", "sm_90.cubin", "compute_80.ptx", "compute_90.ptx", "json"}
    there = {path.name for path in (folder / "made").iterdir()}
    assert there == {f"{name}.{code}" for name in ("halves", "clear") for code in codes} | {"notes.txt"}
    assert main(["build", "clear.cu", "--package", "made", "--arch", "sm_80"]) == 0
    gone = there - {path.name for path in (folder / "made").iterdir()}
    assert gone == {"clear.sm_90.cubin", "clear.compute_90.ptx"}
