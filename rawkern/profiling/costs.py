"""Costs of counts, in cycles of a multiprocessor: weights for sorting lines and findings, not a measure of time."""

from __future__ import annotations

from collections.abc import Mapping

#: Of a sector of 32 bytes, a wavefront and a warp's instruction: about those of an H200.
SECTOR, WAVEFRONT, ISSUE = 1.75, 1.0, 0.25


def work(counters: Mapping[str, int | float]) -> float:
    """The approximate cost of a launch or one of its lines."""
    return (
        counters.get("smsp__inst_executed.sum", 0) * ISSUE
        + counters.get("memory_l2_theoretical_sectors_global", 0) * SECTOR
        + counters.get("memory_l1_wavefronts_shared", 0) * WAVEFRONT
    )
