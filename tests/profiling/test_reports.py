"""What reports say: counters as data, text, pages that parse, files, and what has changed since another report."""

from __future__ import annotations

import csv
import json
from html.parser import HTMLParser
from typing import Any

import pytest
import torch

import rawkern

TRANSPOSE = r"""extern "C" __global__ void transpose(const float* x, float* y) {
  __shared__ float tile[32][PITCH];
  for (int r = threadIdx.y; r < 32; r += 8)
    tile[r][threadIdx.x] = x[r * 32 + threadIdx.x];
  __syncthreads();
  for (int r = threadIdx.y; r < 32; r += 8)
    y[r * 32 + threadIdx.x] = tile[threadIdx.x][r];
}"""


def report_of(pitch: int, device: str | None = "h200", above: str = "", times: int = 1) -> Any:
    kernel = rawkern.RawKernel(above + TRANSPOSE.replace("PITCH", str(pitch)), "transpose")
    x, y = torch.randn(32, 32), torch.zeros(32, 32)
    with rawkern.profile(device=device) as report:
        for _ in range(times):
            kernel[1, (32, 8)](x, y)
    assert torch.equal(y, x.T)
    return report


@pytest.fixture(scope="module")
def naive():
    return report_of(32)


@pytest.fixture(scope="module")
def padded():
    return report_of(33)


def test_assertions_on_kernels(naive, padded):
    assert naive["transpose"].shared_excessive == 32 * 31
    assert naive["transpose"].shared_wavefronts == 32 * 32 + 32
    found = padded["transpose"]
    assert found.shared_excessive == 0
    assert found.sectors_per_request == 4
    assert found.sectors == found.sectors_ideal == 2 * 128
    assert (found.requests, found.local_requests, found.divergent_branches) == (64, 0, 0)
    assert found.lanes_per_warp == 32
    assert [each.name for each in naive] == ["transpose"]
    with pytest.raises(KeyError, match="no launch of 'transposed' was profiled; profiled kernels: transpose"):
        naive["transposed"]


def test_the_data_have_launches_lines_and_instructions(naive):
    data = naive.as_dict(instructions=True)
    (launch,) = data["launches"]
    assert (launch["kernel"], launch["grid"], launch["block"]) == ("transpose", [1, 1, 1], [32, 8, 1])
    assert launch["distinct_sectors"] == {"x": 128, "y": 128}
    sums: dict[str, float] = {}
    for counters in launch["lines"].values():
        for name, value in counters.items():
            sums[name] = sums.get(name, 0) + value
    ratio = "smsp__thread_inst_executed_per_inst_executed.ratio"
    assert {k: v for k, v in sums.items() if k != ratio} == {
        k: v for k, v in launch["counters"].items() if v and k != ratio
    }
    assert launch["lines"][7]["memory_l1_wavefronts_shared"] == 1024
    assert launch["lines"][5]["barrier_waits"] == launch["counters"]["barrier_waits"] == 8
    assert launch["source"][7].strip().startswith("y[r * 32")
    loads = [one for one in launch["instructions"] if one["ptx"].startswith("ld.shared")]
    assert {one["line"] for one in loads} == {7}
    assert launch["occupancy"]["share"] == 1
    assert launch["bounds"]["memory"] == pytest.approx(256 * 32 / 4.8e12)
    assert launch["bounds"]["shared"] == pytest.approx(1056 / 2 / (132 * 1.98e9))
    json.dumps(data)


def test_without_a_gpu_nothing_is_said_of_one():
    report = report_of(33, None)
    (launch,) = report.as_dict()["launches"]
    assert not {"gpu", "bounds", "occupancy", "milliseconds"} & set(launch)
    assert "occupancy" not in str(report)


def test_text_has_the_costly_line_and_the_remedy(naive):
    text = str(naive)
    assert "7: y[r * 32 + threadIdx.x] = tile[threadIdx.x][r];" in text
    assert "32x" in text
    assert "pad rows of 128 bytes to 132" in text
    assert "lower bound on H200" in text


