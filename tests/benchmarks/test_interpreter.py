"""`benchmarks.interpreter` interprets the example's PTX to the CPU engine's bits; the tutorial quotes its kept result."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks import interpreter, times
from benchmarks.harness import scaled
from benchmarks.hopper_gemm import checked, example


@pytest.mark.parametrize("size", [(256, 256, 384), (300, 264, 72)])
def test_the_engine_and_the_interpreter_agree(size: tuple[int, int, int]) -> None:
    """More steps than the ring has stages; sizes that are not multiples of its tiles."""
    m, n, k = size
    a, b = torch.randn(m, k).bfloat16(), torch.randn(n, k).bfloat16()
    assert interpreter.interpreted(a, b, interpreter.as_hopper).equal(example().matmul(a, b, example().fixed))
    checked(a, b, interpreter.interpreted(a, b, interpreter.by_numpy))


def program(body: str) -> interpreter.Program:
    text = (
        ".version 9.0\n.target sm_90a\n.address_size 64\n.visible .entry k()\n{\n.reg .pred %p<2>;\n.reg .f32 %f<3>;\n"
    )
    shared = ".reg .b32 %r<3>;\n.shared .align 8 .b8 bar[8];\nmov.u32 %r1, bar;\nmov.u32 %r2, 1;\n"
    return interpreter.Program(f"{text}{shared}{body}\nret;\n}}\n", "k", [], 0, interpreter.as_hopper)


@pytest.mark.parametrize("instruction", ["sin.approx.f32 %f1, %f2;", "@%p1 mov.u32 %r1, %r2;"])
def test_other_instructions_are_refused(instruction: str) -> None:
    with pytest.raises(NotImplementedError, match=r"sin\.approx\.f32|a guard of mov\.u32"):
        program(instruction)


def test_lanes_meet_again_and_those_that_wait_forever_are_told() -> None:
    """Lane 0 alone arrives; all go on from where they meet, and wait for the next phase."""
    arrive = "mov.u32 %r2, %tid.x;\nsetp.ne.s32 %p1, %r2, 0;\n@%p1 bra MEET;\nmov.u32 %r2, 1;\n" + (
        "mbarrier.init.shared::cta.b64 [%r1], %r2;\nmbarrier.arrive.shared::cta.b64 _, [%r1];\nMEET:\n"
    )
    wait = "mov.u32 %r2, {};\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], %r2;\n@!%p1 bra AGAIN;"
    assert program(arrive + wait.format(0)).run(1, 32) == 12  # each instruction once
    with pytest.raises(RuntimeError, match="all warps wait"):
        program(arrive + wait.format(1)).run(1, 32)


def test_the_tutorial_quotes_the_kept_result() -> None:
    kept = json.loads((times.RESULTS / "interpreter.json").read_text())["results"]["bfloat16, m = n = k = 512"]
    own, exact, plain = (kept[name] for name in interpreter.SUMS)
    text = " ".join((times.DOCS / "tutorials" / "hopper.md").read_text().split())
    for said in (
        f"takes {scaled(own['median'])} of CPU time",
        f"takes {exact['ratio']:.0f} times as long",
        f"in float32, {plain['ratio']:.0f} times as long",
    ):
        assert said in text
