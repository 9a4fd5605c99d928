"""Launches, compilations and backwards in many threads at once."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

import torch

import rawkern

from .chains import AXPB, chain, close, expected, in_threads, inputs, step


def test_a_launcher_shared_by_threads(device: str) -> None:
    n, threads, launches = 1003, 8, 200
    kernel = rawkern.RawKernel(AXPB)
    launch = kernel.forall(n)
    ys = [torch.full((n,), float(k), device=device) for k in range(threads)]

    def work(k: int) -> None:
        for i in range(launches):
            if i % 2:
                launch(n, 0.5, float(k + i), 0, ys[k])
            else:
                kernel[-(-n // 128), 128](n, 0.5, float(k + i), 0, ys[k])

    in_threads(threads, work)
    for k, y in enumerate(ys):
        want = float(k)
        for i in range(launches):
            want = 0.5 * want + k + i
        torch.testing.assert_close(y, torch.full_like(y, want))


def test_backwards_in_threads(device: str) -> None:
    wanted = [expected(k, device) for k in range(6)]

    def work(k: int) -> None:
        given = inputs(k, device)
        first = step(chain, given)
        close(first, wanted[k])
        for _ in range(8):
            for a, b in zip(step(chain, given), first, strict=True):
                assert torch.equal(a, b)

    in_threads(len(wanted), work)


def test_threads_add_to_the_gradients_of_one_parameter(device: str) -> None:
    _, weight, bias, _ = inputs(0, device)
    *_, grad_weight, grad_bias = zip(*(_grads(k, weight, bias, device) for k in range(6)), strict=True)

    def work(k: int) -> None:
        x, _, _, target = inputs(k, device)
        chain(x, weight, bias, target).backward()

    in_threads(6, work)
    torch.testing.assert_close(weight.grad, sum(grad_weight), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(bias.grad, sum(grad_bias), rtol=1e-5, atol=1e-6)


def _grads(k: int, weight: torch.Tensor, bias: torch.Tensor, device: str) -> tuple[torch.Tensor, ...]:
    x, _, _, target = inputs(k, device)
    return step(chain, (x, weight, bias, target))


def test_first_launches_in_threads(device: str) -> None:
    """Some threads compile the same kernel, some another one."""
    n = 500
    shared = rawkern.RawKernel(AXPB.replace("axpb", "shared_axpb"))
    ys = [torch.ones(n, device=device) for _ in range(6)]

    def work(k: int) -> None:
        kernel = shared if k < 3 else rawkern.RawKernel(AXPB.replace("+ b", f"+ b + {k}.0f"))
        kernel.forall(n)(n, 2.0, float(k), 0, ys[k])

    in_threads(6, work)
    for k, y in enumerate(ys):
        assert torch.equal(y, torch.full_like(y, 2.0 + k + (k if k >= 3 else 0)))


def test_edits_while_threads_launch(device: str, tmp_path: Path) -> None:
    """Each launch runs one version of the file, never an older one than the thread has seen, at the end the last."""
    path, n, last = tmp_path / "value.cu", 300, 3
    source = 'extern "C" __global__ void value(int* y, int n) { if (threadIdx.x < n) y[threadIdx.x] = VALUE; }'

    def save(value: int) -> None:
        fresh = tmp_path / "value.new"
        fresh.write_text(source.replace("VALUE", str(value)))
        os.replace(fresh, path)

    save(0)
    kernel = rawkern.load(path).value

    def work(k: int) -> None:
        y, seen = torch.full((n,), -1, dtype=torch.int32, device=device), 0
        edit = 1
        while seen < last:
            y.fill_(-1)
            kernel[1, 320](y, n)
            found = y.unique().tolist()
            assert len(found) == 1 and seen <= found[0] <= last, (seen, found)
            seen = found[0]
            if k == 0 and edit <= last and seen == edit - 1:
                save(edit)
                edit += 1

    in_threads(4, work)


def test_a_first_launcher_made_by_several_threads() -> None:
    """They make a plan each, and all that native code was told of stays there."""
    x, before = torch.arange(1000.0), sys.getswitchinterval()
    rawkern.RawKernel(AXPB).compile()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(40):
            kernel, start = rawkern.RawKernel(AXPB), threading.Barrier(8)

            def work(k: int, kernel: Any = kernel, start: threading.Barrier = start) -> None:
                y = torch.zeros(1000)
                start.wait()
                for _ in range(4):
                    kernel[4, 256](1000, 0.0, float(k), 0, y)
                    kernel.forall(1000)(1000, 2.0, 0.0, 0, y)
                assert torch.equal(y, torch.full_like(x, 2.0 * k))

            in_threads(8, work)
            assert len(kernel._plans) == 2
    finally:
        sys.setswitchinterval(before)


def test_a_formula_declared_by_several_threads() -> None:
    start = threading.Barrier(4)

    def work(k: int) -> None:
        start.wait()
        twice = rawkern.elementwise("T x", "T y", "y = x + x", "twice_of_threads")
        assert twice(torch.ones(3)).tolist() == [2, 2, 2]

    in_threads(4, work)
