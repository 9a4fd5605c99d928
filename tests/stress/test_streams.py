"""Many streams: launches interleaved and in chains from stream to stream, tensors freed while a stream uses them."""

from __future__ import annotations

import random

import pytest
import torch

import rawkern

from .chains import AXPB, chain, close, expected, inputs, step

pytestmark = pytest.mark.gpu
SLOW = 20_000  # turns of axpb: some 100 microseconds


@pytest.mark.parametrize("as_argument", [False, True])
def test_launches_interleaved_on_streams(as_argument: bool) -> None:
    n, rounds = 4099, 40
    kernel, choose = rawkern.RawKernel(AXPB), random.Random(3)
    streams = [torch.cuda.Stream() for _ in range(12)]
    ys = [torch.zeros(n, device="cuda") for _ in streams]
    torch.cuda.synchronize()
    for i in range(rounds):
        order = list(range(len(streams)))
        choose.shuffle(order)
        for k in order:
            arguments = (n, 0.5, float(k + i), choose.choice((0, 0, SLOW)), ys[k])
            if as_argument:
                kernel((-(-n // 256),), (256,), arguments, stream=streams[k])
            else:
                with torch.cuda.stream(streams[k]):
                    kernel.forall(n)(*arguments)
    torch.cuda.synchronize()
    for k, y in enumerate(ys):
        want = 0.0
        for i in range(rounds):
            want = 0.5 * want + k + i
        torch.testing.assert_close(y, torch.full_like(y, want))


def test_a_tensor_goes_from_stream_to_stream() -> None:
    """Each stream waits for the one before; a launch on another stream than the current one would come too early."""
    n = 4099
    kernel = rawkern.RawKernel(AXPB)
    streams = [torch.cuda.Stream() for _ in range(8)]
    y = torch.zeros(n, device="cuda")
    want = 0.0
    kernel.forall(n)(n, 1.0, 0.0, 0, y)
    torch.cuda.synchronize()
    for i in range(160):
        stream, before = streams[i % 8], streams[(i - 1) % 8]
        stream.wait_stream(before)
        with torch.cuda.stream(stream):
            kernel.forall(n)(n, 0.75, float(i), SLOW, y)
        want = 0.75 * want + i
    torch.cuda.synchronize()
    torch.testing.assert_close(y, torch.full_like(y, want))


def test_tensors_freed_while_a_stream_reads_them() -> None:
    """A launch with stream= keeps its tensors' memory from being given out; without that it is, as is seen first."""
    n = 1 << 20
    copy = rawkern.RawKernel('extern "C" __global__ void copy(const float* x, float* y, int n) '
                             "{ int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = x[i]; }")  # fmt: skip
    side = torch.cuda.Stream()
    outs = [torch.full((n,), float("nan"), device="cuda") for _ in range(20)]
    copy.forall(n)(outs[0], outs[1], n)
    torch.cuda.synchronize()
    x = torch.empty(n, device="cuda")
    address = x.data_ptr()
    del x
    reused = torch.empty(n, device="cuda")
    assert reused.data_ptr() == address  # the allocator gives a freed block out at once
    del reused
    for k, out in enumerate(outs):
        x = torch.full((n,), float(k), device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(2_000_000)
        copy((n // 256,), (256,), (x, out, n), stream=side)
        del x
        torch.empty(n, device="cuda").fill_(-1.0)  # in x's memory, if that were free
    torch.cuda.synchronize()
    for k, out in enumerate(outs):
        assert torch.equal(out, torch.full_like(out, float(k))), k


def test_forwards_and_backwards_interleaved_on_streams() -> None:
    streams = [torch.cuda.Stream() for _ in range(6)]
    given = [inputs(k, "cuda") for k in range(len(streams))]
    wanted = [expected(k, "cuda") for k in range(len(streams))]
    torch.cuda.synchronize()
    for _ in range(4):
        losses = []
        for stream, tensors in zip(streams, given, strict=True):
            with torch.cuda.stream(stream):
                torch.cuda._sleep(1_000_000)
                losses.append(chain(*tensors))
        found = [torch.autograd.grad(loss, t[:3]) for loss, t in zip(losses, given, strict=True)]
        torch.cuda.synchronize()
        for loss, grads, want in zip(losses, found, wanted, strict=True):
            close((loss.detach(), *grads), want)


def test_the_streams_of_step_do_not_change_its_bits() -> None:
    given = inputs(9, "cuda")
    first = step(chain, given)
    for _ in range(5):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            again = step(chain, given)
        torch.cuda.current_stream().wait_stream(stream)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
