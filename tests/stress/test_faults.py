"""Trouble around kernels, in small: what is wrong, lost or left behind raises (`faults`)."""

from __future__ import annotations

import pytest

from . import faults


@pytest.mark.rawkern_unchecked("of ordinary launches, in programs of their own")
@pytest.mark.parametrize(
    "scenes",
    [
        {faults.kernels: 8, faults.launches: 2000, faults.forks: 11, faults.interrupts: 4},
        {faults.processes: 2, faults.kills: 1, faults.damage: 1, faults.exits: 1},
    ],
    ids=["within", "around"],
)
def test_nothing_is_lost(scenes) -> None:
    assert faults.run(scenes)


@pytest.mark.rawkern_unchecked("of ordinary launches, in programs of their own")
def test_disks() -> None:
    found = faults.run({faults.disks: 1})
    assert len(found) == 3 if faults.can_mount() else 1  # a full and a read-only disk take file systems of our own
