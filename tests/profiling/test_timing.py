"""Times on GPUs: what reports say of them beside bounds and the rate of a copy, and the trace for Perfetto."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch

import rawkern
from rawkern.profiling import html, text, trace

CODE = 'extern "C" __global__ void twice(const float* x, float* y) { int i = threadIdx.x + blockIdx.x * 256; y[i] = 2 * x[i]; }'


@pytest.fixture(scope="module")
def counted() -> dict[str, Any]:
    with rawkern.profile(device="h200") as report:
        rawkern.RawKernel(CODE)[16, 256](torch.ones(4096), torch.zeros(4096))
    return report.as_dict()


def timed(counted: dict[str, Any], *times: float, **timing: Any) -> dict[str, Any]:
    """A report as if its launch had been made on a GPU, so many milliseconds each, the first of them cold."""
    data, (launch,) = copy.deepcopy(counted), counted["launches"]
    data["launches"] = []
    for k, time in enumerate(times):
        about = {"start": 2.5 * k, "stream": 0, "first": k == 0, "late": False, "copy_rate": 4.2e12} | timing
        about["share_of_copy_rate"] = 32 * 1024 / (time * 1e-3) / 4.2e12
        data["launches"].append(launch | {"device": "cuda:0", "milliseconds": time, "timing": about})
    return data


def test_time_is_compared_with_bound_and_copy_rate(counted):
    data = timed(counted, 0.9, 0.02, 0.01, 0.03)
    page = text.page(data)
    assert "took 20 us on cuda:0, 2.93e+03 times the bound by memory, 0% of a copy's 4,200 GB/s\n" in page
    assert "twice: grid 16, block 256, 4 launches" in page
    assert "took 20 us on cuda:0" in html.page(data)
    assert "measured" in html.page(data)
    assert "the first launch of its source" not in page


def test_what_is_in_a_time_that_is_not_the_launchs_is_said(counted):
    assert "(the first launch of its source, with cold caches)" in text.page(timed(counted, 0.9))
    late = text.page(timed(counted, 0.9, late=True, first=False))
    assert "(includes host time: the GPU was waiting for the launch)" in late


def test_a_trace_has_each_launch_at_its_time(counted):
    data = timed(counted, 0.9, 0.02)
    data["launches"].append(data["launches"][1] | {"device": "cuda:1"})
    data["launches"][1]["timing"] = data["launches"][1]["timing"] | {"stream": 0x7F00}
    events = json.loads(trace.page(data))["traceEvents"]
    launches = [event for event in events if event["ph"] == "X"]
    assert [(e["name"], e["ts"], e["dur"], e["pid"]) for e in launches] == [
        ("twice", 0.0, 900.0, 0), ("twice", 2500.0, 20.0, 0), ("twice", 2500.0, 20.0, 1)
    ]  # fmt: skip
    assert len({(e["pid"], e["tid"]) for e in launches}) == 3
    names = {(e["name"], e["pid"], e.get("tid")): e["args"]["name"] for e in events if e["ph"] == "M"}
    assert names["process_name", 1, None] == "cuda:1"
    assert names["thread_name", 0, launches[1]["tid"]] == "stream 0x7f00"
    assert launches[0]["args"]["grid"] == "16"
    assert (
        launches[0]["args"]["smsp__inst_executed.sum"] == counted["launches"][0]["counters"]["smsp__inst_executed.sum"]
    )
    assert launches[0]["args"]["lower bound by memory (us)"] == pytest.approx(1024 * 32 / 4.8e12 * 1e6)
    for event in events:  # what the format asks of every event
        assert {"name", "ph", "pid"} <= set(event)
        assert all(isinstance(event.get(name, 0), int) for name in ("pid", "tid"))


def test_without_times_there_is_no_trace(tmp_path):
    with rawkern.profile() as report:
        rawkern.RawKernel(CODE)[16, 256](torch.ones(4096), torch.zeros(4096))
    with pytest.raises(ValueError, match="no launch was timed"):
        report.save(tmp_path / "x.trace.json")
    assert not list(tmp_path.iterdir())


@pytest.mark.gpu
def test_launches_on_a_gpu_are_timed(tmp_path):
    x = torch.ones(1 << 24, device="cuda")
    y, kernel = torch.empty_like(x), rawkern.RawKernel(CODE.replace("twice", "timed"))
    with rawkern.profile(sample=64) as report:
        for _ in range(3):
            kernel[x.numel() // 256, 256](x, y)
    with rawkern.profile() as small:
        kernel[16, 256](x, y)
    data = report.as_dict()
    first, *others = data["launches"]
    assert first["timing"]["first"] and first["timing"]["start"] == 0
    for launch in others:
        assert not launch["timing"]["first"]  # a busy host may be late
        assert launch["timing"]["start"] > 0
        rate = 2 * x.numel() * 4 / (launch["milliseconds"] * 1e-3)
        assert 0.3 < rate / launch["timing"]["copy_rate"] < 1.3
    (launch,) = small.as_dict()["launches"]
    assert 0 < launch["timing"]["share_of_copy_rate"] < 1
    report.save(tmp_path / "x.trace.json")
    events = json.loads((tmp_path / "x.trace.json").read_text())["traceEvents"]
    assert [e["dur"] for e in events if e["ph"] == "X"] == [launch["milliseconds"] * 1e3 for launch in data["launches"]]


@pytest.mark.gpu
def test_the_stream_of_a_launch_is_that_of_its_time():
    x, other = torch.ones(4096, device="cuda"), torch.cuda.Stream()
    with rawkern.profile() as report:
        rawkern.RawKernel(CODE)((16,), (256,), (x, torch.empty_like(x)), stream=other)
    other.synchronize()
    assert report.as_dict()["launches"][0]["timing"]["stream"] == other.cuda_stream
