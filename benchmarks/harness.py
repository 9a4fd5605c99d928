"""What all benchmarks share: contenders timed in turns, hardware and versions recorded, results as JSON and Markdown.

Clocks of shared machines drift, so contenders take turns within each round and ratios are taken round by round. A
contender that fails keeps its row, with the error's text.
"""

from __future__ import annotations

import json
import os
import re
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Any

from benchmarks.machine import machine

TICKS = os.sysconf("SC_CLK_TCK")  # of the system's accounting, per second
SPIN = 10_000_000  # cycles the GPU is kept busy with while the host enqueues what is timed
RESULTS = Path(__file__).resolve().parent / "results"


# Timing -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Timing:
    """Seconds per call of one contender: quartiles over the rounds."""

    median: float
    low: float
    high: float
    calls: int  # per round
    rounds: int
    ratio: float | None = None  # median over the rounds of this contender's time by the baseline's
    error: str = ""


def failed(error: BaseException | str) -> Timing:
    """Keep the row of a contender that did not run."""
    text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    return Timing(float("nan"), float("nan"), float("nan"), 0, 0, None, short(text))


def sample(run: Callable[[], Any], calls: int, finish: Callable[[], Any] | None = None) -> float:
    """Seconds per call of `calls` calls; `finish` (a GPU's synchronization) is not timed."""
    if finish is not None:
        finish()
    start = time.perf_counter()
    for _ in repeat(None, calls):
        run()
    elapsed = time.perf_counter() - start
    if finish is not None:
        finish()
    return elapsed / calls


def gpu_sample(run: Callable[[], Any], calls: int) -> float:
    """Seconds per call on the GPU's clock, with gaps between calls; a waiting kernel hides the host's time."""
    import torch

    from rawkern.base.timing import gpu_seconds

    torch.cuda._sleep(SPIN)
    return gpu_seconds(lambda: sample(run, calls), 1)[0] / calls


def compare(
    contenders: Mapping[str, Callable[[], Any]],
    *,
    baseline: str | None = None,
    rounds: int = 15,
    seconds: float = 0.005,
    most_calls: int = 100_000,
    timer: Callable[[Callable[[], Any], int], float] = sample,
    patience: float = 20.0,
) -> dict[str, Timing]:
    """Time contenders in turns.

    Parameters
    ----------
    contenders : mapping of name to callable
        A callable that raises, at any time, gets a row with its error.
    baseline : str, optional
        The contender that others are compared with.
    rounds : int
        Each contender is timed once per round; the order rotates.
    seconds : float
        A round of one contender takes at least about this long.
    most_calls : int
        Calls of a contender per round, at most (a GPU's launch queue is finite).
    timer : callable
        Seconds per call, given a contender and a number of calls.
    patience : float
        Rounds in which other programs kept a core busy are repeated, for up to this many seconds.
    """
    errors: dict[str, BaseException] = {}
    calls: dict[str, int] = {}
    for name, run in contenders.items():
        try:
            run()
            run()
            if "rawkern.launch.native" in sys.modules:  # what is measured are the launches after the first ones
                sys.modules["rawkern.launch.native"].wait()
            calls[name] = calibrated(run, seconds, most_calls)
        except Exception as error:
            errors[name] = error
    names = list(calls)
    times: dict[str, list[float]] = {name: [] for name in names}
    end = time.monotonic() + patience
    while names and (turn := max(map(len, times.values()))) < rounds:
        taken: dict[str, float] = {}
        before, own = processor_time(), time.process_time()
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            try:
                taken[name] = timer(contenders[name], calls[name])
            except Exception as error:
                errors[name] = error
        after, own = processor_time(), time.process_time() - own
        others = (after[1] - after[0] - before[1] + before[0]) / TICKS - own
        if others > 0.02 and time.monotonic() < end and taken:
            continue
        names = [name for name in names if name in taken]
        for name in names:
            times[name].append(taken[name])
    base = times.get(baseline) if baseline is not None and baseline not in errors else None
    return {
        name: failed(errors[name]) if name in errors else summary(times[name], calls[name], base) for name in contenders
    }


def quiet(limit: float = 20.0, wanted: float = 0.95) -> float:
    """Wait until other programs leave the machine's cores alone, but no longer than `limit` seconds.

    Two threads on two cores of which one is busy measure the scheduler. Returns the idle share of the last look; where
    the system does not tell, 1.
    """
    end = time.monotonic() + limit
    while True:
        before = processor_time()
        time.sleep(0.25)
        after = processor_time()
        total = after[1] - before[1]
        idle = (after[0] - before[0]) / total if total > 0 else 1.0
        if idle >= wanted or time.monotonic() > end:
            return round(idle, 2)


def processor_time() -> tuple[int, int]:
    """Idle and total time of all cores since the start, in the system's ticks."""
    try:
        ticks = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return 0, 0
    return ticks[3] + ticks[4], sum(ticks)


def calibrated(run: Callable[[], Any], seconds: float, most_calls: int) -> int:
    """Number of calls that take about `seconds`."""
    calls = 1
    while calls < most_calls:
        elapsed = sample(run, calls) * calls
        if elapsed >= seconds / 2:
            return max(1, min(most_calls, round(calls * seconds / elapsed)))
        calls *= 4
    return most_calls


