"""A batch of programs from their seeds: compiled together, run one by one, compared."""

from __future__ import annotations

import contextlib
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from .engine import Failure, Modules, outcome
from .launches import difference
from .programs import generate
from .reference import InvalidProgramError, Reference, available
from .tree import Listing

CHECKED = 4  # one program in so many runs checked as well
Results = dict[str, np.ndarray]


def _children() -> float:
    """CPU seconds of the processes that this one has started."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Batch:
    """Programs with their reference; `seconds` says what took how long.

    Parameters
    ----------
    seeds, folder
        The programs, and where the reference is built.
    check_all
        Run each program checked too, not only one in `CHECKED`.
    device
        "cuda": run each on a GPU too, and compare that; the reference is then optional.
    at
        Called with a seed and what is done with it, before each step that may end the process.
    listings
        The programs of the seeds, if they are not to be generated.
    flags
        More of them for g++.
    """

    def __init__(
        self,
        seeds: Sequence[int],
        folder: Path,
        check_all: bool = False,
        device: str = "cpu",
        at: Callable[[int, str], None] = lambda seed, step: None,
        listings: dict[int, Listing] | None = None,
        flags: Sequence[str] = (),
    ):
        self.folder, self.check_all, self.device, self.at, self.flags = folder, check_all, device, at, flags
        self.seconds: Counter[str] = Counter()
        self.programs = self._timed(
            "generate", lambda: [listings[seed] if listings else generate(seed).listing() for seed in seeds]
        )

    def _timed(self, what: str, work):
        start = time.process_time()
        try:
            return work()
        finally:
            self.seconds[what] += time.process_time() - start

    def failures(self) -> Iterator[Failure]:
        """Run all; yields those that fail, the generator's own defects among them."""
        modules = Modules(self.programs)
        try:
            self._timed("nvrtc", modules.compile)
        except Exception as error:
            if len(self.programs) == 1:
                yield Failure(self.programs[0].seed, type(error).__name__, str(error))
                return
            modules = None  # one of them is at fault, which shows when each is compiled alone
        together = None
        if available():
            with contextlib.suppress(InvalidProgramError):  # one of them again
                together = self._reference(self.programs)
        for program in self.programs:
            try:
                want = self._want(together or self._reference([program]), program) if available() else None
            except InvalidProgramError as error:
                yield Failure(program.seed, "generator: not defined", str(error))
                continue
            yield from self._compare(modules or Modules([program]), program, want)

    def _reference(self, programs: Sequence[Listing]) -> Reference:
        self.at(programs[0].seed, "g++")
        start = _children()
        try:
            return Reference(programs, self.folder, self.flags)
        finally:
            self.seconds["g++"] += _children() - start

    def _want(self, reference: Reference, program: Listing) -> Results:
        """What both orders of the threads give."""
        self.at(program.seed, "reference")
        want, other = self._timed("reference", lambda: [reference.run(program, back) for back in (False, True)])
        wrong = difference(other, want, program)
        if wrong:
            raise InvalidProgramError(f"the order of the threads matters: {wrong}")
        return want

    def _compare(self, modules: Modules, program: Listing, want: Results | None) -> Iterator[Failure]:
        if self.device != "cpu":
            self.at(program.seed, self.device)
            found = self._timed(self.device, lambda: outcome(modules, program, want, self.device))
            if isinstance(found, Failure):
                yield found
                if want is None:
                    return
            want = want or found
        self.at(program.seed, "engine")
        found = self._timed("engine", lambda: outcome(modules, program, want))
        if isinstance(found, Failure):
            yield found
        elif self.check_all or program.seed % CHECKED == 0:
            self.at(program.seed, "checked")
            found = self._timed("checked", lambda: outcome(modules, program, want, checked=True))
            if isinstance(found, Failure):
                yield found
