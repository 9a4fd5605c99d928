"""How long a user waits: for `import rawkern`, and from source text to the first result, cold or with a warm cache."""

from __future__ import annotations

import argparse
import json
import tempfile

from benchmarks.harness import Report, Table, Timing, fresh, plain, python_environment, scaled, summary

# In a fresh process: argument text {modules} is imported first, then a kernel is made from text and run.
FIRST_RESULT = r"""
import importlib, json, sys, time
import torch, rawkern
torch.set_num_threads(1)
for name in {modules}:
    try:
        importlib.import_module(name)
    except ImportError:
        pass
x = torch.randn(1000)
y = torch.full_like(x, float("nan"))
before = set(sys.modules)
{prepare}
start = time.perf_counter()
kernel = rawkern.RawKernel({source!r})
kernel.forall(1000)(1000, x, y)
elapsed = time.perf_counter() - start
assert torch.equal(y, x * x)
{finish}
print(json.dumps({result}))
"""

SOURCE = r"""
extern "C" __global__ void square(int n, const float* x, float* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * x[i];
}
"""

IMPORT = """
import json, time
import torch
start = time.perf_counter()
import rawkern
bare = time.perf_counter() - start
rawkern.RawKernel
used = time.perf_counter() - start
rawkern.square
print(json.dumps([bare, used, time.perf_counter() - start]))
"""

# Stages by the function that does each: time in it, less the time in stages it calls.
STAGES = {
    "reading the source": ["rawkern.compile.source:from_text"],
    "CuPy's NVRTC binding": ["rawkern.compile.toolchain:nvrtc", "rawkern.compile.nvrtc:nvrtc"],
    "search for the toolchain": [
        "rawkern.compile.toolchain:toolchain",
        "rawkern.compile.nvrtc:toolchain",
        "rawkern.compile.programs:toolchain",
    ],
    "NVRTC": [
        "rawkern.compile.nvrtc:run_nvrtc",
        "rawkern.compile.compile:run_nvrtc",
        "rawkern.compile.layout:run_nvrtc",
    ],
    "names and types": [
        "rawkern.compile.compile:build",
        "rawkern.compile.programs:parameter_names",
    ],
    "signature, binder": ["rawkern.arguments.signature:make_signature", "rawkern.launch.unit:make_signature"],
    "disk cache": ["rawkern.base.cache:get", "rawkern.base.cache:put"],
    "parse PTX": ["rawkern.engines.cpu.ptx.parser:parse"],
    "lower to LLVM IR": ["rawkern.engines.cpu.runtime.jit:Translation.lower"],
    "LLVM: read IR": ["rawkern.engines.cpu.runtime.jit:emit"],
    "LLVM: passes": ["rawkern.base.llvm:optimize"],
    "LLVM: code generation": ["llvmlite.binding.targets:TargetMachine.emit_object"],
    "load machine code": ["rawkern.engines.cpu.runtime.jit:Loaded.__init__"],
    "prepare launches": ["rawkern.engines.cpu.runtime.grid:Target.__init__"],
}

# Wraps the functions above; imports are counted as a stage of their own, whoever triggers them.
WRAP = r"""
spent, counts, stack = {}, {}, []
def staged(stage, function):
    def wrapper(*args, **kwargs):
        stack.append([stage, time.perf_counter(), 0.0])
        try:
            return function(*args, **kwargs)
        finally:
            _, began, inner = stack.pop()
            total = time.perf_counter() - began
            spent[stage] = spent.get(stage, 0.0) + total - inner
            counts[stage] = counts.get(stage, 0) + 1
            if stack:
                stack[-1][2] += total
    return wrapper
import builtins
builtins.__import__ = staged("importing", builtins.__import__)
importlib.import_module = staged("importing", importlib.import_module)
for stage, places in STAGES.items():
    for place in places:
        module, _, path = place.partition(":")
        owner = importlib.import_module(module)
        *parents, last = path.split(".")
        for parent in parents:
            owner = getattr(owner, parent)
        setattr(owner, last, staged(stage, getattr(owner, last)))
spent.clear(), counts.clear()
"""


