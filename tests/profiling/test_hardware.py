"""Counts are those of Nsight Compute on an H200, but for what is listed with its reason."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks import ncu

KERNELS = {kernel["name"]: kernel for kernel in ncu.truth()["kernels"]}
SPACES = {"Global": "global", "Shared": "shared", "Local": "local"}


@pytest.mark.parametrize("name", KERNELS)
def test_all_counters_are_those_of_the_hardware(name):
    rows = ncu.compared(KERNELS[name])
    assert len(rows) == len(KERNELS[name]["counters"])
    assert not [row for row in rows if not row.equal and not row.reason]
    needless = {(row.kernel, row.counter) for row in rows if row.equal and row.reason}
    assert not {counter for _, counter in needless if ("conflicts" in counter or "sectors" in counter)}


@pytest.mark.parametrize("name", sorted(set(KERNELS) - {"matmul"}))  # ptxas joins loads of its
def test_each_access_is_that_of_an_instruction_of_machine_code(name):
    """Lanes, lines, sectors and wavefronts with their ideals; ptxas copies instructions of unrolled loops."""
    theirs, ours = Counter(), Counter()
    columns = ("executed", "threads", "tags", "sectors", "sectors_ideal", "wavefronts", "wavefronts_ideal")
    for row in KERNELS[name]["instructions"]:
        if row["space"] in SPACES:
            for column in columns:
                theirs[SPACES[row["space"]], column] += row[column]
    for one in ncu.profiled(KERNELS[name])["instructions"]:
        found = one["counters"]
        space = next((s for s in SPACES.values() if f".{s}" in one["ptx"]), None)
        if one["ptx"].startswith(("ld.", "st.", "atom.shared")) and space is not None:
            for column, value in zip(columns, _columns(found), strict=True):
                ours[space, column] += value
    assert +ours == +theirs


def _columns(found):
    return (
        found["smsp__inst_executed.sum"], found["smsp__thread_inst_executed.sum"],
        found.get("memory_l1_tag_requests_global", 0), found.get("memory_l2_theoretical_sectors_global", 0),
        found.get("memory_l2_theoretical_sectors_global_ideal", 0), found.get("memory_l1_wavefronts_shared", 0),
        found.get("memory_l1_wavefronts_shared_ideal", 0),
    )  # fmt: skip
