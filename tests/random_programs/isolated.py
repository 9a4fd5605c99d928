"""Work in forked processes, which may crash or hang without harm. The parent never launches a kernel itself."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path

from .batch import Batch
from .engine import Failure

_context = multiprocessing.get_context("fork")


class Worker:
    """A process that runs one batch, and what it was last at."""

    def __init__(self, seeds: Sequence[int], limit: float, settings: dict):
        self.seeds, self.limit, self.settings = list(seeds), limit, settings
        self.at, self.since = (self.seeds[0], "start"), time.monotonic()
        self.connection, theirs = _context.Pipe(False)
        self.process = _context.Process(target=_work, args=(theirs, self.seeds, settings))
        self.process.start()
        theirs.close()

    def overdue(self) -> bool:
        return time.monotonic() - self.since > self.limit

    def lost(self) -> tuple[Failure, list[int]]:
        """How the process ended before its time, and the programs that are left."""
        hang = self.process.is_alive() and self.overdue()
        if hang:
            self.process.kill()
        self.process.join()
        code, (seed, step) = self.process.exitcode or 0, self.at
        how = "hang" if hang else signal.Signals(-code).name if code < 0 else f"exit {code}"
        rest = self.seeds[self.seeds.index(seed) + 1 :]
        return Failure(seed, f"{'' if step == 'engine' else step + ': '}{how}", f"while at: {step}"), rest


def _work(connection: Connection, seeds: Sequence[int], settings: dict) -> None:
    folder = tempfile.mkdtemp(prefix="rawkern-random-")
    os.environ["RAWKERN_CACHE_DIR"] = str(Path(folder, "cache"))
    sys.stdin.close()
    connection.send(("folder", folder))
    batch = Batch(seeds, Path(folder), at=lambda seed, step: connection.send(("at", (seed, step))), **settings)
    for failure in batch.failures():
        connection.send(("failure", failure))
    shutil.rmtree(folder, ignore_errors=True)
    connection.send(("done", dict(batch.seconds)))


def run_all(
    batches: Iterator[Sequence[int]], jobs: int, limit: float, done: Callable[[int, dict], None], **settings
) -> Iterator[Failure]:
    """Run batches in `jobs` processes at a time; `limit` seconds are what one program may take at most."""
    workers: dict[Connection, Worker] = {}
    folders: dict[Connection, str] = {}
    rest: list[Sequence[int]] = []
    while True:
        while len(workers) < jobs and (seeds := rest.pop() if rest else next(batches, None)):
            worker = Worker(seeds, limit, settings)
            workers[worker.connection] = worker
        if not workers:
            return
        ready = wait(list(workers), timeout=1)
        for connection, worker in list(workers.items()):
            ended, over = False, connection not in ready and worker.overdue()
            if connection in ready:
                try:
                    what, value = connection.recv()
                except EOFError:
                    over = True
                else:
                    worker.since = time.monotonic()
                    if what == "folder":
                        folders[connection] = value
                    elif what == "at":
                        worker.at = value
                    elif what == "failure":
                        yield value
                    else:
                        ended = True
                        done(len(worker.seeds), value)
                        worker.process.join()
            if over:
                failure, left = worker.lost()
                yield failure
                done(len(worker.seeds) - len(left), {})
                if left:
                    rest.append(left)
                shutil.rmtree(folders.get(connection, ""), ignore_errors=True)
            if over or ended:
                del workers[connection]
                connection.close()
