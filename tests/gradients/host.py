"""Many random kernels at once, on the host: derived in double, compiled by g++ and compared with finite differences.

``python -m tests.gradients.host --count 2000``. A hundred times faster than one by one on the CPU engine. Each kernel runs as it stands (its floats as doubles), as it
was understood, and backwards.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import re
import subprocess
import sys
import tempfile
from collections import ChainMap, Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

import rawkern
from rawkern.gradients.derive import derive, forward
from rawkern.gradients.index.values import at_most
from rawkern.gradients.launching import begin, times_of, trips_of
from rawkern.gradients.reading.reader import Launched
from rawkern.gradients.reading.syntax import Where
from tests.gradients.random_programs import program_of

TYPES = {"x": "double*", "w": "double*", "at": "int*", "y": "double*", "z": "double*", "n": "int", "m": "int"}
BEFORE = ("y_before", "z_before")  # outputs as they were, where a kernel overwrites them in place
PLACES = (*TYPES, *BEFORE)  # of arguments; those of gradients follow
PREFIXES = {"size": "size_", "blocks": "blocks_"}  # of numbers of a backward
ROUNDINGS = 8  # that the last digit of an output is off
STEP, TOLERANCE = 1e-6, 2e-6
ROOM = 1 << 11  # numbers that a block can have sums of


def widened(source: str) -> str:
    """A kernel's text with doubles for floats."""
    source = re.sub(
        r"\b(sin|cos|tanh|exp|fmax|fmin|fabs|sqrt|fma)f\(", r"\1(", source.replace("make_float", "make_double")
    )
    source = re.sub(r"\b(float|half)(\d?)\b", r"double\2", source)
    return re.sub(r"(?<=[\d.])f\b", "", source)


def extents(source: str) -> str:
    """A text whose dynamic shared memory has an extent."""
    return re.sub(
        r"extern __shared__ (?:__align__\(\d+\) )?([\w ]+) (\w+)\[\];",
        r"alignas(16) __shared__ \1 \2[1 << 15];",
        source,
    )


def programs(seeds: Iterable[int] | Mapping[int, Any]) -> tuple[dict[int, tuple], dict[int, str]]:
    """The sources of each seed's kernel, or of programs, and why others are not supported: a launch may not be, too."""
    found, refused = {}, dict[int, str]()
    for seed in seeds:
        program = seeds[seed] if isinstance(seeds, Mapping) else program_of(seed)
        where = Where("a random program", "program", str)
        launched = Launched(program.block, tuple(n == 1 for n in program.grid), program.shared_mem)  # type: ignore[arg-type]
        common = {"where": where, "launched": launched, "double": True}
        try:
            text = derive(program.source, "program", **common)
            numbers = dict(zip(TYPES, program.arguments(), strict=True))
            if not all(at_most(low, high, numbers, program.grid) for low, high in text.assumed):
                text = derive(program.source, "program", assume=False, **common)
            trips_of(text, numbers, program.grid)
            text = _resized(text, program, seed, common) or text
        except (rawkern.NotDifferentiable, rawkern.LaunchError) as error:
            said = str(error)
            refused[seed] = (said.partition("derived backward: ")[2] or f"a launch: {said}").partition(";")[0]
            continue
        found[seed] = (
            widened(program.source),
            forward(program.source, "program", updated=text.updated, tape=text.taped, **common),
            text,
            program,
        )
    return found, refused


