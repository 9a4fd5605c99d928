"""python -m tests.random_programs: run random programs on the CPU engine and compare them with what g++ makes of them."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import rawkern  # noqa: F401  (loaded before the workers fork)

from . import isolated
from .engine import Failure
from .programs import generate
from .reduce import reduce
from .reference import PRELUDE, available
from .tree import Listing


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.random_programs", description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="programs (default 200)")
    parser.add_argument(
        "--seed", type=int, help="of the first program, the next have the numbers after it (default: drawn)"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time (default 1)")
    parser.add_argument("--batch", type=int, default=25, help="programs that are compiled together (default 25)")
    parser.add_argument("--limit", type=float, default=60, help="seconds for one step of a program (default 60)")
    parser.add_argument("--check", action="store_true", help="run each program under rawkern.check() too, not one in 4")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: compare a GPU's results too")
    parser.add_argument(
        "--reduce", metavar="N", type=int, default=0, help="make the first N failures of each kind small"
    )
    parser.add_argument(
        "--write", metavar="FOLDER", type=Path, help="write these to a folder, in place of printing them"
    )
    parser.add_argument("--show", action="store_true", help="print the program of --seed and do nothing else")
    parser.add_argument("files", nargs="*", type=Path, help="run programs that --write has written")
    options = parser.parse_args()
    if options.device == "cpu" and not available():
        parser.error("there is no g++, which compiles the reference")
    seed = random.randrange(10**9) if options.seed is None else options.seed
    if options.show:
        print(PRELUDE + generate(seed).listing().text)
        return 0
    if options.files:
        programs = [Listing.read(path) for path in options.files]
        return Run(options).all([[p.seed] for p in programs], {p.seed: p for p in programs})
    print(f"seeds {seed} to {seed + options.count - 1}", flush=True)
    seeds = range(seed, seed + options.count)
    return Run(options).all([seeds[k : k + options.batch] for k in range(0, len(seeds), options.batch)])


class Run:
    """What has been run so far, and what was found."""

    def __init__(self, options: argparse.Namespace):
        self.options, self.start = options, time.monotonic()
        self.settings = {"check_all": options.check, "device": options.device}
        self.seconds: Counter[str] = Counter()
        self.finished = 0
        self.found: dict[str, list[Failure]] = defaultdict(list)

    def all(self, batches: Sequence[Sequence[int]], listings: dict[int, Listing] | None = None) -> int:
        """Run batches, made of their seeds or given; returns the exit status."""
        failures = isolated.run_all(
            iter(batches), self.options.jobs, self.options.limit, self.done, listings=listings, **self.settings
        )
        try:
            for failure in failures:
                kind = "unsupported" if failure.unsupported else failure.kind
                print(f"seed {failure.seed}: {kind}: {(failure.detail.splitlines() or [''])[0][:200]}", flush=True)
                self.found[failure.manner].append(failure)
            for alike in [] if listings else self.found.values():
                for failure in alike[: self.options.reduce]:
                    self.reduce(failure)
        except KeyboardInterrupt:
            print("stopped")
        self.sum_up()
        return 1 if self.found.keys() - {"unsupported"} else 0

    def done(self, count: int, took: dict[str, float]) -> None:
        self.finished += count
        self.seconds.update(took)
        if sys.stderr.isatty():
            print(f"{self.finished} programs", end="\r", file=sys.stderr)

    def reduce(self, failure: Failure) -> None:
        program = isolated.apart(reduce, failure, self.options.limit, self.settings).listing()
        if self.options.write:
            self.options.write.mkdir(parents=True, exist_ok=True)
            program.write(self.options.write / f"{failure.seed}.cu")
        else:
            print(program.text, flush=True)

    def sum_up(self) -> None:
        for manner, alike in sorted(self.found.items(), key=lambda item: -len(item[1])):
            print(f"{len(alike):6} {manner}: seeds {', '.join(str(f.seed) for f in alike[:8])}")
        took, unsupported = time.monotonic() - self.start, len(self.found.get("unsupported", ()))
        failures = sum(map(len, self.found.values())) - unsupported
        each = ", ".join(f"{what} {1000 * s / max(self.finished, 1):.0f}" for what, s in self.seconds.items())
        print(
            f"{self.finished} programs in {took:.0f} s, {failures} failures, {unsupported} unsupported; ms of CPU time for each: {each}"
        )


if __name__ == "__main__":
    sys.exit(main())
