"""`rawkern profile`: kernels of files and whole programs, what it writes, and its exit statuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rawkern.cli import main

SOURCE = """\
extern "C" __global__ void strided(int n, const float* x, float* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[STEP * i];
}
extern "C" __global__ void beyond(float* x) { x[threadIdx.x] = 1; }
"""
SCRIPT = """\
import sys
import torch
import rawkern
from beside import size
rawkern.square(torch.ones(size))
print("given", sys.argv[1:])
sys.exit(int(sys.argv[1]))
"""
LAUNCH = ("strided", "n=1000", "x=randn(4*n)", "y=zeros(n)", "--grid", "4", "--block", "256")


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "strided.cu"
    path.write_text(SOURCE)
    return str(path)


def test_a_kernel_is_counted_with_what_to_do(file, capsys, monkeypatch):
    assert main(["profile", file, "-D", "STEP=4", *LAUNCH, "--device", "h200"]) == 0
    out = capsys.readouterr().out
    assert "strided: grid 4, block 256" in out
    assert "3: if (i < n) y[i] = x[STEP * i];" in out
    assert "lanes are 16 bytes apart and use 4 of them" in out
    assert "occupancy on H200: 100%" in out


def test_files_are_written_and_compared(file, tmp_path, capsys):
    paths = {kind: str(tmp_path / f"new.{kind}") for kind in ("html", "json", "csv")}
    written = [word for kind, path in paths.items() for word in (f"--{kind}", path)]
    assert main(["profile", file, "-D", "STEP=1", *LAUNCH, *written]) == 0
    assert Path(paths["html"]).read_text().startswith("<!DOCTYPE html>")
    assert Path(paths["csv"]).read_text().startswith("launch,kernel,line,counter,value")
    (launch,) = json.loads(Path(paths["json"]).read_text())["launches"]
    assert launch["counters"]["l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"] == 125
    capsys.readouterr()
    assert main(["profile", file, "-D", "STEP=1", *LAUNCH, "--compare", paths["json"]]) == 0
    assert "no change" in capsys.readouterr().out
    assert main(["profile", file, "-D", "STEP=4", *LAUNCH, "--compare", paths["json"]]) == 1
    assert "line 3: memory_l2_theoretical_sectors_global 250 -> 625" in capsys.readouterr().out


def test_a_sample_of_blocks_is_counted(file, capsys):
    assert main(["profile", file, "-D", "STEP=1", *LAUNCH, "--sample", "2"]) == 0
    assert "2 of 4 blocks were counted" in capsys.readouterr().out


def test_json_on_stdout_is_json_alone(file, capsys):
    assert main(["profile", file, "-D", "STEP=2", *LAUNCH, "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["launches"][0]["kernel"] == "strided"


@pytest.mark.parametrize("status", [0, 3])
def test_a_program_runs_with_its_arguments(tmp_path, capsys, status):
    (tmp_path / "beside.py").write_text("size = 100\n")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    assert main(["profile", str(script), "--", str(status), "--epochs"]) == 0
    captured = capsys.readouterr()
    assert f"given ['{status}', '--epochs']" in captured.out
    assert "square<float, 1>: grid 1" in captured.out
    assert (f"ended with {status}" in captured.err) == bool(status)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("FILE",), "name the kernel of FILE to launch"),
        (("FILE", "strided", "--grid", "1", "--block", "1", "--device", "tpu"), "unknown device 'tpu'; pass one of"),
        (("nothing.py",), "the file nothing.py does not exist"),
        (("FILE", "beyond", "x=zeros(4)", "--grid", "1", "--block", "32"), "writes x[4]; x has 4 elements"),
        (("FILE", *LAUNCH, "-D", "STEP=1", "--html", "report.txt"), "it must end with one of .html, .json, .csv"),
        (("FILE", *LAUNCH, "-D", "STEP=1", "--compare", "FILE.none"), "No such file"),
        (("FILE", *LAUNCH, "--trace", "x.json"), "--trace x.json: the name of a trace ends with .trace.json"),
        (("FILE", *LAUNCH, "--trace", "x.trace.json", "--device", "cpu"), "no launch was timed"),
        (("FILE", *LAUNCH, "--sample", "0"), "sample is 0; count 1 block or more"),
    ],
)
def test_what_cannot_be_is_rejected(file, arguments, message, capsys):
    words = [word.replace("FILE", file) for word in arguments]
    if "STEP=1" not in words:
        words += ["-D", "STEP=1"]
    assert main(["profile", *words]) == 1
    assert message.replace("FILE", file) in capsys.readouterr().err
