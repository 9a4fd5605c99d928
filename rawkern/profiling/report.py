"""Reports of profiles."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

from rawkern.profiling import html, text, trace
from rawkern.profiling.comparison import Comparison, compared
from rawkern.profiling.counted import Counted, Launches
from rawkern.profiling.counters import NAMES
from rawkern.profiling.devices import Gpu
from rawkern.profiling.findings import Finding, findings
from rawkern.profiling.timing import Timed

_WRITERS: dict[str, Callable[[dict[str, Any]], str]] = {
    ".html": html.page,
    ".json": lambda data: json.dumps(data, indent=1),
    ".csv": text.rows,
    ".trace.json": trace.page,
}


def _data(old: Any) -> dict[str, Any]:
    if isinstance(old, Report):
        return old.as_dict()
    found = old
    if isinstance(old, (str, os.PathLike)):
        with open(old, encoding="utf-8") as file:
            found = json.load(file)
    if not (isinstance(found, dict) and found.get("version") == 1 and "launches" in found):
        raise ValueError(
            "old is not a report of this version; pass a report, its as_dict(), or a file that save() wrote"
        )
    return found


class Report:
    """The counts of a profile's launches; made by `rawkern.profile`."""

    def __init__(self, gpu: Gpu | None, sample: int | None = None) -> None:
        self.gpu, self.sample = gpu, sample
        self.launches: list[Counted] = []

    def add(self, launch: Counted) -> None:
        """Add a launch."""
        self.launches.append(launch)

    def sampled(self, grid: tuple[int, int, int]) -> int | None:
        """How many blocks of such a launch to count, None for all."""
        blocks = grid[0] * grid[1] * grid[2]
        return self.sample if self.sample is not None and self.sample < blocks else None

    def __len__(self) -> int:
        return len(self.launches)

    def __iter__(self) -> Iterator[Launches]:
        """The kernels in the order of their first launches.

        Yields
        ------
        Launches
            The launches of one kernel.
        """
        return (self[name] for name in dict.fromkeys(launch.kernel for launch in self.launches))

    def __getitem__(self, kernel: str) -> Launches:
        """All launches of a kernel.

        Parameters
        ----------
        kernel : str
            Its name; with template arguments one instance, without them all instances.

        Returns
        -------
        Launches
            The launches, with the sums of their counters.

        Raises
        ------
        KeyError
            No launch of it was profiled; the message lists the kernels that were.
        """
        found = [launch for launch in self.launches if kernel in (launch.kernel, launch.kernel.partition("<")[0])]
        if not found:
            names = ", ".join(dict.fromkeys(launch.kernel for launch in self.launches)) or "none"
            raise KeyError(f"no launch of {kernel!r} was profiled; profiled kernels: {names}")
        return Launches(kernel, found)

    def __str__(self) -> str:
        return text.page(self.as_dict())

    def _repr_html_(self) -> str:
        return html.fragment(self.as_dict())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report to a file.

        Parameters
        ----------
        path : str or PathLike
            The extension selects the format: ``.html`` (a self-contained page), ``.json``, ``.csv``, or
            ``.trace.json``, the times on GPUs as a trace for Perfetto (https://ui.perfetto.dev) and Chrome.

        Raises
        ------
        ValueError
            The extension is another one, or no launch was timed for a trace.
        """
        kind = max((end for end in _WRITERS if os.fspath(path).endswith(end)), key=len, default=None)
        if kind is None:
            raise ValueError(f"path is {os.fspath(path)!r}; it must end with one of {', '.join(_WRITERS)}")
        written = _WRITERS[kind](self.as_dict())
        with open(path, "w", encoding="utf-8", newline="") as file:
            file.write(written)

    def compare(self, old: Report | dict[str, Any] | str | os.PathLike[str]) -> Comparison:
        """Compare with another report: what got worse or better.

        Kernels are matched by name, their launches by order, and lines by their text.

        Parameters
        ----------
        old : Report, dict, str or PathLike
            The other report, the result of its `as_dict`, or a JSON file that `save` wrote.

        Returns
        -------
        Comparison
            True if anything got worse.

        Raises
        ------
        ValueError
            It is not a report, a kernel was launched more or less often, or another sample of blocks was counted.
        """
        return compared(_data(old), self.as_dict())

    @property
    def findings(self) -> list[Finding]:
        """What makes the kernels slow, costliest first."""
        return findings(self.launches, self.gpu)

    def as_dict(self, *, instructions: bool = False) -> dict[str, Any]:
        """The report as plain data, as `save` writes it to JSON.

        Parameters
        ----------
        instructions : bool
            Also include what each PTX instruction did.

        Returns
        -------
        dict
            ``launches`` is a list of dicts with ``kernel``, ``grid``, ``block``, ``counters`` (a number by Nsight
            Compute's name) and ``lines`` (nonzero counters by source line), ``distinct_sectors`` (of
            each argument); with a GPU also ``bounds`` (seconds) and ``occupancy``, and if it was named
            ``estimate`` (the attributes of an estimate) or ``no_estimate``, why there is none. Launches on a GPU
            have ``milliseconds`` and ``timing``: ``start`` (milliseconds after the report's first launch on that
            GPU), ``stream``, ``first`` (the source's first launch: caches are cold), ``late`` (the time includes the
            host's), ``copy_rate`` (bytes per second read and written by a copy, measured on that GPU) and
            ``share_of_copy_rate``, for
            the distinct sectors per second. ``sampled_blocks`` is present if only that many blocks were counted.
        """
        began: dict[str, Timed] = {}
        for launch in self.launches:
            if launch.time is not None:
                began.setdefault(launch.device, launch.time)
        return {
            "version": 1,
            "counters": list(NAMES),
            "launches": [launch.as_dict(self.gpu, began.get(launch.device), instructions) for launch in self.launches],
            "findings": [finding.as_dict() for finding in self.findings],
        }
