"""`rawkern bench` measures what it says, and nothing where results are wrong."""

from __future__ import annotations

import json
import re

import pytest
import torch

import rawkern
from rawkern.cli import bench, main, timing


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    square, softmax = ({device: shape for device in ("cpu", "cuda")} for shape in ((1 << 20,), (64, 100)))
    monkeypatch.setattr(bench, "_SHAPES", {"square": square, "softmax": softmax})
    for name, value in (("_ROUNDS", 1), ("_REPEATS", 3), ("_EDITS", 2)):
        monkeypatch.setattr(bench, name, value)


def test_results(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--device", device, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["rawkern"], shown["torch"]) == (rawkern.__version__, torch.__version__)
    launch, square, softmax, edit = shown["results"]
    assert {result["device"] for result in shown["results"]} == {device}
    assert 0 < launch["rawkern"] < 1e-2 and 0 < launch["torch"] < 1e-2
    assert 0 < square["rawkern"] < 1 and square["nbytes"] == 2 * 4 << 20
    assert 0 < softmax["torch"] < 1 and softmax["nbytes"] == 2 * 4 * 6400
    assert 0.003 < edit["rawkern"] < 30 and edit["torch"] is None


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--device", "cpu"]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert err == "" and lines[0].startswith(f"rawkern {rawkern.__version__}, torch {torch.__version__}")
    assert lines[2].split() == ["device", "rawkern", "torch", "torch/rawkern"]
    assert re.fullmatch(r"cpu +square of 1 Mi floats +[\d.]+ [mu]s +[\d.]+ [mu]s +[\d.]+ +\d+ GB/s", lines[4])
    assert len(lines) == 7 and "edit to result" in lines[6]


def test_wrong_results_are_not_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(rawkern, "square", lambda x: x * x.abs(), raising=False)
    assert main(["bench", "--device", "cpu"]) == 1
    out, err = capsys.readouterr()
    assert out == "" and "gives results that differ from torch's; nothing was measured" in err


@pytest.mark.parametrize("name", ["tpu", "cuda:1"])
def test_other_devices_are_rejected(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--device", name]) == 1
    assert f"--device {name}: bench measures cpu and cuda" in capsys.readouterr().err


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["bench", "--device", "cuda"]) == 1
    assert "torch sees no GPU" in capsys.readouterr().err


def test_launches_are_restored_and_counted() -> None:
    calls: list[str] = []
    seconds = timing.launch_seconds(
        lambda: calls.append("launch"), torch.device("cpu"), 5, lambda: calls.append("restore")
    )
    assert seconds >= 0 and calls == ["restore", "launch"] * 8  # three before the first that counts


@pytest.mark.gpu
def test_gpu_time_is_that_of_the_kernel() -> None:
    kernel = rawkern.RawKernel(r"""
        extern "C" __global__ void spin(long long nanoseconds) {
            unsigned long long begin, now;
            asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
            do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); while (now - begin < nanoseconds);
        }""")
    device = torch.device("cuda", torch.cuda.current_device())
    short, long = (timing.launch_seconds(lambda n=n: kernel[1, 1](n), device, 20) for n in (100_000, 300_000))
    assert 95e-6 < short < 150e-6 and 290e-6 < long < 350e-6
    x = torch.zeros(8, device=device)
    assert timing.launch_seconds(lambda: rawkern.square(x), device, 20) < 30e-6  # without the host's time
