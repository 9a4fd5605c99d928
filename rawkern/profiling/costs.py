"""What counts cost, in cycles of a multiprocessor: weights that put lines and findings in order, no measure of time."""

from __future__ import annotations

from collections.abc import Mapping

#: Of a sector of 32 bytes, a wavefront and a warp's instruction: about those of an H200.
SECTOR, WAVEFRONT, ISSUE = 1.75, 1.0, 0.25


def work(counters: Mapping[str, int | float]) -> float:
    """About what a launch, or a line of it, costs."""
    return (
        counters.get("smsp__inst_executed.sum", 0) * ISSUE
        + counters.get("memory_l2_theoretical_sectors_global", 0) * SECTOR
        + counters.get("memory_l1_wavefronts_shared", 0) * WAVEFRONT
    )