def _resized(text, program, seed: int, common: Mapping[str, Any]):
    """For two seeds of three, the same for blocks of another number of threads; None where that may matter.

    In every other of those, a row that several loops read is in shared memory.
    """
    threads = (0, 32, 96)[seed % 3]
    if not threads or text.assumed:
        return None
    try:
        return derive(program.source, "program", threads=threads, stage=seed // 3 % 2 == 0, **common)
    except rawkern.NotDifferentiable:
        return None


def sizes(shape) -> str:
    return ", ".join(map(str, shape))


def _numbers(text, program, seed: int) -> tuple[dict[str, int], tuple[int, ...]]:
    """What a backward is told of sizes, and its grid: fewer blocks where those have sums or threads several elements."""
    args = dict(zip(TYPES, program.arguments(), strict=True))
    numbers = {f"size_{n}": args[n].numel() for n in ("x", "w")}
    numbers |= {f"blocks_{a}": blocks for a, blocks in zip("xyz", program.grid, strict=True)}
    numbers |= trips_of(text, args, program.grid)
    each = elements(text, seed)
    return numbers, (1 + seed % 2, 1, 1) if text.sums else (-(-program.grid[0] // each), *program.grid[1:])


def elements(text, seed: int) -> int:
    """How many elements a thread has."""
    return min(1 + seed % 4, text.each)


def _calls(text, program, seed: int) -> str:
    cases = []
    numbers, grid = _numbers(text, program, seed)
    flags = [(seed // 2 + k) % 4 > 0 and numbers[f"size_{n}"] <= ROOM for k, (n, _) in enumerate(text.sums)]
    times = times_of(text, dict(zip(TYPES, program.arguments(), strict=True)), program.grid)
    called = (
        "original::program",
        "understood::program_forward",
        f"backward::{text.instance(flags, (True,) * len(text.handed), elements(text, seed), times)}",
    )
    for k, name in enumerate(called):
        given = [("value", n) for n in [*TYPES, *text.before][: None if k else len(TYPES)]]
        args = [
            f"*(int*)args[{PLACES.index(n)}]" if kind == "value" and TYPES.get(n) == "int"
            else str(numbers[PREFIXES.get(kind, "") + n]) if kind in (*PREFIXES, "iterations")
            else f"Pointer{{args[{memory(text).index((kind, n))}]}}"
            for kind, n in (given if k < 2 else text.parameters)
        ]  # fmt: skip
        blocks, block = (grid, text.block) if k == 2 else (program.grid, program.block)
        cases.append(
            f"if (which == {k}) launch({{{sizes(blocks)}}}, {{{sizes(block)}}}, [&] {{ {name}({', '.join(args)}); }});"
        )
    return " ".join(cases)


def memory(text) -> list[tuple[str, str]]:
    """What the pointers are that a program is called with."""
    tapes = [("tape", n) for n in text.tapes]
    return [*(("value", n) for n in PLACES), *(("grad", n) for n in PLACES), ("copy", "y"), ("copy", "z"), *tapes]


PLACE = r"&?((?:grad_|(?=sum_))(s\d|l\d|sum_)?\w*(?:\[[^\[\]]*\])+(?:\.\w)?)"


def watched(source: str) -> str:
    """A backward's text in which `host.h` sees which elements of gradients are touched, and how."""

    def plain(m: re.Match[str]) -> str:
        cleared = re.match(r"grad_([yz]|\w+_before)\W", m[2])  # as often as the forward sets it
        return f"{m[1]}*plain(&{m[2]}, {int(bool(m[3]))}, {int(m[4] == '=' and not cleared)}) {m[4]} "

    def atomic(m: re.Match[str]) -> str:
        return f"{m[1]}(atomic(&{m[2]}, {int(bool(m[3]))}), "

    source = re.sub(rf"(?m)^( +(?:if \(sums_\w+\) )?){PLACE} (\+?=) ", plain, source)
    return re.sub(rf"(atomicAdd|warp_add)\({PLACE}, ", atomic, source)


def built(found: dict[int, tuple], folder: str) -> ctypes.CDLL:
    """All of them in one library."""
    parts = ['#include "host.h"']
    for seed, (original, understood, text, program) in found.items():
        spaces = {"original": original, "understood": understood, "backward": watched(text.source)}
        body = "\n".join(f"namespace {name} {{\n{part}\n}}" for name, part in spaces.items())
        body = re.sub(r"#include <\w+\.h>", "", extents(body.replace('extern "C" ', "")))
        parts.append(
            f"namespace p{seed} {{\n{body}\nvoid run(int which, void** args) {{ {_calls(text, program, seed)} }}\n}}"
        )
        parts.append(f'extern "C" void run_{seed}(int which, void** args) {{ p{seed}::run(which, args); }}')
    source, library = Path(folder, "programs.cpp"), Path(folder, "programs.so")
    source.write_text("\n".join(parts))
    command = [
        "g++",
        "-O0",
        "-w",
        "-fPIC",
        "-shared",
        "-std=c++17",
        "-fno-gnu-unique",  # or libraries of one process share what is static in a template of the same name
        f"-I{Path(__file__).parent}",
        str(source),
        "-o",
        str(library),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[:3000])
    loaded = ctypes.CDLL(str(library))
    loaded.unfinished_launch.restype = ctypes.c_char_p
    return loaded


class UnfinishedLaunch(Exception):
    """A launch came to a fault, a trap or an assumption that does not hold."""


def check(library, text, seed: int, program) -> str | None:
    """What is wrong with a program; None if nothing is."""
    try:
        return _compared(library, text, seed, program)
    except UnfinishedLaunch as error:
        return str(error)


def _compared(library, text, seed: int, program) -> str | None:
    run, races = library[f"run_{seed}"], library.races
    args = [a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in program.arguments()]
    draw = torch.Generator().manual_seed(seed)
    rand = lambda t: torch.randn(t.shape, dtype=torch.float64, generator=draw)  # noqa: E731
    args += [
        rand(args[k]) if n in text.before else torch.zeros_like(args[k]) for k, n in zip((3, 4), BEFORE, strict=True)
    ]
    along, weights = {k: rand(args[k]) for k in (0, 1)}, (rand(args[3]), rand(args[4]))
    along |= {PLACES.index(n): rand(args[PLACES.index(n)]) for n in text.before}

    times = trips_of(text, dict(zip(TYPES, args, strict=False)), program.grid)
    threads = math.prod((*program.grid, *program.block))
    tapes = [math.prod(times[n] for n in loops) * threads for _, loops in text.tapes.values()]

    def call(which, values, grads=()):
        numbers = {k: ctypes.c_int(values[k]) for k in (5, 6)}
        pointers = [ctypes.addressof(numbers[k]) if k in numbers else v.data_ptr() for k, v in enumerate(values)]
        pointers += [g.data_ptr() if g is not None else 0 for g in grads or [None] * len(PLACES)]
        more = [values[PLACES.index(n)].clone() for n in BEFORE] + [torch.empty(n, dtype=torch.float64) for n in tapes]
        pointers += [t.data_ptr() for t in more]
        run(which, (ctypes.c_void_p * len(pointers))(*pointers))
        if failure := library.unfinished_launch():
            raise UnfinishedLaunch(
                f"{('the kernel', 'what was understood', 'the backward')[which]}: {failure.decode()}"
            )

    def outputs(which, times):
        moved = [v + times * along[k] if k in along else v for k, v in enumerate(args)]
        moved[3], moved[4] = moved[7].clone(), moved[8].clone()
        call(which, moved)
        return moved[3], moved[4]

    first, second = outputs(0, 0.0), outputs(1, 0.0)
    if not all(torch.allclose(a, b, rtol=1e-9, atol=1e-12) for a, b in zip(first, second, strict=True)):
        return f"not understood: {max(float((a - b).abs().max()) for a, b in zip(first, second, strict=True))}"
    numbers = dict(zip(PLACES, args, strict=True))
    start = [
        begin(numbers[n], text.sets[n].certain(numbers, program.grid) if n in text.sets else None, float("nan"))
        for n in ("x", "w")
    ]
    given = [w.clone() for w in weights]
    old = [w.clone() if n not in text.rest else torch.zeros_like(w) for w, n in zip(weights, BEFORE, strict=True)]
    grads = [*start, None, *given, None, None, *old]
    call(2, args, grads)
    for k, n in enumerate(BEFORE):
        if n in text.rest:
            old[k] += given[k]
    if races():
        return "two threads meet in an element without an atomic operation"
    for n, of in text.handed:
        first, end = text.sets[n].certain(numbers, program.grid)
        k, whole = PLACES.index(n), grads[PLACES.index(of)] if of in ("x", "w") else weights[of == "z"]
        if first == 0 and end >= args[k].numel() == whole.numel() and not torch.equal(grads[k], whole):
            return f"the gradient of {n} is not that of {of}"
    derived = sum(float((grads[k] * v).sum()) for k, v in along.items())
    size = max(sum(float((grads[k] * v).abs().sum()) for k, v in along.items()), 1e-6)
    measured = 0.0
    for step in (STEP, STEP / 16, STEP * 16, STEP / 256):
        above, below = outputs(0, step), outputs(0, -step)
        measured = sum(float(((a - b) * w).sum()) for a, b, w in zip(above, below, weights, strict=True)) / (2 * step)
        largest = sum(float((a * w).abs().sum()) for a, w in zip(above, weights, strict=True))
        rounded = ROUNDINGS * sys.float_info.epsilon * largest / step  # what the outputs' own rounding makes of it
        if abs(derived - measured) <= TOLERANCE * max(size, abs(measured)) + 1e-9 / step * 1e-6 + rounded:
            return None
    return f"derived {derived!r}, measured {measured!r}"


def outcomes(seeds: Iterable[int] | Mapping[int, Any]) -> tuple[int, dict[int, str], dict[int, str]]:
    """How many are right, which are not supported for which reason, and which are wrong."""
    found, refused = programs(seeds)
    wrong: dict[int, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        library = built(found, folder)
        for seed, (_, _, text, program) in found.items():
            said = check(library, text, seed, program)
            if said is not None:
                wrong[seed] = said
    return len(found) - len(wrong), refused, wrong


def _judged(seeds: Iterable[int]) -> tuple[dict[int, str], dict[int, str]]:
    """Which are not supported and which are wrong, as those are that raise any other error."""
    try:
        return outcomes(seeds)[1:]
    except Exception as error:
        each = [*seeds]
        if len(each) == 1:
            return {}, {each[0]: f"{type(error).__name__}: {error}"}
        refused, wrong = zip(*(_judged([seed]) for seed in each), strict=True)
        return dict(ChainMap(*refused)), dict(ChainMap(*wrong))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=2000)
    options = parser.parse_args()
    every = range(options.first, options.first + options.count)
    kinds: dict[str, Counter[str]] = {}
    reasons: Counter[str] = Counter()
    failed: list[int] = []
    for start in range(0, len(every), 50):
        batch = every[start : start + 50]
        refused, wrong = _judged(batch)
        for seed, said in wrong.items():
            print(f"seed {seed}: {said}", flush=True)
        for seed in batch:
            how = "wrong" if seed in wrong else "not supported" if seed in refused else "right"
            kinds.setdefault(type(program_of(seed)).__name__, Counter())[how] += 1
        failed += wrong
        reasons.update(refused.values())
    for kind, found in sorted([*kinds.items(), ("all", sum(kinds.values(), Counter()))]):
        print(f"{kind}: " + ", ".join(f"{found[how]} {how}" for how in ("right", "not supported", "wrong")))
    for reason, times in reasons.most_common():
        print(f"{times:4} {reason}")
    print(f"wrong: {failed}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
