"""The published sets of racy kernels under ``rawkern.check()``: what is found, missed, and reported without reason.

``python -m benchmarks.races SET --from DIR`` reads a checkout of a set that lies in a directory of yours; nothing of it
comes with rawkern. Device code is compiled as it is; host code is left out, and the launches are those of the set.

- ``indigo``, labelled by names (``_atomicBug``, ``_boundsBug``): github.com/JohnJacobsonIII/HiRace-Artifact-SC24
- ``scor``, microbenchmarks labelled by names (``race_``, ``norace_``), and four applications, which are racy with
  ``-DRACEY``; by PTX's memory model, and by the set's rules: github.com/csl-iisc/ScoR
- ``gpuverify``, labelled by first lines and, where these do not say what fails, by `RACY`:
  github.com/mc-imperial/gpuverify
- ``faial``, labelled by the status that examples/drf/test.ml expects: Faial's sources
- ``esbmc``, labelled by the "data race" that test.desc expects: github.com/ssvlab/esbmc-gpu

The last three get arguments of ours: pointers the arrays of `FILLS`, and integers each of `VALUES` in turn; a race
counts that any of these launches has. Accesses that the compiler deletes count, as those tools read the source.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import multiprocessing
import random
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import torch

import rawkern
from benchmarks.harness import Report, Table, short

SECONDS = 10.0  # of a launch, which may wait for what never comes
THREADS, BLOCK, SHARED = 1 << 17, 1024, 32 << 10  # at most, of launches that a set leaves open
VALUES = ("all", 1, 0, 2)  # of integers that a set leaves open; "all" is the number of threads
#: What is in arrays that a set leaves open, of ascending numbers.
FILLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "ascending": lambda x: x, "descending": lambda x: len(x) - 1 - x, "zeros": torch.zeros_like
}  # fmt: skip
EQUAL, BY_PTX = "equal writes do not race", "PTX's memory model"
#: Of sources as they are written; those tools call writes of equal values a race, as PTX does.
AS_WRITTEN = {EQUAL: {"optimized": False}, BY_PTX: {"optimized": False, "equal_writes": "race"}}
#: ScoR takes volatile for what C++ says of it, and a flag that is read for one that orders.
SCOR = {
    BY_PTX: {"orders": (0,)},
    "the set's rules": {"volatile": "plain", "acquire": "read", "orders": (0,)},
}
RACES = {"RaceError", "BarrierError"}
ANY = "any of them"  # of a case's inputs
Dims = tuple[int, ...]


@dataclass
class Case:
    """A file of a set: its device code, what its label says, and its launches by the name of an input."""

    name: str
    source: str
    racy: bool
    launches: Callable[[rawkern.RawModule], Iterator[tuple[str, str, Dims, Dims, int, list]]]
    outside: bool | None = None  # whether it leaves its memory; None: no label says
    options: tuple[str, ...] = ()
    cooperative: bool = False
    rules: dict[str, dict] = field(default_factory=lambda: {"": {}})  # by the name of the input, arguments of check
    also: list[torch.Tensor] = field(default_factory=list)  # that variables lead to


@dataclass
class Outcome:
    """What checks said of a case, by input: the kinds of errors, or why it did not run."""

    kinds: dict[str, set[str]] = field(default_factory=dict)
    failed: str = ""
    seconds: float = 0.0


def without(source: str, *functions: str) -> str:
    """Take host functions out of a source, whose lines stay where they are."""
    for match in re.finditer(rf"^[ \t]*(?:int|void)\s+(?:{'|'.join(functions)})\s*\(", source, re.MULTILINE):
        depth, end = 1, source.index("{", match.end()) + 1
        while depth and end < len(source):
            depth += {"{": 1, "}": -1}.get(source[end], 0)
            end += 1
        blank = "".join("\n" if letter == "\n" else " " for letter in source[match.start() : end])
        source = source[: match.start()] + blank + source[end:]
    return source


# Sets ---------------------------------------------------------------------------------------------------------


def indigo(folder: Path) -> list[Case]:
    """Graph codes: each on all graphs of the set, filled as its program fills them, 1024 blocks of 256 threads."""
    graphs = {path.stem: graph(path) for path in sorted(folder.glob("indigo/input/*.egr"))}

    def launches(_: rawkern.RawModule) -> Iterator[tuple[str, str, Dims, Dims, int, list]]:
        for name, (nindex, nlist, data1, data2) in graphs.items():
            arrays = [array.clone() for array in (nindex, nlist, data1, data2)]
            yield name, "test_kernel", (1024,), (256,), 0, [*arrays, len(nindex) - 1]

    found = []
    for path in sorted(folder.glob("indigo/indigo_sources/*/*.cu")):
        code = path.read_text().replace('#include "indigo_cuda.h"', "")
        source = without(code, "serial_code", "verify_result", "compare")
        racy = re.search("atomicBug|guardBug|syncBug|raceBug", path.stem) is not None
        found.append(Case(path.stem, source, racy, launches, "boundsBug" in path.stem))
    return found


def graph(path: Path) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """A graph's two arrays, and the data that indigo_cuda.h makes by C's rand()."""
    numbers = torch.from_numpy(np.fromfile(path, dtype=np.int32))
    nodes, edges = numbers[:2].tolist()
    nindex, nlist = numbers[2 : nodes + 3].clone(), numbers[nodes + 3 : nodes + 3 + edges].clone()
    size, c = max(nodes, edges), ctypes.CDLL(None)
    c.srand(1)
    data1, data2 = (
        torch.tensor([0, *(c.rand() % bound for _ in range(1, size))], dtype=torch.int32)
        for bound in (nodes, max(edges, 1))
    )
    return nindex, nlist, data1, data2


def scor(folder: Path) -> list[Case]:
    """Microbenchmarks: a kernel of one word, its grid and block are macros."""
    found = []
    for path in sorted(folder.glob("microbenchmarks/src/*.cu")):
        code = path.read_text()
        grid, block = (int(n) for n in re.findall(r"#define\s+(?:NBLOCKS|TPERBLK)\s+(\d+)", code))

        def launches(_: rawkern.RawModule, grid=grid, block=block) -> Iterator:
            yield "", "kmain", (grid,), (block,), 0, [torch.zeros(1, dtype=torch.uint32)]

        found.append(Case(path.stem, code, path.stem.startswith("race_"), launches, rules=SCOR))
    return found + scor_applications(folder)


def scor_applications(folder: Path) -> list[Case]:
    """Those whose inputs are arrays of any numbers, on few blocks, as they are and as their authors broke them."""

    def ones(n: int) -> torch.Tensor:
        return torch.ones(n, dtype=torch.int32)

    def zeros(n: int) -> torch.Tensor:
        return torch.zeros(n, dtype=torch.int32)

    def convolution(_: rawkern.RawModule) -> Iterator:
        arguments = [torch.ones(9), 9, torch.ones(500), 500, torch.zeros(500)]
        yield "", "initKernel", (4,), (128,), 0, arguments
        yield "", "convolveKernel", (4,), (128,), 0, arguments

    def rule_110(_: rawkern.RawModule) -> Iterator:
        arguments = [ones(1024), zeros(1024), zeros(512), 1024]
        for step in (1, 2):
            yield "", "rule110Kernel", (4,), (128,), 0, [*arguments, step]

    def reduction(_: rawkern.RawModule) -> Iterator:
        arguments = [ones(4096), zeros(4), zeros(512), zeros(512), 4096]
        yield "", "reduceSinglePass<128, true>", (4,), (128,), 0, arguments

    def multiplication(_: rawkern.RawModule) -> Iterator:
        arguments = [ones(4 * 256), ones(256 * 32), zeros(4 * 32), 4, 256, 32, zeros(128), zeros(128), zeros(1024)]
        yield "", "matMultKernel", (4,), (128,), 0, arguments

    found = []
    names = {
        "1dconv": convolution,
        "rule-110": rule_110,
        "reduction": reduction,
        "matrix-multiplication": multiplication,
    }
    for name, launches in names.items():
        for path in folder.glob(f"benchmarks/{name}/*_kernel.cu"):
            header = path.with_suffix(".cuh")
            code = header.read_text() + path.read_text() if header.exists() else path.read_text()
            code = re.sub(r"^\s*(#include .*|using namespace std;)$", "", code, flags=re.MULTILINE)
            for racy in (True, False):
                options = ("-DNBLOCKS=4", "-DNTHREADS=128", *(["-DRACEY"] if racy else []))
                title = f"{name}{' -DRACEY' if racy else ''}"
                found.append(Case(title, code, racy, launches, None, options, rules=SCOR))
    return found


#: GPUVerify's words; what it requires ends threads that do not have it, what it asserts is not asked.
WORDS = r"""
typedef unsigned int uint;
__device__ inline void rk_leave() { asm volatile("exit;"); }
#define __requires(...) ((__VA_ARGS__) ? (void)0 : rk_leave())
#define __assume(...) __requires(__VA_ARGS__)
#define __assert(...) ((void)0)
#define __invariant(...) ((void)0)
#define __global_invariant(...) ((void)0)
#define __ensures(...) ((void)0)
#define __global_assert(...) ((void)0)
#define __requires_fresh_array(...) ((void)0)
#define __axiom(...)
#define __enabled() true
#define __implies(a, b) (!(a) || (b))
#define synchronize(group) (group).sync()
#undef assert
#define assert(...) __requires(__VA_ARGS__)
"""
#: What kernels get that take a struct by value, of an array of floats.
STRUCTS: dict[str, Callable[[torch.Tensor], dict]] = {
    "fresh_arrays/fail/array": lambda p: {"p": [p] * 42},
    "fresh_arrays/fail/inherit": lambda p: {"p": p},
    "fresh_arrays/fail/struct_char": lambda p: {"p": p.to(torch.int8)},
    "fresh_arrays/fail/struct_float": lambda p: {"p": p},
    "fresh_arrays/fail/struct_nested": lambda p: {"v": {"p": p}},
}
#: Files that GPUVerify fails for a race, or for barrier divergence, on some input: by reading them. Others
#: that it fails have an assertion, a null pointer or a write to constants.
RACY = frozenset((
    "atomics/add_tid", "atomics/add_zero", "cooperative_groups/fail/block_divergence_grid_group",
    "cooperative_groups/fail/divergence_grid_group", "cooperative_groups/fail/divergence_thread_block",
    "cooperative_groups/fail/race", "curand_tests/fail/curand_mtgp32_block_race",
    "curand_tests/fail/curand_mtgp32_race", "curand_tests/fail/curand_race", "curand_tests/fail/init_race",
    "fail_tests/race_on_shared", "fail_tests/shared_int", "fresh_arrays/fail/array",
    "fresh_arrays/fail/inherit", "fresh_arrays/fail/struct_char", "fresh_arrays/fail/struct_float",
    "fresh_arrays/fail/struct_nested", "loop_unwind", "memcpy/fail_arrayofstruct", "memcpy/fail_overstep",
    "memcpy/lentoobig", "memcpy/notexactdiv", "misc/fail/miscfail3", "misc/fail/miscfail4",
    "param_values/value_causing_race", "pointertests/cast", "pointeranalysistests/testbasicaliasing",
    "warpsync/bad_inter_group", "warpsync/broken_shuffle",
))  # fmt: skip


def gpuverify(folder: Path) -> list[Case]:
    """Kernels whose second line has grid and block, scaled down to `BLOCK` threads a block and `THREADS`."""
    found = []
    top = folder / "testsuite" / "CUDA"
    for path in sorted(top.rglob("kernel.cu")):
        code = path.read_text(errors="replace")
        name, label = path.parent.relative_to(top).as_posix(), code.split("\n", 1)[0].lower()
        if name in RACY or "pass" in label:
            found.append(annotated(name, code, name in RACY, code.split("\n")[1].split()))
    return found


def faial(folder: Path) -> list[Case]:
    """Kernels with what test.ml says of them: one block, or two where it looks for races between blocks.

    Left out is what it says of analyses between blocks that find nothing: they do not look within them.
    """
    top = folder / "examples" / "drf"
    text = (top / "test.ml").read_text()
    said: dict[tuple[str, ...], bool] = {}
    for test in re.findall(r'^\s*"([\w.-]+\.cu)",\s*\[(.*?)\],\s*([01])', text, re.MULTILINE):
        words = re.findall(r'"(.*?)"', test[1])
        between, racy = "--grid-level" in words, test[2] == "1"
        keep = [word for word in words if re.match(r"-D|--gridDim|--blockDim", word)]
        keep += [f"-p{value}" for option, value in pairwise(words) if option == "-p"]
        if racy or not between:
            said[(test[0], f"--gridDim={1 + between}", *keep)] = racy
    found = []
    for (name, *words), racy in said.items():
        code = (top / name).read_text()
        head = [word for line in code.split("\n")[:2] if line.startswith("//") for word in line.strip("/ ").split()]
        found.append(annotated(" ".join([name, *words]), code, racy, [*head, *words]))
    return found


def esbmc(folder: Path) -> list[Case]:
    """Kernels of programs that are verified with two or more threads, of as many as the program says."""
    found = []
    top = folder / "regression" / "cuda"
    for path in sorted(top.rglob("main.cu")):
        code, expected = path.read_text(errors="replace"), (path.parent / "test.desc").read_text()
        defined = dict(re.findall(r"^#define\s+(\w+)\s+(\d+)\b", code, re.MULTILINE))
        call = re.search(r"ESBMC_verify_kernel\w*\s*\(\s*\w+(?:<[^>]*>)?\s*,\s*(\w+)\s*,\s*(\w+)", code)
        grid, block = (defined.get(x, x) for x in call.groups()) if call else ("1", "2")
        words = [f"--{k}Dim={n}" for k, n in (("grid", grid), ("block", block)) if n.isdigit()]
        unknown = r"^\s*#include\s*[<\"](call_kernel|cutil|sm_atomic).*$"
        code = re.sub(unknown, "", without(code, "main"), flags=re.MULTILINE)
        found.append(annotated(path.parent.relative_to(top).as_posix(), code, "data race" in expected, words))
    return found


def annotated(name: str, code: str, racy: bool, words: Sequence[str]) -> Case:
    """A kernel without a host program, with the options of a tool that say how it is launched."""
    dims: dict[str, Dims] = {"gridDim": (1,), "blockDim": (256,)}  # the last that is said counts
    fixed, options = {}, []
    for word in words:
        if match := re.match(r"(?://)?--(gridDim|blockDim)=\[?([\d,]+)\]?$", word):
            dims[match[1]] = tuple(int(n) for n in match[2].split(","))
        elif match := re.match(r"-p(\w+)=(\d+)$", word):
            fixed[match[1]] = int(match[2])
        elif word.startswith("-D"):
            options.append(word)
    block = scaled(dims["blockDim"], BLOCK)
    grid = scaled(dims["gridDim"], max(1, THREADS // int(np.prod(block))))
    threads = int(np.prod(grid) * np.prod(block))
    shared = SHARED if re.search(r"extern\s+__shared__", code) else 0
    pointers = re.findall(r"^__device__\s+float\s*\*\s*(\w+)\s*;", code, re.MULTILINE)
    arrays = {pointer: torch.zeros(threads + 4096) for pointer in pointers}

    def launches(module: rawkern.RawModule) -> Iterator[tuple[str, str, Dims, Dims, int, list]]:
        instances = [f"{name}<float>" for name in re.findall(r"template\s*<[^>]*>\s*__global__\s+void\s+(\w+)", code)]
        for kernel in instances or module.kernels:
            signature = module.get_function(kernel).signature
            parameters = [p for p in re.sub(r"^.*?\((.*)\)$", r"\1", signature).split(", ") if p]
            numbers = any(re.search(r"\b(?:int|long|short|char|bool)\b[^*]*$", p) for p in parameters)
            for value, fill in product(VALUES if numbers else VALUES[:1], FILLS):
                number = threads if value == "all" else int(value)
                arguments = [given(p, threads, number, fixed, fill) for p in parameters]
                if name in STRUCTS:
                    arguments = [STRUCTS[name](torch.arange(threads + 4096.0))]
                for pointer, array in arrays.items():
                    module.get_global(pointer, "cpu").view(torch.int64).fill_(array.data_ptr())
                yield f"{value}, {fill}", kernel, grid, block, shared, arguments

    headers = {"cooperative_groups": "cooperative_groups.h", "curand": "curand_kernel.h"}
    includes = "".join(f"#include <{header}>\n" for word, header in headers.items() if word in code)
    source = f'{includes}{WORDS}#line 1 "{name.split(" ")[0]}"\n{code}'
    return Case(
        name, source, racy, launches, None, tuple(options), "grid_group" in code, AS_WRITTEN, [*arrays.values()]
    )


def scaled(dims: Dims, most: int) -> Dims:
    """Dimensions made smaller, the largest first, until there are at most `most` in all."""
    found = list(dims)
    while np.prod(found) > most:
        found[found.index(max(found))] //= 2
    return tuple(found)


TYPES = {"float": torch.float32, "double": torch.float64, "int": torch.int32, "unsigned int": torch.uint32,
         "long long": torch.int64, "unsigned long long": torch.uint64, "short": torch.int16, "char": torch.int8,
         "unsigned char": torch.uint8, "bool": torch.bool}  # fmt: skip


def given(parameter: str, threads: int, number: int, fixed: dict[str, int], fill: str = "ascending") -> object:
    """What a parameter gets: an array of numbers (bytes for structs), the number, or what is fixed."""
    match = re.fullmatch(r"(.*?)(\w+)", parameter)
    if match is None:
        raise NotImplementedError(f"a parameter that is a function or an array: {parameter}")
    before, name = match.groups()
    words = re.split(r"[\s*]+", before)
    kind = " ".join(word for word in words if word not in ("", "const", "volatile", "__restrict__"))
    if "*" not in before:
        return 1.5 if kind in ("float", "double") else fixed.get(name, number)
    unit = 4112 if kind == "curandStateMtgp32" else 960  # a multiple of any small struct's size
    count = (4 * threads // unit + 5) * unit
    numbers = FILLS[fill](torch.arange(count))
    dtype = TYPES.get(re.sub(r"^u(?=[a-z]+\d$)", "unsigned ", kind).rstrip("1234"))
    return (numbers % 251).to(torch.uint8) if dtype is None else numbers.to(dtype)


SETS: dict[str, Callable[[Path], list[Case]]] = {
    "indigo": indigo, "scor": scor, "gpuverify": gpuverify, "faial": faial, "esbmc": esbmc,
}  # fmt: skip


# Runs ---------------------------------------------------------------------------------------------------------


def run(case: Case, orders: Sequence[int | None]) -> Outcome:
    """Every launch of a case under checks, in each order of blocks and warps.

    A launch that does not run is left out, with the first such error, which may be what the set has and rawkern not.
    """
    outcome, start = Outcome(), time.process_time()
    try:
        for (rules, asked), order in product(case.rules.items(), orders):  # each with variables as the source has them
            module = rawkern.RawModule(case.source, options=case.options, enable_cooperative_groups=case.cooperative)
            for name, kernel, grid, block, shared, arguments in case.launches(module):
                try:
                    launch = module.get_function(kernel)[grid, block, shared]
                    with rawkern.check(*case.also, **asked), rawkern.time_limit(SECONDS), ordered(order):
                        launch(*arguments)
                    kinds = set()
                except rawkern.CheckError as error:
                    kinds = {report.error.__name__ for report in error.reports}
                except Exception as error:
                    outcome.failed = outcome.failed or said(error)
                    continue
                outcome.kinds.setdefault(rules or name, set()).update(kinds)
    except Exception as error:
        outcome.failed = said(error)
    outcome.seconds = time.process_time() - start
    return outcome


_work: tuple[Sequence[Case], Sequence[int | None]] = ((), ())  # of a process: launches cannot be sent to another


def _begin(*work: Any) -> None:
    global _work
    _work = work


def _run(number: int) -> Outcome:
    cases, orders = _work
    return run(cases[number], orders)


def said(error: Exception) -> str:
    return short(f"{type(error).__name__}: {str(error).splitlines()[0]}")


def ordered(seed: int | None) -> rawkern.order | nullcontext:
    return nullcontext() if seed is None else rawkern.order(seed)


def count(cases: Sequence[Case], outcomes: dict[str, Outcome], name: str) -> dict[str, list[str]]:
    """The names of cases of one input (or `ANY`), by label and by what was said of them."""
    rows: dict[str, list[str]] = {
        key: [] for key in ("found", "missed", "reported", "silent", "outside", "inside", "not run")
    }
    for case in cases:
        known = outcomes[case.name].kinds
        if not known or name not in (ANY, *known):
            rows["not run"].append(case.name)
            continue
        kinds = set().union(*known.values()) if name == ANY else known[name]
        race, left = bool(kinds & RACES), "OutOfBoundsError" in kinds
        rows[{(1, 1): "found", (1, 0): "missed", (0, 1): "reported", (0, 0): "silent"}[case.racy, race]].append(
            case.name
        )
        if case.outside is not None and case.outside == left:
            rows["outside" if left else "inside"].append(case.name)
    return rows


def version(folder: Path) -> str:
    """The commit of a checkout; of a folder without one, a digest of its CUDA sources."""
    if (folder / ".git").exists():
        command = ["git", "-C", str(folder), "rev-parse", "HEAD"]
        return "commit " + subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.cu")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return f"SHA-256 of the sources {digest.hexdigest()[:16]}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", choices=SETS)
    parser.add_argument("--from", dest="folder", type=Path, required=True, help="a checkout of the set")
    parser.add_argument("--only", default="", help="files whose names match this regular expression; nothing is kept")
    parser.add_argument(
        "--orders", type=int, nargs="*", default=[], help="besides the usual one: seeds of rawkern.order"
    )
    parser.add_argument("--sample", type=int, default=0, help="so many of the files, by chance; nothing is kept")
    parser.add_argument("--jobs", type=int, default=1, help="how many files are checked at a time")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/races-SET.json and .md")
    options = parser.parse_args(arguments)
    if not (cases := SETS[options.set](options.folder)):
        parser.error(f"--from {options.folder}: no files of the set {options.set} there; give the top of its checkout")
    if (options.only or options.sample) and options.keep:
        parser.error("--keep is for whole sets: leave --only and --sample out")
    cases = [case for case in cases if re.search(options.only, case.name)]
    if options.sample:
        cases = random.Random(0).sample(cases, min(options.sample, len(cases)))
    if not cases:
        parser.error(f"--only {options.only}: no file of the set has such a name")
    orders = [None, *options.orders]
    with multiprocessing.get_context("fork").Pool(options.jobs, _begin, (cases, orders), 8) as pool:
        outcomes = dict(zip((case.name for case in cases), pool.imap(_run, range(len(cases))), strict=True))
    report = Report(f"races-{options.set}", f"Published races: {options.set}")
    report.notes.append(f"{len(cases)} files; {version(options.folder)}. Orders: {orders}.")
    inputs = dict.fromkeys(name for outcome in outcomes.values() for name in outcome.kinds)
    show(report, cases, outcomes, [*inputs, ANY] if options.set == "indigo" else [*inputs])
    if options.keep:
        report.write()


def show(report: Report, cases: list[Case], outcomes: dict[str, Outcome], names: Sequence[str]) -> None:
    rows = {name: count(cases, outcomes, name) for name in names}
    table = Table("Races", ("input", "racy", "found", "race-free", "reported", "not run"))
    bounds = Table("Out of bounds", ("input", "leave their memory", "found", "others", "silent"))
    racy, outside = sum(case.racy for case in cases), sum(case.outside is True for case in cases)
    for name, row in rows.items():
        size = {key: len(files) for key, files in row.items()}
        numbers = racy, size["found"], len(cases) - racy, size["reported"], size["not run"]
        table.rows.append((name, *map(str, numbers)))
        numbers = outside, size["outside"], len(cases) - outside, size["inside"]
        bounds.rows.append((name, *map(str, numbers)))
    kept = ("missed", "reported", "not run")
    report.add(table, {name: {key: row[key] for key in kept} for name, row in rows.items()})
    if any(case.outside is not None for case in cases):
        report.add(bounds, {name: {key: len(row[key]) for key in ("outside", "inside")} for name, row in rows.items()})
    lines = Table("Files", ("file", "label", "said"))
    for case in cases:
        text = [f"{key}: {', '.join(where)}" for key in kept
                if (where := [name for name, row in rows.items() if case.name in row[key]])]  # fmt: skip
        if text:
            text += [outcomes[case.name].failed] if outcomes[case.name].failed else []
            lines.rows.append((case.name, "racy" if case.racy else "race-free", "; ".join(text)))
    failed = {name: outcome.failed for name, outcome in outcomes.items() if outcome.failed}
    seconds = sorted(outcome.seconds for outcome in outcomes.values())
    report.notes.append(f"Processor time of a file, compiling included: median {seconds[len(seconds) // 2]:.2f} s.")
    report.add(lines, failed)


if __name__ == "__main__":
    main()
