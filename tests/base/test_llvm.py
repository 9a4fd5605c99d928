"""Machine code from LLVM, made by several threads."""

from __future__ import annotations

import threading

import pytest
from llvmlite.binding import ffi

from rawkern.base import llvm

TEXT = "define i64 @seven() {\n  ret i64 7\n}"


@pytest.mark.parametrize("gap", ["__enter__", "__exit__"])
def test_an_interrupt_in_llvmlites_own_lock_leaves_it_free(monkeypatch: pytest.MonkeyPatch, gap: str) -> None:
    body = llvm.object_file(TEXT, llvm.host())
    whole, calls = getattr(ffi._LLVMLock, gap), 0

    def interrupted(self, *args: object) -> None:
        nonlocal calls
        calls += 1
        if calls != 3:
            whole(self, *args)
        elif gap == "__enter__":  # as between taking it and going on
            self._lock.acquire()
            raise KeyboardInterrupt
        else:  # before it is given back
            raise KeyboardInterrupt

    monkeypatch.setattr(ffi._LLVMLock, gap, interrupted)
    with pytest.raises(KeyboardInterrupt):
        llvm.LoadedObject(body)
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(llvm.LoadedObject(body).address("seven")), daemon=True)
    thread.start()
    thread.join(20)
    assert found and found[0]
