"""What benchmarks/cpu.py compares: for each row of its table contenders whose results have been checked.

A function makes the inputs, runs each contender once, compares what it computed with the rival's, and returns the
contenders; the first is the rival.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import rawkern
from benchmarks import native, sources

FOLDER = Path(__file__).resolve().parent
Contenders = dict[str, Callable[[], object]]


def kernels() -> rawkern.RawModule:
    return rawkern.load(FOLDER / "kernels.cu")


def poisoned(like: torch.Tensor) -> torch.Tensor:
    """Memory for a result, filled with what no contender computes."""
    return torch.full_like(like, float("nan") if like.is_floating_point() else -7)


def checked(name: str, run: Callable[[], object], got: torch.Tensor, want: torch.Tensor, **tolerance: float) -> None:
    """Run a contender once and compare what it wrote, exactly if no tolerance is given."""
    run()
    torch.testing.assert_close(
        got.to(want.dtype), want, **(tolerance or {"rtol": 0, "atol": 0}), msg=lambda text: f"{name}: {text}"
    )


def square(n: int) -> Contenders:
    """y = x * x on n elements."""
    x = torch.randn(n)
    y = poisoned(x)
    one, four = rawkern.RawKernel(sources.SQUARE).forall(n), rawkern.RawKernel(sources.SQUARE4).forall(n // 4)
    found: Contenders = {
        "torch.mul(x, x, out=y)": lambda: torch.mul(x, x, out=y),
        "square": lambda: one(n, x, y),
        "square, float4": lambda: four(n, x, y),
    }
    want = x * x
    for name, run in found.items():
        y.fill_(float("nan"))
        checked(name, run, y, want)
    return found | {"y.copy_(x)": lambda: y.copy_(x)}


def fused(n: int) -> Contenders:
    """(a + b) + sin(a) * cos(b) on n elements."""
    a, b = torch.randn(n), torch.randn(n)
    y, launch = poisoned(a), kernels().fused.forall(n)
    found: Contenders = {
        "torch (a + b) + a.sin() * b.cos()": lambda: (a + b) + a.sin() * b.cos(),
        "fused": lambda: launch(n, a, b, y),
    }
    exact = (a.double() + b.double()) + a.double().sin() * b.double().cos()
    checked("fused", found["fused"], y, exact, rtol=1e-6, atol=1e-6)
    return found


def reduction(n: int) -> Contenders:
    """The sum of n elements: each is two launches, of the blocks and of one block over their results."""
    x = torch.rand(n)
    want = x.double().sum()
    found: Contenders = {"torch.sum(x)": lambda: torch.sum(x)}
    for name, source, blocks in (
        ("sum, a stretch per block", sources.SUM, 256),
        ("sum, grid-stride loop", sources.SUM_STRIDED, 256),
        ("sum, float4, grid-stride loop", sources.SUM4, 256),
        ("sum, float4, a stretch per block", sources.SUM4_STRETCH, 256),
        ("sum, one element per thread", sources.SUM_BLOCKS, -(-n // 256)),
    ):
        parts, out = torch.full((blocks,), float("nan")), torch.full((1,), float("nan"))
        first, second = rawkern.RawKernel(source)[blocks, 256], rawkern.RawKernel(sources.SUM)[1, 256]

        def run(first=first, second=second, parts=parts, out=out, blocks=blocks) -> None:
            first(n, x, parts)
            second(blocks, parts, out)

        checked(name, run, out, want[None], rtol=1e-5, atol=0)
        found[name] = run
    return found


def softmax(rows: int, columns: int) -> Contenders:
    """Softmax of each row, a block of 256 threads per row."""
    x = 3 * torch.randn(rows, columns)
    y, module = poisoned(x), kernels()
    looped = module.softmax[rows, 256]
    kept = module.get_function(f"softmax_registers<{columns // 256}>")[rows, 256]
    found: Contenders = {
        "torch.softmax(x, 1)": lambda: torch.softmax(x, 1),
        "softmax": lambda: looped(columns, x, y),
        "softmax, row in registers": lambda: kept(x, y),
    }
    want = torch.softmax(x.double(), 1)
    for name in list(found)[1:]:
        y.fill_(float("nan"))
        checked(name, found[name], y, want, rtol=1e-5, atol=0)
    return found


def matmul(n: int, tile: int) -> Contenders:
    """Product of n x n matrices in tiles of shared memory, beside the same loops in C."""
    a, b = torch.randn(n, n), torch.randn(n, n)
    c, want = poisoned(a), a.double() @ b.double()
    launch = kernels().get_function(f"matmul<{tile}>")[(n // tile, n // tile), (tile, tile)]
    loops = native.library(FOLDER / "matmul.c", f"-DT={tile}").matmul
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in (a, b, c)]
    found: Contenders = {
        "C, gcc " + " ".join(native.FLAGS): lambda: loops(n, *pointers),
        f"matmul<{tile}>": lambda: launch(n, a, b, c),
    }
    for name, run in found.items():
        c.fill_(float("nan"))
        checked(name, run, c, want, rtol=1e-4, atol=1e-3)
    return found | {"torch.mm(a, b, out=c)": lambda: torch.mm(a, b, out=c)}


def binomial(n: int, steps: int) -> Contenders:
    """Values of n call options by trees of so many steps, a block each, beside the same loops in C."""
    price, strike, years = 5 + 25 * torch.rand(n), 1 + 99 * torch.rand(n), 0.25 + 9.75 * torch.rand(n)
    step = years.double() / steps
    rise = 0.1 * step.sqrt()  # volatility 0.1, interest 0.02
    grow, up, down = (0.02 * step).exp(), rise.exp(), (-rise).exp()
    chance = (grow - down) / (up - down)
    option = torch.stack([price, strike, rise, chance / grow, (1 - chance) / grow], 1).float()
    value = poisoned(price)
    level = (option[:, 2:3].double() * (2 * torch.arange(steps + 1) - steps)).exp() * price[:, None] - strike[:, None]
    level = level.clamp(min=0)
    for _ in range(steps):
        level = option[:, 3:4].double() * level[:, 1:] + option[:, 4:5].double() * level[:, :-1]
    loops = native.library(FOLDER / "binomial.c", f"-DSTEPS={steps}").binomial
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in (option, value)]
    found: Contenders = {"C, gcc " + " ".join(native.FLAGS): lambda: loops(n, *pointers)}
    for name in (f"binomial<{steps}, 256>", f"binomial_registers<{steps}, 128>"):
        launch = kernels().get_function(name)[n, int(name.split()[1][:-1])]
        found[name] = lambda launch=launch: launch(option, value)
    for name, run in found.items():
        value.fill_(float("nan"))
        checked(name, run, value, level[:, 0], rtol=1e-4, atol=1e-3)
    return found


def n_body(n: int) -> Contenders:
    """Accelerations of n bodies that attract each other, with softening."""
    body, softening = torch.rand(n, 4), 1e-4
    acceleration, launch = poisoned(torch.empty(n, 3)), kernels().bodies[n // 256, 256, 256 * 16]

    def eager(body: torch.Tensor = body) -> torch.Tensor:
        place, mass = body[:, :3], body[:, 3]
        distance = place[None] - place[:, None]
        inverse = (distance.square().sum(2) + softening).rsqrt()
        return ((mass * inverse**3)[:, :, None] * distance).sum(1)

    found: Contenders = {
        "torch eager, n x n temporaries": eager,
        "bodies": lambda: launch(n, body, softening, acceleration),
    }
    checked("bodies", found["bodies"], acceleration, eager(body.double()), rtol=1e-4, atol=1e-2)
    return found


def mandelbrot(width: int, height: int, limit: int = 256) -> Contenders:
    """Steps until a point leaves the circle of radius 2; NumPy computes those that are still inside."""
    steps = torch.full((height, width), -7, dtype=torch.int32)
    launch = kernels().mandelbrot[(-(-width // 32), -(-height // 8)), (32, 8)]
    real = np.float32(-2) + np.float32(3) * np.arange(width, dtype=np.float32) / np.float32(width)
    imaginary = np.float32(-1.2) + np.float32(2.4) * np.arange(height, dtype=np.float32) / np.float32(height)
    c = real[None, :] + np.complex64(1j) * imaginary[:, None]

    def masked() -> np.ndarray:
        z, count, inside = np.zeros_like(c), np.zeros(c.shape, np.int32), np.ones(c.shape, bool)
        for _ in range(limit):
            at = z[inside]
            inside[inside] = at.real**2 + at.imag**2 <= 4
            count[inside] += 1
            z[inside] = z[inside] ** 2 + c[inside]
        return count

    found: Contenders = {
        "NumPy, masked": masked,
        "mandelbrot": lambda: launch(width, height, limit, steps),
    }
    found["mandelbrot"]()
    # the compiler fuses multiplications and additions: close to the set a few points leave at another step
    differ = (steps.numpy() != masked()).mean()
    if differ > 0.005 or steps.min() < 0:
        raise AssertionError(f"mandelbrot: {differ:.2%} of the pixels differ from NumPy's")
    return found


def histogram(n: int) -> Contenders:
    """Counts of n integers of 0 to 255."""
    x = torch.randint(0, 256, (n,), dtype=torch.int32)
    count, launch = torch.empty(256, dtype=torch.int32), kernels().histogram[256, 256]

    def run() -> None:
        count.zero_()
        launch(n, x, count)

    found: Contenders = {"torch.bincount(x, minlength=256)": lambda: torch.bincount(x, minlength=256), "histogram": run}
    checked("histogram", run, count, torch.bincount(x, minlength=256))
    return found


def one_element() -> Contenders:
    """A launch of one element with three arguments, in the ways there are to write it."""
    x = torch.randn(1)
    y, kernel = poisoned(x), rawkern.RawKernel(sources.SQUARE)
    settled = kernel[1, 32]
    found: Contenders = {
        "torch.mul(x, x, out=y)": lambda: torch.mul(x, x, out=y),
        "k[1, 32](n, x, y)": lambda: kernel[1, 32](1, x, y),
        "k.forall(n)(n, x, y)": lambda: kernel.forall(1)(1, x, y),
        "launch = k[1, 32]; launch(n, x, y)": lambda: settled(1, x, y),
        "k((1,), (32,), (n, x, y))": lambda: kernel((1,), (32,), (1, x, y)),
    }
    want = x * x
    for name, run in found.items():
        y.fill_(float("nan"))
        checked(name, run, y, want)
    return found