def summary(times: Sequence[float], calls: int = 1, base: Sequence[float] | None = None) -> Timing:
    """Median and quartiles; the ratio is the median of ratios within a round, which drift does not touch."""
    low, high = (times[0], times[0]) if len(times) < 2 else statistics.quantiles(times, n=4)[::2]
    ratio = statistics.median(t / b for t, b in zip(times, base, strict=True)) if base else None
    return Timing(statistics.median(times), low, high, calls, len(times), ratio)


# Results ------------------------------------------------------------------------------------------------------


@dataclass
class Table:
    """Rows of text under a heading; `note` says what was measured."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    note: str = ""

    def markdown(self) -> str:
        lines = [f"## {self.title}", ""]
        if self.note:
            lines += [self.note, ""]
        lines.append("| " + " | ".join(self.columns) + " |")
        lines.append("| " + " | ".join("---" for _ in self.columns) + " |")
        lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in self.rows]
        return "\n".join(lines)


@dataclass
class Report:
    """One benchmark's results: numbers as they were taken, and tables for reading."""

    name: str
    title: str
    tables: list[Table] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    idle: list[float] = field(default_factory=list)

    def settle(self, limit: float = 20.0) -> None:
        """Wait for a quiet machine before a measurement; how idle it was goes into the results."""
        self.idle.append(quiet(limit))

    def add(self, table: Table, numbers: Any) -> None:
        """Add a table and its raw numbers; it is shown at once."""
        self.tables.append(table)
        self.data[table.title] = plain(numbers)
        print(clean(table.markdown()), end="\n\n", flush=True)

    def write(self) -> None:
        """Write ``results/NAME.json`` and ``results/NAME.md``."""
        RESULTS.mkdir(exist_ok=True)
        facts = machine()
        if self.idle:
            facts["idle cores before a table"] = f"{min(self.idle):.0%} or more"
        content = {"title": self.title, "machine": facts, "notes": self.notes, "results": self.data}
        (RESULTS / f"{self.name}.json").write_text(clean(json.dumps(content, indent=1)) + "\n")
        lines = [f"# {self.title}", "", "; ".join(f"{key}: {value}" for key, value in facts.items()), ""]
        for note in self.notes:
            lines += [note, ""]
        lines += [part for table in self.tables for part in (table.markdown(), "")]
        (RESULTS / f"{self.name}.md").write_text(clean("\n".join(lines)))
        print(f"written: benchmarks/results/{self.name}.json, {self.name}.md")


def plain(value: Any) -> Any:
    """Make of timings what JSON has."""
    if isinstance(value, Timing):
        return {k: v for k, v in asdict(value).items() if v is not None and v != "" and v == v}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def clean(text: str) -> str:
    """Take out what tells of one computer: its name, and folders of absolute paths."""
    host = socket.gethostname()
    text = re.sub(r"(?<![\w/.:])/(?:[\w.+-]+/)+", "", text)
    return re.sub(rf"\b{re.escape(host)}\b", "host", text) if len(host) > 3 else text


def short(text: str, length: int = 160) -> str:
    """The first line of an error's text."""
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 3] + "..."


def scaled(seconds: float) -> str:
    """A duration with a unit that fits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)):
        if seconds >= size or unit == "ns":
            return f"{seconds / size:.3g} {unit}"
    return ""


def cells(timing: Timing) -> tuple[str, str, str]:
    """Median, quartiles and ratio as text; an error in their place."""
    if timing.error:
        return timing.error, "", ""
    ratio = f"{timing.ratio:.{2 if timing.ratio >= 0.1 else 4}f}" if timing.ratio is not None else ""
    return scaled(timing.median), f"{scaled(timing.low)} to {scaled(timing.high)}", ratio


def timing_table(
    title: str, timings: Mapping[str, Timing], note: str = "", goal: Mapping[str, str] | None = None
) -> Table:
    """Contenders with medians, quartiles, ratios and, where there is one, a goal."""
    columns = ("", "median", "quartiles", "ratio") + (("goal",) if goal else ())
    table = Table(title, columns, note=note)
    for name, timing in timings.items():
        table.rows.append((name, *cells(timing), *((goal.get(name, ""),) if goal else ())))
    return table


def python_environment(cache: str | None = None) -> dict[str, str]:
    """Environment for a fresh Python process: bytecode is kept, as after an installation."""
    environment = {
        k: v for k, v in os.environ.items() if k not in ("PYTHONDONTWRITEBYTECODE", "PYTHONPROFILEIMPORTTIME")
    }
    root = str(RESULTS.parent.parent)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    if cache is not None:
        environment["RAWKERN_CACHE_DIR"] = cache
    return environment


def fresh(code: str, environment: Mapping[str, str], *, python: str = sys.executable, limit: float = 120) -> Any:
    """Run code in a fresh process; its last line of output is JSON."""
    done = subprocess.run(
        [python, "-c", code],
        env=dict(environment),
        capture_output=True,
        text=True,
        timeout=limit,
        cwd=RESULTS.parent.parent,
    )
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise RuntimeError(lines[-1] if lines else f"exit status {done.returncode}")
    return json.loads(done.stdout.strip().splitlines()[-1])
