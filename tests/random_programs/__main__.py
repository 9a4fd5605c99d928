"""python -m tests.random_programs: run random programs on the CPU engine and compare them with what g++ makes of them."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter, defaultdict

import rawkern  # noqa: F401  (loaded before the workers fork)

from . import isolated
from .engine import Failure
from .programs import generate
from .reduce import reduce
from .reference import PRELUDE, available


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.random_programs", description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="programs (default 200)")
    parser.add_argument(
        "--seed", type=int, help="of the first program, the next have the numbers after it (default: drawn)"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time (default 1)")
    parser.add_argument("--batch", type=int, default=25, help="programs that are compiled together (default 25)")
    parser.add_argument("--limit", type=float, default=60, help="seconds for one step of a program (default 60)")
    parser.add_argument(
        "--check", action="store_true", help="run every program under rawkern.check() too, not one in 4"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: compare a GPU's results too")
    parser.add_argument(
        "--reduce", metavar="N", type=int, default=0, help="make the first N failures of each kind small"
    )
    parser.add_argument("--show", action="store_true", help="print the program of --seed and do nothing else")
    options = parser.parse_args()
    seed = random.randrange(10**9) if options.seed is None else options.seed
    if options.show:
        print(PRELUDE + generate(seed).listing().text)
        return 0
    if options.device == "cpu" and not available():
        parser.error("there is no g++, which makes the reference")
    print(f"seeds {seed} to {seed + options.count - 1}", flush=True)
    return run(options, seed)


def run(options: argparse.Namespace, seed: int) -> int:
    start, seconds, finished = time.monotonic(), Counter(), 0

    def done(count: int, took: dict[str, float]) -> None:
        nonlocal finished
        finished += count
        seconds.update(took)
        if sys.stderr.isatty():
            print(f"{finished} of {options.count}", end="\r", file=sys.stderr)

    seeds = range(seed, seed + options.count)
    batches = (seeds[k : k + options.batch] for k in range(0, len(seeds), options.batch))
    settings = {"check_all": options.check, "device": options.device}
    found: dict[str, list[Failure]] = defaultdict(list)
    for failure in isolated.run_all(batches, options.jobs, options.limit, done, **settings):
        print(f"seed {failure.seed}: {failure.kind}: {(failure.detail.splitlines() or [''])[0][:200]}", flush=True)
        found[failure.manner].append(failure)
    for failures in found.values():
        for failure in failures[: options.reduce]:
            print(reduce(failure, options.limit, settings).listing().text, flush=True)
    took = time.monotonic() - start
    for manner, failures in sorted(found.items(), key=lambda item: -len(item[1])):
        print(f"{len(failures):6} {manner}: seeds {', '.join(str(f.seed) for f in failures[:8])}")
    each = ", ".join(f"{what} {1000 * s / max(finished, 1):.0f}" for what, s in seconds.items())
    print(f"{finished} programs in {took:.0f} s, {sum(map(len, found.values()))} failures; ms of each: {each}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
