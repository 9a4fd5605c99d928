"""The scheduler's two parts: what is in every kernel, and what is compiled once."""

from __future__ import annotations

import re

import pytest
import torch

import rawkern
from rawkern.base.llvm import FULL, OTHERS, QUICK, host
from rawkern.engines.cpu.checker.instrument import Checker
from rawkern.engines.cpu.emit.instrument import Instrument
from rawkern.engines.cpu.records import runtime
from rawkern.engines.cpu.runtime import jit
from rawkern.engines.cpu.runtime.scheduler import BLOCK_BEGINS, scheduler


def defined(text: str) -> list[str]:
    return re.findall(r"(?m)^define [^@]*@(\w+)\(", text)


@pytest.mark.parametrize("cpu", [host(), *OTHERS.values()], ids=lambda cpu: cpu.name)
@pytest.mark.parametrize("waiting", [False, True])
def test_each_function_is_in_one_part(waiting: bool, cpu) -> None:
    """But for what is inlined; and kernels declare all that they do not have."""
    parts = scheduler(Instrument, waiting, cpu)
    own, shared = defined(parts.own), defined(parts.shared)
    everything = defined(runtime(waiting, cpu.machine))
    assert sorted({*own, *shared} - {"rk_switch_here"}) == sorted(set(everything) - {"rk_switch_here"})
    assert BLOCK_BEGINS in parts.own and BLOCK_BEGINS not in parts.shared
    inlined = set(re.findall(r"(?m)^define [^@]*@(\w+)\([^\n]*alwaysinline", parts.own))
    assert {*own} & {*shared} == inlined and set(parts.names) == {*shared} - inlined
    assert {*own} - inlined == ({"rk_start_block", "rk_warp_main"} if waiting else {"rk_row"})
    assert re.findall(r"(?m)^declare \S+ @rk_service\((.*)\)$", parts.own) == [
        "ptr, i32, i32, i32, i32, <32 x i64>, <32 x i64>"
    ]


def test_warps_switch_by_calls_where_code_is_made_quickly() -> None:
    """LLVM looks up each of 60 registers that a switch in place overwrites, wherever one is inlined."""
    fast, quick = (scheduler(Instrument, True, host(), effort) for effort in (FULL, QUICK))
    switches = [re.search(r"@rk_switch_here\(.*?\n\}", parts.own, re.S) for parts in (fast, quick)]
    in_place = ["asm sideeffect" in found[0] for found in switches if found is not None]
    assert in_place == [host().machine == "x86_64", False]
    assert (quick.names, quick.suffix) == (fast.names, fast.suffix)


def test_schedulers_that_differ_have_names_of_their_own() -> None:
    """Vectors are passed in other registers where there is no AVX-512; the checker is told of barriers."""
    haswell = OTHERS["haswell"]
    found = [scheduler(i, w, c).suffix for i in (Instrument, Checker) for w in (False, True) for c in (host(), haswell)]
    assert len(set(found)) == 8
    parts = scheduler(Instrument, True, host())
    assert parts.calls("call void @rk_poll(ptr %b) @rk_polls @rk_body(") == (
        f"call void @rk_poll{parts.suffix}(ptr %b) @rk_polls @rk_body("
    )


def test_a_kernel_holds_no_scheduler_and_runs_with_one_that_was_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    compiled = jit.object_file
    monkeypatch.setattr(
        jit, "object_file", lambda text, *args, **options: made.append(text) or compiled(text, *args, **options)
    )
    for k in range(2):
        x = torch.zeros(64)
        rawkern.RawKernel(
            f'extern "C" __global__ void k(float* x) {{ x[threadIdx.x] = {k}; __syncthreads(); x[63 - threadIdx.x] += 3; }}'
        )[1, 64](x)
        assert x.tolist() == [k + 3.0] * 64
        jit._schedulers.clear()
        jit.scheduler_object.cache_clear()
    kernels = [text for text in made if "@rk_body(" in text]
    assert len(kernels) == 2 and not any("rk_go" in defined(text) for text in kernels)
    assert sum("rk_go" in defined(text) for text in made) <= 1  # none where another test has made it
