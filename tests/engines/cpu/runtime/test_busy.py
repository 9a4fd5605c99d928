"""Launches whose other threads come late, as on a machine that has more to do."""

from __future__ import annotations

import ctypes
import math
import time

import pytest
import torch

import rawkern
from rawkern.engines.cpu.records import SMALL_NS
from rawkern.engines.cpu.runtime import grid, threads

unchecked = pytest.mark.rawkern_unchecked("of launches on several threads, which checked ones are not")
BLOCKS, BLOCK_NS = 4, 200_000
CODE = rf"""extern "C" __global__ void k(int a, int* out) {{
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); while (now - start < {BLOCK_NS});
    if (threadIdx.x == 0) out[blockIdx.x] = a;
}}"""


class Fork:
    """An OpenMP runtime with the calling thread alone, which comes back `seconds` after the work is done."""

    def __init__(self) -> None:
        self.seconds, self.calls = 0.0, 0
        enters = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

        def parallel(enter: int, launch: int, count: int, flags: int) -> None:
            self.calls += 1
            for _ in range(count):
                enters(enter)(launch)
            time.sleep(self.seconds)

        signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
        self._function = signature(parallel)
        self.address = ctypes.cast(self._function, ctypes.c_void_p).value


@pytest.fixture
def fork(monkeypatch):
    found, before = Fork(), torch.get_num_threads()
    monkeypatch.setattr(grid, "openmp", lambda: found.address)
    torch.set_num_threads(2)
    yield found
    torch.set_num_threads(before)


@pytest.fixture
def helpers(monkeypatch) -> threads.Helpers:
    """Whether launches of this test call threads."""
    found = threads.Helpers()
    monkeypatch.setattr(grid, "helpers", found)
    return found


@pytest.fixture
def lost(helpers, monkeypatch) -> list[int]:
    """Nanoseconds that launches lost; nothing follows from them."""
    found: list[int] = []
    monkeypatch.setattr(helpers, "late", found.append)
    return found


@pytest.fixture
def launches(fork, helpers):
    """Launch some times, natively; returns how often other threads were called."""
    launcher = rawkern.RawKernel(CODE)[BLOCKS, 32]

    def run(times: int = 4) -> int:
        fork.calls = 0
        for a in range(times):
            out = torch.full((BLOCKS,), -1, dtype=torch.int32)
            launcher(a, out)
            assert out.tolist() == [a] * BLOCKS
        return fork.calls

    torch.set_num_threads(1)
    run()
    torch.set_num_threads(2)
    return run


@unchecked
def test_a_launch_tells_what_it_lost(launches, fork, lost):
    fork.seconds = 0.01
    start = time.monotonic_ns()
    assert launches() == 4 and len(lost) == 4
    took = time.monotonic_ns() - start
    assert all(each >= 10_000_000 for each in lost)
    assert sum(lost) <= took - 4 * BLOCKS * BLOCK_NS  # without what all workers did


@unchecked
def test_late_threads_are_not_called_for_a_while(launches, fork, helpers):
    fork.seconds = 0.01
    least, record = time.monotonic_ns(), helpers.record
    assert launches(1) == 1
    assert record["until"] >= least + 40_000_000 and 40_000_000 <= record["worth"] <= 4 * threads.MOST_LOST


@unchecked
@pytest.mark.parametrize(
    "until, worth, calls",
    [
        (0, 0.0, 4),
        ("past", math.inf, 4),
        ("future", math.inf, 0),
        ("future", SMALL_NS, 4),  # so long that it gains all the same
    ],
)
def test_native_launches_ask_whether_to_call_threads(launches, helpers, lost, until, worth, calls):
    hour = 3600 * 10**9
    times = {"past": time.monotonic_ns(), "future": time.monotonic_ns() + hour}
    helpers.record.set(until=times.get(until, until), worth=worth)
    assert launches() == calls


@unchecked
def test_threads_that_are_gone_are_never_called(launches, helpers):
    assert not helpers.dismissed
    helpers.dismiss()
    assert helpers.dismissed and launches() == 0


def test_pauses_grow_and_are_forgotten(monkeypatch):
    now = 10**12
    monkeypatch.setattr(threads, "monotonic_ns", lambda: now)
    helpers, pauses = threads.Helpers(), []
    for _ in range(8):
        helpers.late(10_000_000)
        pauses.append((helpers.record["until"] - now) // 10_000_000)
        assert helpers.record["worth"] == 40_000_000
        now = helpers.record["until"] + 1_000_000
    assert pauses == [4, 8, 16, 20, 20, 20, 20, 20]
    now += 300_000_000  # without another for longer than the last pause
    helpers.late(10_000_000)
    assert helpers.record["until"] == now + 40_000_000
    helpers.late(1 << 50)  # the process was stopped
    assert helpers.record["until"] - now <= 20 * threads.MOST_LOST
