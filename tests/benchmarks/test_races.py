"""`benchmarks.races` reads each set as it lies in a checkout: labels, launches, and what is shown of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import harness, races

HOST = "void errCheck()\n{\n    if (1) { exit(1); }\n}\n"
MAIN = "int main()\n{\n    kmain<<<NBLOCKS,TPERBLK>>>(d_data);\n    return 0;\n}\n"
KERNEL = "__global__ void kmain(volatile unsigned int *data) { %s; }\n"
SHAPE = "#include <stdio.h>\n#define NBLOCKS 2\n#define TPERBLK 1\n"
GRAPH_CODE = """typedef int data_t;
#include "indigo_cuda.h"
__global__ void test_kernel(int* nindex, int* nlist, data_t* data1, data_t* data2, int numv) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i <= numv) data1[0] += nindex[i + 1];
}
void serial_code(int* nindex) { for (;;) {} }
"""
FILES = {
    "scor": {
        "microbenchmarks/src/race_a.cu": SHAPE + HOST + KERNEL % "*(unsigned*)data = blockIdx.x" + MAIN,
        "microbenchmarks/src/norace_a.cu": SHAPE + HOST + KERNEL % "atomicAdd((unsigned*)data, 1)" + MAIN,
    },
    "indigo": {"indigo/indigo_sources/sum/sum_boundsBug_atomicBug.cu": GRAPH_CODE},
    "gpuverify": {
        "testsuite/CUDA/a/kernel.cu": "//pass\n//--blockDim=[64,64] --gridDim=1\n__global__ void k(int* p, int n) "
        "{ __requires(n == 0); if (n) p[0] = threadIdx.x; }\n",
        "testsuite/CUDA/b/kernel.cu": "//pass\n//--blockDim=64 --gridDim=1\n__global__ void k(int (*f)(int)) {}\n",
        "testsuite/CUDA/misc/fail/miscfail3/kernel.cu": "//xfail:NOT_ALL_VERIFIED\n//--blockDim=64 --gridDim=1\n"
        "__global__ void k(int* p) { p[0] = threadIdx.x; }\n",
        "testsuite/CUDA/an_assertion/kernel.cu": "//xfail:NOT_ALL_VERIFIED\n//--blockDim=64 --gridDim=1\n",
    },
    "faial": {
        "examples/drf/racy-a.cu": "__global__ void shift(int n, float* x) { x[threadIdx.x] = x[threadIdx.x + n]; }\n",
        "examples/drf/test.ml": '  "racy-a.cu", [], 1;\n  "racy-a.cu", ["-p"; "n=0"], 0;\n'
        '  "racy-a.cu", ["--grid-level"], 0;\n  "macro.cu", ["-DMACRO"], 2;\n',
    },
}  # fmt: skip
FILES["scor"] |= {
    f"benchmarks/rule-110/r110_kernel.{end}": text
    for end, text in (
        ("cuh", "#include <iostream>\nusing namespace std;\ntypedef int DATA;\n"),
        ("cu", '#include "r110_kernel.cuh"\n__global__ void rule110Kernel(DATA* arr, DATA*, int*, int, int step) {\n'
               "#ifdef RACEY\n    arr[0] = blockIdx.x;\n#endif\n    arr[blockIdx.x + 1] = NTHREADS;\n}\n"),
    )
}  # fmt: skip
FILES["esbmc"] = {
    "regression/cuda/pug/one/main.cu": "#include <call_kernel.h>\n#include <stdio.h>\n#define N 2\n__global__ void k(int* p) "
    "{ p[0] = threadIdx.x; }\nint main() { ESBMC_verify_kernel(k, 1, N, p); }\n",
    "regression/cuda/pug/one/test.desc": "main.cu\n^VERIFICATION FAILED$\n#W/W data race$\n",
}
ROWS = {  # racy, found, race-free, reported, not run
    "scor": "| 2 | 2 | 2 | 0 | 0 |",
    "esbmc": "| 1 | 1 | 0 | 0 | 0 |",
    "indigo": "| 1 | 1 | 0 | 0 | 0 |",
    "gpuverify": "| 1 | 1 | 2 | 0 | 1 |",
    "faial": "| 1 | 1 | 1 | 0 | 0 |",
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for files in FILES.values():
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
    graph = tmp_path / "indigo" / "input" / "two.egr"
    graph.parent.mkdir()
    np.array([2, 2, 0, 1, 2, 1, 0], dtype=np.int32).tofile(graph)
    return tmp_path


@pytest.mark.parametrize("name", races.SETS)
def test_a_set_is_read_run_and_counted(
    name: str, checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(harness, "RESULTS", checkout / "results")
    races.main([name, "--from", str(checkout), "--keep"])
    said = capsys.readouterr().out
    row = races.ANY if name == "indigo" else races.BY_PTX
    assert f"| {row} {ROWS[name]}" in said
    kept = json.loads((checkout / "results" / f"races-{name}.json").read_text())
    assert kept["results"]["Races"][row]["missed"] == []
    if name == "indigo":
        assert f"| two {ROWS[name]}" in said and f"| {races.ANY} | 1 | 1 | 0 | 0 |" in said
    if name == "gpuverify":
        assert "| b | race-free | not run" in said


def test_data_of_a_graph_are_those_of_the_sets_program(checkout: Path) -> None:
    nindex, nlist, data1, data2 = races.graph(checkout / "indigo" / "input" / "two.egr")
    assert (nindex.tolist(), nlist.tolist()) == ([0, 1, 2], [1, 0])
    assert data1.tolist()[0] == data2.tolist()[0] == 0 and len(data1) == 2 and data1.max() < 2


def test_what_cannot_be_read_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        races.main(["scor", "--from", str(tmp_path)])
    assert "no files of the set scor there" in capsys.readouterr().err


def test_host_code_leaves_its_lines() -> None:
    text = "a\n" + HOST + "b\n" + MAIN + "c"
    left = races.without(text, "errCheck", "main")
    assert left.count("\n") == text.count("\n") and left.split() == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("dims", "most", "fewer"), [((2048,), 1024, (1024,)), ((64, 64), 1024, (32, 32)), ((3,), 8, (3,))]
)
def test_shapes_are_scaled(dims: tuple[int, ...], most: int, fewer: tuple[int, ...]) -> None:
    assert races.scaled(dims, most) == fewer
