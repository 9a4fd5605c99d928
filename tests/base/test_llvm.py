"""Machine code from LLVM, made by several threads."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import threading

import pytest
from llvmlite.binding import ffi

from rawkern.base import forking, llvm

LARGE = "\n".join(
    f"define i64 @f{k}(i64 %x0) {{\n"
    + "\n".join(f"  %x{i + 1} = mul i64 %x{i}, {i + k}" for i in range(9))
    + "\n ret i64 %x9\n}"
    for k in range(20)
)
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


def test_all_calls_of_llvm_are_ones_that_a_fork_waits_for() -> None:
    """Also those that dispose of what is gone: a child forked during one would find llvmlite's lock locked for ever."""
    waited_for: list[bool] = []

    def acquired() -> None:
        waited_for.append(threading.get_ident() in forking._inside.values())

    register, unregister = ffi.register_lock_callback, ffi.unregister_lock_callback
    register(acquired, ignored := lambda: None)
    try:
        llvm.host.__wrapped__()
        for _ in range(2):
            loaded = llvm.LoadedObject(llvm.object_file(TEXT, llvm.host()))
            engine = loaded._engine
            assert loaded.address("seven")
            loaded.offer({"seven_of_a_test": "seven"})
            del loaded
            gc.collect()
            assert not engine.closed
        llvm.LoadedObject(llvm.object_file(TEXT, llvm.host()))
        assert engine.closed
    finally:
        unregister(acquired, ignored)
    assert len(waited_for) > 20 and all(waited_for)


def test_compiling_keeps_no_memory() -> None:
    def memory() -> float:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1024

    for _ in range(20):
        llvm.object_file(LARGE, llvm.host())
    before = memory()
    for _ in range(60):
        llvm.object_file(LARGE, llvm.host())
    assert memory() - before < 60 * 20  # KiB; passes that were not given back took 50 a module


def test_variables_of_any_size_stand_beside_calls_of_outer_functions() -> None:
    """The table of the functions' addresses finds room, whatever the variables before it leave of their pages."""
    names = ("malloc", "free", "memcpy", "memset", "memmove", "fma", "fmaf", "clock_gettime")
    calls = "\n".join(f"  call void @{name}()" for name in names)
    declared = "\n".join(f"declare void @{name}()" for name in names)
    text = f"{declared}\ndefine i64 @seven() {{\n{calls}\n  ret i64 7\n}}\n@all = global [%d x i8] zeroinitializer"
    for size in range(4096 - 512, 4096 + 64, 8):
        assert llvm.LoadedObject(llvm.object_file(text % size, llvm.host())).address("seven")


def test_callers_are_loaded_far_from_what_they_call() -> None:
    """Holes in the address space decide where files of one object go: 2 GB apart where CUDA's libraries lie between."""
    size = 1 << 26
    callee = llvm.object_file(f"@large = global [{size} x i8] zeroinitializer\n{TEXT}", llvm.host())
    text = "declare i64 @seven()\ndefine i64 @calls() {\n  %v = call i64 @seven()\n  ret i64 %v\n}"
    caller = llvm.object_file(text, llvm.host(), known=("seven",))
    hole = mmap.mmap(-1, 1 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ)
    between = [mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ) for _ in range(80)]
    hole.close()
    loaded = llvm.LoadedObject(caller, callee)
    for mapping in between:
        mapping.close()
    assert abs(loaded.address("calls") - loaded.address("seven")) > 1 << 31
    assert ctypes.CFUNCTYPE(ctypes.c_int64)(loaded.address("calls"))() == 7


def test_usual_modules_are_inlined_and_simplified() -> None:
    """What is called in a loop: its code and the constants it gets are known there, and nothing is loaded twice."""
    text = """
        define internal i32 @once(ptr %p) alwaysinline { %v = load i32, ptr %p ret i32 %v }
        define internal i32 @told(i32 %x, i32 %k) noinline { %r = mul i32 %x, %k ret i32 %r }
        define i32 @f(ptr %p, i32 %n) {
        entry: br label %loop
        loop:
          %i = phi i32 [ 0, %entry ], [ %next, %loop ]
          %sum = phi i32 [ 0, %entry ], [ %more, %loop ]
          %v = call i32 @once(ptr %p)
          %w = call i32 @told(i32 %v, i32 16)
          %mixed = xor i32 %sum, %w
          %more = mul i32 %mixed, 3
          %next = add i32 %i, 1
          %again = icmp slt i32 %next, %n
          br i1 %again, label %loop, label %end
        end: ret i32 %more
        }"""
    binding = llvm.binding()
    with binding.create_context() as context, binding.parse_assembly(text, context) as module:
        llvm.optimize(binding, module, llvm.target_machine(llvm.host()), None)
        found = str(module)
    assert "@once" not in found
    assert "shl i32 %x, 4" in found  # told of the 16
    assert found.index("load i32") < found.index("xor i32")
    assert "load i32" not in found[found.index("phi i32") :]  # but before the loop


def test_what_is_closed_already_is_not_disposed_of_again() -> None:
    """Collecting a cycle finalizes an engine as well as the object that would have left it to a thread."""
    loaded = llvm.LoadedObject(llvm.stored_object("define i32 @f() { ret i32 7 }"))
    vars(loaded)["cycle"] = loaded
    del loaded
    gc.collect()
    assert llvm.LoadedObject(llvm.stored_object("define i32 @g() { ret i32 8 }")).address("g")
