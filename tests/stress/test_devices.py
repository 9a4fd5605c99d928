"""Several GPUs: operators on each, in threads and from one thread, and tensors that go between them."""

from __future__ import annotations

import pytest
import torch

import rawkern

from .chains import AXPB, chain, close, expected, in_threads, inputs, step

pytestmark = pytest.mark.multigpu


def devices() -> list[str]:
    return [f"cuda:{k}" for k in range(torch.cuda.device_count())]


def test_devices_in_turns_from_one_thread() -> None:
    given = {device: [inputs(k, device) for k in range(3)] for device in devices()}
    for k in range(3):
        for device in (*devices(), *reversed(devices())):
            close(step(chain, given[device][k]), expected(k, device))
            assert torch.cuda.current_device() == 0


def test_a_thread_for_each_device_and_two_for_the_first() -> None:
    where = [*devices(), devices()[0]]
    wanted = [expected(k, device) for k, device in enumerate(where)]

    def work(k: int) -> None:
        if k % 2:
            torch.cuda.set_device(where[k])
        given = inputs(k, where[k])
        for _ in range(6):
            close(step(chain, given), wanted[k])

    in_threads(len(where), work)


def test_one_backward_over_two_devices() -> None:
    """The halves of a loss on two devices; autograd has a thread for each."""
    given = inputs(4, "cuda:0")
    others = tuple(t.detach().to("cuda:1").requires_grad_(t.requires_grad) for t in given)
    loss = chain(*given) + chain(*others).to("cuda:0")
    grads = torch.autograd.grad(loss, (*given[:3], *others[:3]))
    for found, want in zip(grads, expected(4, "cuda:0")[1:] * 2, strict=True):
        torch.testing.assert_close(found.to("cuda:0"), want, rtol=2e-5, atol=2e-6)


def test_tensors_go_back_and_forth() -> None:
    n, kernel = 10_007, rawkern.RawKernel(AXPB)
    y, want = torch.zeros(n, device="cuda:0"), 0.0
    for i in range(40):
        y = y.to(devices()[i % len(devices())], non_blocking=True)
        kernel.forall(n)(n, 0.5, float(i), 20_000, y)
        want = 0.5 * want + i
    torch.testing.assert_close(y, torch.full_like(y, want))


def test_streams_of_both_devices() -> None:
    n, kernel = 4099, rawkern.RawKernel(AXPB)
    ys = [torch.zeros(n, device=d) for d in devices() for _ in range(3)]
    streams = [torch.cuda.Stream(y.device) for y in ys]
    for device in devices():
        torch.cuda.synchronize(device)
    for i in range(30):
        for k, (y, stream) in enumerate(zip(ys, streams, strict=True)):
            kernel((-(-n // 256),), (256,), (n, 0.5, float(i + k), 20_000 if k % 2 else 0, y), stream=stream)
    for device in devices():
        torch.cuda.synchronize(device)
    for k, y in enumerate(ys):
        want = 0.0
        for i in range(30):
            want = 0.5 * want + i + k
        torch.testing.assert_close(y, torch.full_like(y, want))
