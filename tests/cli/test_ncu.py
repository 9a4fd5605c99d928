"""Nsight Compute's output read, and put beside a profile; `ncu` itself is played by a script."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest
import torch

import rawkern
from rawkern.cli import main, ncu
from rawkern.cli.text import CommandError

SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"
# The form of `ncu --csv --page raw --print-units base`: progress, names, units, and a line for each launch.
RAW = """\
==PROF== Connected to process 4711 (/usr/bin/python3.12)
==PROF== Profiling "distribution_elementwise_grid..." - 0: 0%....50%....100% - 9 passes
==PROF== Profiling "strided" - 1: 0%....50%....100% - 9 passes
==PROF== Disconnected from process 4711
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC",\
"l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum","smsp__inst_executed.sum",\
"smsp__thread_inst_executed_per_inst_executed.ratio"
"","","","","","","","","","","","sector","inst",""
"0","4711","python3.12","127.0.0.1","void at::native::distribution<float, (int)4>(long, T1)","1","7","(256, 1, 1)",\
"(4, 1, 1)","0","9.0","0","4,096","32.00"
"1","4711","python3.12","127.0.0.1","strided(int, const float *, float *)","1","7","(256, 1, 1)","(4, 1, 1)","0",\
"9.0","500","1,024","31.25"
"""
KERNEL = """extern "C" __global__ void strided(int n, const float* x, float* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[STEP * i];
}
"""


def test_launches_and_counters_are_read():
    first, second = ncu.parsed(RAW)
    assert first["kernel"] == "at::native::distribution"
    assert second == {
        "kernel": "strided", "grid": [4, 1, 1], "block": [256, 1, 1],
        "counters": {
            SECTORS: 500, "smsp__inst_executed.sum": 1024, "smsp__thread_inst_executed_per_inst_executed.ratio": 31.25
        },
    }  # fmt: skip
    assert ncu.parsed("==ERROR== ERR_NVGPUCTRPERM\n") == []


def test_what_nsight_compute_has_printed_on_an_h200_is_read():
    """Recorded with Nsight Compute 2025.3, of a transpose and torch's kernels; most columns were left out."""
    recorded = (Path(__file__).parents[1] / "data" / "ncu_raw.csv").read_text()
    found = {launch["kernel"]: launch for launch in ncu.parsed(recorded)}
    assert list(found) == ["at::vectorized_elementwise_kernel", "transpose", "at::reduce_kernel"]
    assert found["at::reduce_kernel"]["grid"] == [1, 128, 1]
    assert found["at::reduce_kernel"]["counters"]["derived__smsp__inst_executed_op_branch_pct"] == 0.11
    assert "device__attribute_confidential_computing_mode" not in found["transpose"]["counters"]  # no number
    code = """extern "C" __global__ void transpose(const float* x, float* y, int n) {
        int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y * 32 + threadIdx.y;
        for (int k = 0; k < 32; k += 8) y[c * n + r + k] = x[(r + k) * n + c];
    }"""
    with rawkern.profile() as report:
        rawkern.RawKernel(code)[(16, 16), (32, 8)](torch.zeros(512, 512), torch.zeros(512, 512), 512)
    ours = report.as_dict()["launches"]
    counted = {k: v for k, v in found["transpose"]["counters"].items() if not k.startswith(("derived", "smsp__inst"))}
    assert len(counted) == 6
    assert {name: ours[0]["counters"][name] for name in counted} == counted
    rows = [line.split() for line in ncu.beside(ours, list(found.values())).splitlines()]
    assert ["transpose", "memory_l2_theoretical_sectors_global", "294,912", "294,912"] in rows


def test_both_are_compared():
    ours = [{"kernel": "strided", "grid": [4, 1, 1], "block": [256, 1, 1], "counters": {SECTORS: 625}}]
    text = ncu.beside(ours, ncu.parsed(RAW))
    assert text.splitlines()[1].split() == ["strided", SECTORS, "625", "500", "+25.0%"]
    with pytest.raises(CommandError, match="none has the same kernel, grid and block"):
        ncu.beside([ours[0] | {"grid": [5, 1, 1]}], ncu.parsed(RAW))


def played(folder: Path, monkeypatch: pytest.MonkeyPatch, out: str, err: str = "") -> Path:
    """An `ncu` on PATH that prints, and keeps the words it was given."""
    script = folder / "ncu"
    kept = folder / "words"
    script.write_text(
        f"#!{sys.executable}\nimport sys\nopen({str(kept)!r}, 'w').write('\\n'.join(sys.argv[1:]))\n"
        f"sys.stdout.write({out!r})\nsys.stderr.write({err!r})\n"
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    return kept


def command(tmp_path: Path) -> list[str]:
    file = tmp_path / "strided.cu"
    file.write_text(KERNEL)
    words = ["profile", str(file), "strided", "n=1000", "x=randn(4*n)", "y=zeros(n)", "--grid", "4", "--block", "256"]
    return [*words, "-D", "STEP=4", "--device", "cpu", "--ncu"]


def test_the_command_runs_the_same_launch_under_ncu(tmp_path, monkeypatch, capsys):
    kept = played(tmp_path, monkeypatch, RAW)
    assert main(command(tmp_path)) == 0
    out = capsys.readouterr().out
    assert any(line.split()[:4] == ["strided", SECTORS, "500", "500"] for line in out.splitlines())
    words = kept.read_text().split("\n")
    assert words[:5] == ["--csv", "--page", "raw", "--print-units", "base"]
    assert SECTORS in words[words.index("--metrics") + 1].split(",")
    assert "memory_l1_wavefronts_shared" not in words[words.index("--metrics") + 1]
    assert words[words.index("--section") + 1] == "SourceCounters"
    assert words[words.index("--kernel-name") + 1] == "regex:strided"
    run = words[words.index("-m") :]
    assert run[:4] == ["-m", "rawkern", "run", str(tmp_path / "strided.cu")]
    assert {"-DSTEP=4", "--grid", "x=randn(4*n)"} <= set(run)
    assert "--ncu" not in run


def test_what_ncu_rejects_is_said(tmp_path, monkeypatch, capsys):
    played(tmp_path, monkeypatch, "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n")
    assert main(command(tmp_path)) == 1
    assert "ncu counted nothing: the driver lets only administrators read counters" in capsys.readouterr().err
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert main(command(tmp_path)) == 1
    assert "--ncu needs Nsight Compute's command ncu on PATH" in capsys.readouterr().err
