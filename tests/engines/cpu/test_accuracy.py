"""Approximate instructions over dense inputs: the largest error of each, within the PTX ISA manual's bound."""

from __future__ import annotations

from benchmarks import accuracy


def test_errors_stay_within_the_manuals_bounds(device, record_property):
    rows, wrong = [], 0
    for function, worst in zip(accuracy.FUNCTIONS, accuracy.measure(device), strict=True):
        kind = "relative" if function.relative else "absolute"
        row = f"{worst.error:.3g} at {worst.at}, {kind}, of {function.bound:.3g} allowed"
        record_property(f"{function.instruction} {function.interval}", row)
        rows.append(f"{function.instruction} {function.interval}: {row}")
        wrong += not worst.error <= function.bound
    assert not wrong, "\n".join(rows)
