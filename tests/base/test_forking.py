"""Forks while other threads compile."""

from __future__ import annotations

import os
import threading
import time

import pytest

from rawkern.base import forking


def test_a_fork_does_not_wait_for_threads_that_compile_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forking, "WAIT_SECONDS", 10.0)
    stop, busy = threading.Event(), 0

    def compile_on_and_on() -> None:
        nonlocal busy
        while not stop.is_set():
            with forking.compiling(), forking.compiling():
                busy += 1
                time.sleep(0.005)

    threads = [threading.Thread(target=compile_on_and_on) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):
            free, before, start = False, busy, time.monotonic()
            child = os.fork()
            if child == 0:
                try:
                    free = not forking._inside and not forking._forks
                finally:
                    os._exit(0 if free else 1)
            assert time.monotonic() - start < 5
            assert os.waitpid(child, 0)[1] == 0
            deadline = time.monotonic() + 5
            while busy < before + 4 and time.monotonic() < deadline:  # they go on afterwards
                time.sleep(0.005)
            assert busy >= before + 4
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not forking._inside and not forking._forks