def program(modules: list[str], prepare: str = "", finish: str = "", result: str = "elapsed") -> str:
    return FIRST_RESULT.format(
        modules=json.dumps(modules), source=SOURCE, prepare=prepare, finish=finish, result=result
    )


def first_results(rounds: int, bytecode: str) -> tuple[dict[str, Timing], dict[str, dict[str, float]]]:
    """Seconds to the first result in fresh processes, by case; and the stages of one more run of each."""
    stages = "STAGES = " + json.dumps(STAGES) + WRAP

    def run(cache: str, modules: list[str], **more: str):
        environment = python_environment(cache) | {"PYTHONPYCACHEPREFIX": bytecode}
        return fresh(program(modules, **more), environment)

    with tempfile.TemporaryDirectory() as warm:
        listed = {"result": "sorted(set(sys.modules) - before)"}
        needs = {"cold": run(warm, [], **listed), "warm": run(warm, [], **listed)}  # these also write bytecode
        times: dict[str, list[float]] = {}
        broken: dict[str, list[dict[str, float]]] = {}
        for _ in range(rounds):
            for state in ("cold", "warm"):
                for imports, modules in (("imports done", needs[state]), ("after import torch, rawkern", [])):
                    with tempfile.TemporaryDirectory() as empty:
                        taken = run(warm if state == "warm" else empty, modules)
                    times.setdefault(f"{state}, {imports}", []).append(taken)
                with tempfile.TemporaryDirectory() as empty:
                    result = "spent | {'everything else': elapsed - sum(spent.values()), 'total': elapsed}"
                    parts = run(warm if state == "warm" else empty, needs[state], prepare=stages, result=result)
                broken.setdefault(state, []).append(parts)
    middle = {
        state: {stage: summary([run.get(stage, 0.0) for run in runs]).median for stage in {k for r in runs for k in r}}
        for state, runs in broken.items()
    }
    return {case: summary(values) for case, values in times.items()}, middle


def imports(rounds: int, bytecode: str) -> dict[str, Timing]:
    """What the import adds to `import torch`, in fresh processes."""
    environment = python_environment() | {"PYTHONPYCACHEPREFIX": bytecode}
    fresh(IMPORT, environment)
    taken = [fresh(IMPORT, environment) for _ in range(rounds)]
    names = ("import rawkern", "import rawkern; rawkern.RawKernel", "import rawkern; rawkern.RawKernel; rawkern.square")
    return {name: summary([run[i] for run in taken]) for i, name in enumerate(names)}


GOALS = {"cold, imports done": "0.5 s", "warm, imports done": "7 ms", "import rawkern": "0.1 s"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    report = Report("startup", "Source text to first result")
    report.notes.append(
        "Fresh processes on a machine whose disk cache holds the libraries; Python's bytecode is there, as after an "
        "installation. Cold: an empty cache directory, and so a search for the compiler and its headers, too. Imports "
        "done: the modules that the run needs were imported before the clock started; the other row has only torch and "
        "rawkern imported. The kernel is square on 1,000 floats, on the CPU."
    )
    report.settle()
    with tempfile.TemporaryDirectory() as bytecode:
        adds = imports(options.rounds, bytecode)
        cases, stages = first_results(options.rounds, bytecode)
    table = Table("Waiting", ("", "median", "quartiles", "goal"))
    for name, timing in (cases | adds).items():
        quartiles = f"{scaled(timing.low)} to {scaled(timing.high)}"
        table.rows.append((name, scaled(timing.median), quartiles, GOALS.get(name, "")))
    report.add(table, cases | adds)
    table = Table("Stages, imports done", ("", "cold, ms", "warm, ms"))
    for stage in sorted(stages["cold"], key=lambda stage: (stage == "total", -stages["cold"][stage])):
        row = [f"{1000 * stages[state].get(stage, 0.0):.1f}" for state in ("cold", "warm")]
        table.rows.append((stage, *row))
    report.add(table, plain(stages))
    report.write()


if __name__ == "__main__":
    main()