def test_equal_launches_are_listed_once():
    report = report_of(33, times=3)
    assert len(report) == 3
    assert report["transpose"].launches == 3
    assert report["transpose"].sectors == 3 * 256
    assert str(report).count("transpose: grid 1, block 32 x 8, 3 launches") == 1


class _Checked(HTMLParser):
    """Every element that opens is closed, in order; keeps texts by element."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "br", "path", "circle"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag not in ("path", "circle"):
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def parsed(page: str) -> _Checked:
    found = _Checked()
    found.feed(page)
    found.close()
    assert not found.open
    return found


def test_the_page_of_html_is_whole_and_needs_nothing_else(tmp_path, naive):
    naive.save(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    found = parsed(page)
    assert "y[r * 32 + threadIdx.x] = tile[threadIdx.x][r];" in found.text
    assert "pad rows of 128 bytes to 132" in found.text
    assert "prefers-color-scheme: dark" in page
    loaded = [v for _, attrs in found.seen for k, v in attrs.items() if k in ("src", "href")]
    assert not loaded
    assert "http" not in page
    heat = [attrs["style"] for tag, attrs in found.seen if tag == "tr" and "style" in attrs]
    assert len(heat) == len(naive.as_dict()["launches"][0]["lines"])
    assert "2:   __shared__ float tile[32][32];" in found.text  # a line without counts
    notebook = naive._repr_html_()
    assert notebook in page
    assert parsed(notebook).seen[0][0] == "style"


def test_sources_cannot_break_the_page():
    code = 'extern "C" __global__ void k(float* y) {\n  if (y[0] < 1 && y[1] > 2) y[2] = 3; // </td><script>\n}'
    y = torch.zeros(4)
    with rawkern.profile(device="h200") as report:
        rawkern.RawKernel(code)[1, 32](y)
    page = report._repr_html_()
    assert "<script>" not in page
    assert "</td><script>" in parsed(page).text


def test_a_roofline_has_the_launch_under_its_roof():
    with rawkern.profile(device="h200") as report:
        rawkern.square(torch.randn(1024))
    page = report._repr_html_()
    assert parsed(page).text.count("operations per byte, at most") == 2
    (circle,) = [attrs for tag, attrs in parsed(page).seen if tag == "circle"]
    assert 40 < float(circle["cx"] or 0) < 450


def test_csv_and_json(tmp_path, naive):
    naive.save(tmp_path / "report.csv")
    with open(tmp_path / "report.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {
        "launch": "0",
        "kernel": "transpose",
        "line": "7",
        "counter": "memory_l1_wavefronts_shared",
        "value": "1024",
    } in rows
    naive.save(tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text()) == json.loads(json.dumps(naive.as_dict()))
    with pytest.raises(ValueError, match=r"it must end with one of \.html, \.json, \.csv"):
        naive.save(tmp_path / "report.txt")


def test_compare_names_the_line_that_got_worse(tmp_path, naive, padded):
    padded.save(tmp_path / "old.json")
    found = naive.compare(tmp_path / "old.json")
    assert found
    (worse,) = found.worse
    assert (worse.kernel, worse.line, worse.before, worse.after) == ("transpose", "7", 32, 1024)
    assert "line 7: memory_l1_wavefronts_shared 32 -> 1,024" in str(found)
    assert not padded.compare(naive)
    assert len(padded.compare(naive).better) == 1
    assert str(naive.compare(naive.as_dict())) == "no change"


def test_compare_finds_lines_again_that_have_moved(padded):
    moved = report_of(33, above="// one\n// two\n")
    assert not moved.compare(padded)
    assert not moved.compare(padded).better


def test_what_cannot_be_compared_raises(padded):
    with pytest.raises(ValueError, match="old is not a report of this version"):
        padded.compare({"launches": []})
    with pytest.raises(ValueError, match="launched 1 times then and 2 times now; profile the same launches"):
        report_of(33, times=2).compare(padded)


def test_unknown_gpus_raise():
    with pytest.raises(ValueError, match="unknown device 'rtx 9'; pass one of h200, "):
        rawkern.profile(device="rtx 9")
    with pytest.raises(TypeError, match="device is 90; pass the name of a GPU"):
        rawkern.profile(device=90)  # type: ignore[arg-type]
