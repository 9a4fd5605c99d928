"""The random programs themselves: they mean something, failures are told, crashes survived, and programs made small."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.random_programs import isolated, reduce
from tests.random_programs.__main__ import main
from tests.random_programs.batch import Batch
from tests.random_programs.engine import Failure
from tests.random_programs.launches import difference
from tests.random_programs.programs import generate
from tests.random_programs.reference import STRICT, InvalidProgramError, Reference, available
from tests.random_programs.tree import Listing

SEED = int(os.environ["RAWKERN_RANDOM_SEED"])
needs_compiler = pytest.mark.skipif(not available(), reason="there is no g++, which compiles the reference")


def listing(text: str, block: int = 33, rows: int = 1) -> Listing:
    head = (
        'extern "C" __global__ void k7(const int* in, const float* fin, long long* out, int* own, unsigned* acc, '
        "unsigned long long* wide, int p, int q)"
    )
    return Listing(7, ("-fmad=false",), (1,), (block,), 3, 4, rows, f"namespace n7 {{ {head} {{ {text} }} }}")


def test_a_seed_is_a_program(tmp_path: Path) -> None:
    one = generate(12345).listing()
    assert one == generate(12345).listing() != generate(12346).listing()
    one.write(tmp_path / "one.cu")
    assert Listing.read(tmp_path / "one.cu") == one


@needs_compiler
def test_programs_are_defined(tmp_path: Path) -> None:
    """Neither the sanitizer, nor uninitialized memory, nor another order of blocks and threads changes what they leave."""
    programs = [generate(SEED + k).listing() for k in range(40)]
    strict, plain = Reference(programs, tmp_path, STRICT), Reference(programs, tmp_path)
    for program in programs:
        want = plain.run(program)
        assert not difference(strict.run(program), want, program), program.seed
        assert not difference(plain.run(program, backwards=True), want, program), program.seed


@needs_compiler
@pytest.mark.parametrize(
    "text, says",
    [
        ("if (threadIdx.x & 1) __syncwarp(~0u);", "mask with a lane that is not there"),
        ("if (threadIdx.x == 32) __syncwarp(2u);", "mask without the calling lane"),
        ("if (threadIdx.x == 1) __syncwarp(3u); else __syncthreads();", "for ever"),
        ("if (threadIdx.x & 1) __syncthreads(); else __syncthreads();", "different places"),
        ("while (*(volatile unsigned*)acc != 5u) __threadfence();", "for ever"),
        ("out[threadIdx.x] = (0x7fffffff - (int)threadIdx.x) * (int)blockDim.x;", "leaves undefined"),
    ],
)
def test_the_reference_rejects_what_cuda_leaves_open(text: str, says: str, tmp_path: Path) -> None:
    program = listing(text)
    with pytest.raises(InvalidProgramError, match=says):
        Reference([program], tmp_path, STRICT).run(program)


@needs_compiler
def test_an_order_that_matters_is_seen(tmp_path: Path) -> None:
    program = listing("out[0] = threadIdx.x;")
    (failure,) = Batch([7], tmp_path, listings={7: program}).failures()
    assert failure.kind == "generator: not defined" and "order" in failure.detail


@needs_compiler
def test_a_wrong_result_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one program in several; the others go on."""
    run = Reference.run

    def wrong(self: Reference, program: Listing, backwards: bool = False) -> dict[str, np.ndarray]:
        left = run(self, program, backwards)
        left["acc"][5] += program.seed == SEED + 1
        return left

    monkeypatch.setattr(Reference, "run", wrong)
    failures = list(Batch(range(SEED, SEED + 3), tmp_path).failures())
    assert [(f.seed, f.kind) for f in failures] == [(SEED + 1, "wrong result")]
    assert "acc[5]" in failures[0].detail


@needs_compiler
def test_an_error_is_told(tmp_path: Path) -> None:
    """Also where the program fails to compile, with which others were to be compiled."""
    bad = listing("out[threadIdx.x] = nothing;")
    listings = {SEED: generate(SEED).listing(), 7: bad}
    assert [f.kind for f in Batch([SEED, 7], tmp_path, listings=listings).failures()] == ["generator: not defined"]


DOWN = """static __device__ __noinline__ int down(int n, int v) {
    v = __shfl_sync(~0u, v, v + 1 & 31, 32);
    return n ? down(n - 1, v) + n : v;
}"""


@needs_compiler
def test_a_rejection_by_right_is_told_from_failures(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lanes meet in two calls of a function that calls itself; nothing but that is let pass."""
    program = listing("out[threadIdx.x] = threadIdx.x & 1 ? down(2, threadIdx.x) : down(2, 5) * 2;", block=32)
    program = replace(program, text=program.text.replace("{", "{ " + DOWN, 1))
    (failure,) = Batch([7], tmp_path, listings={7: program}).failures()
    assert failure.kind == "LaunchError" and failure.unsupported and failure.manner == "unsupported"
    assert not Failure(7, "wrong result", failure.detail).unsupported
    assert not Failure(7, "LaunchError", "k: programs.py:7, line 5: thread (0,0,0) executed a trap").unsupported
    program.write(tmp_path / "unsupported.cu")
    monkeypatch.setattr("sys.argv", ["random_programs", str(tmp_path / "unsupported.cu")])
    assert main() == 0
    out = capsys.readouterr().out
    assert "seed 7: unsupported: " in out and "0 failures, 1 unsupported" in out


class Ending(Batch):
    """In place of launches: one that ends the process, and one that never ends."""

    def failures(self):
        for seed, end in (
            (1, None),
            (2, lambda: os.kill(os.getpid(), signal.SIGKILL)),
            (3, None),
            (4, lambda: time.sleep(60)),
        ):
            if seed in [program.seed for program in self.programs]:
                self.at(seed, "engine")
                if end:
                    end()
                yield Failure(seed, "seen", "")


def test_crashes_and_hangs_are_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolated, "Batch", Ending)
    counts = []
    found = isolated.run_all(iter([[1, 2, 3], [4, 5]]), 2, 2, lambda count, took: counts.append(count))
    kinds = sorted((f.seed, f.kind) for f in found)
    assert kinds == [(1, "seen"), (2, "SIGKILL"), (3, "seen"), (4, "hang")]
    assert sum(counts) == 5


def test_programs_become_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Down to what the failure needs; here a program fails for as long as it jumps into a loop."""
    seed = next(k for k in range(1000) if "jump_into_loop" in kinds_of(k) and not generate(k).functions)
    failure = Failure(seed, "wrong result", "")

    def failure_of(program, *_) -> Failure | None:
        return failure if any(s.kind == "jump_into_loop" for body in reduce.lists(program) for s in body) else None

    monkeypatch.setattr(reduce, "failure_of", failure_of)
    small = reduce.reduce(failure, 1, {}, report=lambda text: None)
    assert [s.kind for s in small.body] == ["jump_into_loop"] and small.block == (1,)
    assert not small.functions and not small.parts and not small.declarations and not small.ending
    assert small.body[0].bodies == [[], []] and [e.text() for e in small.body[0].args] == ["false", "false"]


def kinds_of(seed: int) -> list[str]:
    return [s.kind for body in reduce.lists(generate(seed)) for s in body]
