"""Reports of profiles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rawkern.profiling.counted import Counted, Launches
from rawkern.profiling.counters import NAMES
from rawkern.profiling.devices import Gpu
from rawkern.profiling.findings import Finding, findings


class Report:
    """What the launches of a profile did; made by `rawkern.profile`."""

    def __init__(self, gpu: Gpu | None) -> None:
        self.gpu = gpu
        self.launches: list[Counted] = []

    def add(self, launch: Counted) -> None:
        """Take a launch up."""
        self.launches.append(launch)

    def __len__(self) -> int:
        return len(self.launches)

    def __iter__(self) -> Iterator[Launches]:
        """The kernels in the order of their first launches."""
        return (self[name] for name in dict.fromkeys(launch.kernel for launch in self.launches))

    def __getitem__(self, kernel: str) -> Launches:
        """The launches of a kernel together, by its name or an instance's.

        KeyError where no launch has it; the message lists those there are.
        """
        found = [launch for launch in self.launches if kernel in (launch.kernel, launch.kernel.partition("<")[0])]
        if not found:
            names = ", ".join(dict.fromkeys(launch.kernel for launch in self.launches)) or "no launch at all"
            raise KeyError(f"no launch of {kernel!r} was profiled; there is {names}")
        return Launches(kernel, found)

    @property
    def findings(self) -> list[Finding]:
        """What makes the kernels slow, the costliest first."""
        return findings(self.launches, self.gpu)

    def as_dict(self, *, instructions: bool = False) -> dict[str, Any]:
        """The report as plain data, what `save` writes as JSON.

        Parameters
        ----------
        instructions : bool
            Also tell what each PTX instruction did.

        Returns
        -------
        dict
            ``launches`` is a list of dicts with ``kernel``, ``grid``, ``block``, ``counters`` (a number by Nsight
            Compute's name) and ``lines`` (by the line of the source, counters that are not 0), ``distinct_sectors`` (of
            each argument); with a GPU also ``bounds`` (seconds) and ``occupancy``, and ``milliseconds`` where they
            were measured.
        """
        return {
            "version": 1,
            "counters": list(NAMES),
            "launches": [launch.as_dict(self.gpu, instructions) for launch in self.launches],
            "findings": [finding.as_dict() for finding in self.findings],
        }
