"""PyTorch extensions as they are: from an edit to the result, what a call costs, on a GPU torch's own build beside.

Ten extensions, `extension_sources/*.cu`. With `--nvcc` torch.utils.cpp_extension.load builds each too, which needs
nvcc, ninja and a C++ compiler, takes minutes, and tells whether the results are the same bit for bit.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import itertools
import multiprocessing
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

import rawkern
from benchmarks.harness import Report, Table, Timing, compare, failed, plain, scaled, summary
from rawkern import cpp_extension

FOLDER = Path(__file__).resolve().parent / "extension_sources"
CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
AT_A_TIME = 5  # builds by nvcc, which take a minute each and hardly more than one core
GOALS = {"edit": 0.3, "call": 10e-6}  # seconds: of a file of 300 lines on the CPU engine; of a wrapper over its launch


def inputs() -> dict[str, tuple[Any, ...]]:
    """Arguments of each extension's function."""
    generator = torch.Generator().manual_seed(0)

    def make(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(DEVICE)

    rows = torch.randint(0, 300, (500,), generator=generator).to(DEVICE)
    values = torch.randint(0, 64, (10_000,), generator=generator, dtype=torch.int32).to(DEVICE)
    return {
        "cell": (make(32, 100), make(3 * 64, 100), make(3 * 64), make(32, 64)),
        "convolution": (make(2, 16, 300), make(16, 4), make(16), True),
        "gather": (make(300, 70), rows),
        "histogram": (values, 64),
        "leaky": (make(10_000), 0.1),
        "matmul": (make(100, 70), make(70, 90)),
        "norms": ([make(20, 300), make(30, 300)], make(300), 1e-6),
        "scan": (make(10, 500),),
        "softmax": (make(40, 300),),
        "transpose": (make(100, 90),),
    }


REFERENCES: dict[str, Callable[..., Any]] = {
    "cell": lambda x, w, b, c: _cell(torch.addmm(b, x, w.t()), c),
    "convolution": lambda x, w, b, silu: torch.nn.functional.silu(
        torch.nn.functional.conv1d(torch.nn.functional.pad(x, (3, 0)), w[:, None], b, groups=16)
    ),
    "gather": lambda x, rows: x[rows],
    "histogram": lambda x, bins: torch.bincount(x, minlength=bins).int(),
    "leaky": lambda x, slope: torch.where(x < 0, slope * x, x),
    "matmul": torch.matmul,
    "norms": lambda inputs, w, e: [x * torch.rsqrt(x.square().mean(1, keepdim=True) + e) * w for x in inputs],
    "scan": lambda x: x.cumsum(1),
    "softmax": lambda x: x.softmax(1),
    "transpose": lambda x: x.t(),
}


def _cell(gates: torch.Tensor, old: torch.Tensor) -> list[torch.Tensor]:
    i, o, candidate = gates.chunk(3, 1)
    new = old + torch.sigmoid(i) * torch.tanh(candidate)
    return [torch.tanh(new) * torch.sigmoid(o), new]


def tensors(result: Any) -> list[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else list(result)


def finish() -> None:
    if CUDA:
        torch.cuda.synchronize()


# Edit to result -----------------------------------------------------------------------------------------------

_numbers = itertools.count(time.time_ns() % 1_000_000_000)


def edited(source: str) -> str:
    """A source with other machine code for each of its kernels, which no cache has."""
    return re.sub(
        r"(__global__[^{;]*\{)", lambda found: f"{found[1]} if (gridDim.z == {next(_numbers)}u) return;", source
    )


def together(names: Iterable[str]) -> str:
    """The extensions in one file."""
    texts = [(FOLDER / f"{name}.cu").read_text() for name in names]
    bodies = [re.sub(r"PYBIND11_MODULE.*|#include .*", "", text).strip() for text in texts]
    heads = list(dict.fromkeys(re.findall(r"#include .*", "\n".join(texts))))
    functions = [re.findall(r'm\.def\("run", &(\w+)', text)[0] for text in texts]
    lines = [f'  m.def("{name}", &{function});' for name, function in zip(names, functions, strict=True)]
    module = "\n".join(["PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {", *lines, "}"])
    return "\n\n".join(["\n".join(heads), *bodies, module]) + "\n"


def edits(report: Report, rounds: int, arguments: dict[str, tuple[Any, ...]]) -> None:
    rows: dict[str, Timing] = {}
    sources = {name: (FOLDER / f"{name}.cu").read_text() for name in arguments}
    whole = together(list(arguments))
    lines: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        one_file = {f"all ten in one file, {name}": whole for name in ("leaky", "matmul")}
        for name, text in {**sources, **one_file}.items():
            path = Path(folder) / f"{name.partition(',')[0].replace(' ', '_')}.cu"
            path.write_text(edited(text))
            extension = cpp_extension.load(path.stem, [path])
            shown, lines[name] = name.rpartition(" ")[2], len(text.splitlines())
            attribute = "run" if name in arguments else shown
            taken = []
            for k in range(rounds + 1):
                path.write_text(edited(text))
                time.sleep(0.12)  # files are looked at every 100 ms, an editor's user takes longer
                finish()
                start = time.perf_counter()
                result = getattr(extension, attribute)(*arguments[shown])
                finish()
                taken += [time.perf_counter() - start] if k else []
                expected = REFERENCES[shown](*arguments[shown])
                torch.testing.assert_close(tensors(result), tensors(expected), rtol=1e-3, atol=1e-3)
            rows[name] = summary(taken)
    table = Table("From an edit to the result", ("extension", "lines", "median", "quartiles"))
    for name, one in rows.items():
        table.rows.append((name, str(lines[name]), scaled(one.median), f"{scaled(one.low)} to {scaled(one.high)}"))
    table.note = (
        "An edit of every kernel of the file, to other machine code; then a call of one function, which reads the "
        "file, translates its host functions and compiles the kernel. The goal for 300 lines, on the CPU engine and "
        f"for a kernel of a few lines, is {scaled(GOALS['edit'])}."
    )
    report.add(table, {name: plain(one) for name, one in rows.items()})


# Calls ----------------------------------------------------------------------------------------------------------


def calls(report: Report, rounds: int) -> None:
    """What a translated wrapper costs over its launch."""
    x = torch.randn(1000, device=DEVICE)
    extension = cpp_extension.load("leaky", [FOLDER / "leaky.cu"])
    kernel = extension.kernels.get_function("leaky_kernel<float>")
    y = torch.empty_like(x)

    def by_hand() -> None:
        out = torch.empty_like(x)
        kernel[4, 256](x, out, 0.1, 1000)

    contenders = {
        "the launch": lambda: kernel[4, 256](x, y, 0.1, 1000),
        "empty_like and the launch": by_hand,
        "the translated function": lambda: extension.run(x, 0.1),
    }
    timings = compare(contenders, baseline="empty_like and the launch", rounds=rounds)
    table = Table("A call", ("what", "median", "quartiles", "ratio"))
    for name, one in timings.items():
        ratio = f"{one.ratio:.2f}" if one.ratio is not None else ""
        table.rows.append((name, scaled(one.median), f"{scaled(one.low)} to {scaled(one.high)}", ratio))
    more = timings["the translated function"].median - timings["empty_like and the launch"].median
    table.note = (
        f"Leaky ReLU of 1000 elements. The wrapper checks, converts and chooses the instance: {scaled(more)} more than "
        f"the two calls that it makes; the goal is {scaled(GOALS['call'])}."
    )
    report.add(table, {name: plain(one) for name, one in timings.items()})


# torch's build --------------------------------------------------------------------------------------------------


def built(name: str, folder: str) -> float:
    """Build an extension by torch and nvcc, and return the seconds it took."""
    from torch.utils import cpp_extension as of_torch

    os.makedirs(folder)
    start = time.perf_counter()
    of_torch.load(f"{name}_built", [str(FOLDER / f"{name}.cu")], build_directory=folder)
    return time.perf_counter() - start


def builds(report: Report, arguments: dict[str, tuple[Any, ...]]) -> None:
    """The same extensions by torch and nvcc: time to build, time of a call, and the results bit for bit."""
    from torch.utils import cpp_extension as of_torch

    columns = ("extension", "torch: build", "rawkern: first result", "torch: call", "rawkern: call", "results")
    table, numbers = Table("With torch.utils.cpp_extension.load", columns), {}
    spawning = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as root,
        concurrent.futures.ProcessPoolExecutor(AT_A_TIME, mp_context=spawning) as pool,
    ):
        folders = {name: os.path.join(root, name) for name in arguments}
        started = {name: pool.submit(built, name, folder) for name, folder in folders.items()}
        concurrent.futures.wait(started.values())  # what is measured below has the machine for itself
        for name, given in arguments.items():
            path = FOLDER / f"{name}.cu"
            try:
                build = started[name].result()
                theirs = of_torch.load(f"{name}_built", [str(path)], build_directory=folders[name])
                expected = tensors(theirs.run(*given))
            except Exception as error:
                table.rows.append((name, failed(error).error, *[""] * 4))
                continue
            source = Path(folders[name]) / f"{name}.cu"
            source.write_text(edited(path.read_text()))  # so that no cache has it
            start = time.perf_counter()
            cpp_extension.load(name, [source]).run(*given)
            finish()
            first = time.perf_counter() - start
            ours = cpp_extension.load(name, [path])
            same = all(torch.equal(a, b) for a, b in zip(tensors(ours.run(*given)), expected, strict=True))
            contenders = {
                "torch": lambda theirs=theirs, given=given: theirs.run(*given),
                "rawkern": lambda ours=ours, given=given: ours.run(*given),
            }
            timings = compare(contenders, rounds=9)
            finish()
            said = "equal, bit for bit" if same else "DIFFERENT"
            took = [scaled(timings[one].median) for one in ("torch", "rawkern")]
            table.rows.append((name, scaled(build), scaled(first), *took, said))
            numbers[name] = {"build": build, "first": first, "same": same, **{k: plain(v) for k, v in timings.items()}}
    table.note = f"torch's builds: {AT_A_TIME} at a time, each in a process of its own."
    report.add(table, numbers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--nvcc", action="store_true", help="build by torch and nvcc as well, on a GPU")
    options = parser.parse_args()
    name = "extensions-gpu" if CUDA else "extensions-cpu"
    report = Report(name, f"Extensions on the {'GPU' if CUDA else 'CPU engine'}")
    if not CUDA:
        torch.set_num_threads(1)
    report.notes.append(f"rawkern {rawkern.__version__}; the sources are benchmarks/extension_sources.")
    arguments = inputs()
    report.settle(5 if CUDA else 20)
    edits(report, options.rounds, arguments)
    calls(report, 2 * options.rounds)
    if CUDA and options.nvcc:
        builds(report, arguments)
    report.write()


if __name__ == "__main__":
    main()
