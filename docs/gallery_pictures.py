"""Draws docs/images/gallery/*.svg: what each kernel of examples/gallery makes. ``python docs/gallery_pictures.py``"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import matplotlib
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "examples" / "gallery")]
RED, BLUE, GREY = "#c0392b", "#627d98", "#9aa5b1"


def show(axes: Any, values: torch.Tensor, title: str, **how: Any) -> None:
    axes.imshow(values.cpu().float().numpy(), interpolation="nearest", **{"cmap": "magma"} | how)
    axes.set_title(title, fontsize=9)
    axes.axis("off")


def transpose(left: Any, right: Any) -> None:
    from transpose import transpose

    x = torch.arange(12 * 20).view(12, 20).float() + 40 * torch.rand(12, 20)
    show(left, x, "x")
    show(right, transpose(x), "transpose(x)")


def scan(left: Any, right: Any) -> None:
    from scan import scan

    x = torch.randn(400)
    left.plot(x.numpy(), ".", color=GREY, markersize=2)
    left.set_title("x", fontsize=9)
    right.plot(scan(x).numpy(), color=RED)
    right.set_title("scan(x)", fontsize=9)


def histogram(left: Any, right: Any) -> None:
    from histogram import histogram

    x = torch.cat([torch.randn(60_000) - 1, 0.5 * torch.randn(40_000) + 2])
    left.plot(x[::400].numpy(), ".", color=GREY, markersize=2)
    left.set_title("x", fontsize=9)
    right.bar(range(48), histogram(x, 48, -5, 5).numpy(), color=RED, width=1)
    right.set_title("histogram(x, 48, -5, 5)", fontsize=9)


def stencil(left: Any, right: Any) -> None:
    from stencil import heat

    x = torch.zeros(60, 90)
    x[15:30, 20:70] = 1
    x[40:45, 40:50] = 2
    show(left, x, "x")
    show(right, heat(x, 60), "heat(x, 60)")


def convolution(left: Any, right: Any) -> None:
    from convolution import convolve

    y, x = torch.meshgrid(torch.arange(60), torch.arange(90), indexing="ij")
    image = (((x - 30) ** 2 + (y - 30) ** 2 < 300) | ((x - 62).abs() + (y - 30).abs() < 20)).float()
    edges = torch.tensor([[[[-1.0, -1, -1], [-1, 8, -1], [-1, -1, -1]]]])
    show(left, image, "x")
    show(right, convolve(image[None, None], edges)[0, 0], "convolve(x, edges)")


def sort(left: Any, right: Any) -> None:
    from sort import argsort

    x = torch.randn(400)
    left.plot(x.numpy(), ".", color=GREY, markersize=3)
    left.set_title("x", fontsize=9)
    right.plot(x[argsort(x).long()].numpy(), ".", color=RED, markersize=3)
    right.set_title("x[argsort(x)]", fontsize=9)


def sampling(left: Any, right: Any) -> None:
    from sampling import sample

    logits = 1.5 * torch.randn(12)
    for axes, temperature in ((left, 1.0), (right, 0.4)):
        found = torch.bincount(sample(logits.repeat(5000, 1), temperature, 1), minlength=12) / 5000
        axes.bar(range(12), found.numpy(), color=RED)
        axes.plot(torch.softmax(logits / temperature, 0).numpy(), "o", color=BLUE, markersize=4)
        axes.set_title(f"5000 draws at {temperature}; dots: softmax", fontsize=9)


def quantized_matmul(left: Any, right: Any) -> None:
    from quantized_matmul import matmul, quantize

    x, w = torch.randn(200, 256), torch.randn(40, 256)
    y, expected = matmul(quantize(x), quantize(w)), x @ w.T
    left.plot(expected.flatten().numpy(), y.flatten().numpy(), ".", color=RED, markersize=1, rasterized=True)
    left.set_title("in 8 bits, by float32's", fontsize=9)
    right.hist((y - expected).flatten().numpy(), bins=60, color=GREY)
    right.set_title("difference", fontsize=9)


def rope(left: Any, right: Any) -> None:
    from rope import rope_

    q, k = torch.ones(64, 1, 32), torch.ones(64, 1, 32)
    rope_(q, k, torch.arange(64, dtype=torch.int32))
    show(left, q[:, 0].T, "features of ones, by position", cmap="coolwarm")
    right.plot((q[:, 0] @ k[0, 0]).numpy(), color=RED)
    right.set_title("product with position 0", fontsize=9)


def layer_norm(left: Any, right: Any) -> None:
    from layer_norm import layer_norm

    x = torch.randn(12, 200) * torch.rand(12, 1) * 4 + 6 * torch.randn(12, 1)
    for axes, values, title in (
        (left, x, "rows of x"),
        (right, layer_norm(x, torch.ones(200), torch.zeros(200)), "normed"),
    ):
        axes.boxplot(values.numpy().T, showfliers=False, medianprops={"color": RED})
        axes.set_title(title, fontsize=9)
        axes.set_xticks([])


def topk(left: Any, right: Any) -> None:
    from topk import topk

    x = torch.randn(1, 300)
    values, indices = topk(x, 20)
    left.plot(x[0].numpy(), ".", color=GREY, markersize=3)
    left.plot(indices[0].numpy(), values[0].numpy(), "o", color=RED, markersize=4)
    left.set_title("x and its 20 largest", fontsize=9)
    right.bar(range(20), values[0].numpy(), color=RED)
    right.set_title("topk(x, 20)", fontsize=9)


def sparse(left: Any, right: Any) -> None:
    from sparse import multiply

    n = 48  # the Laplacian of a ring with shortcuts
    A = 2 * torch.eye(n) - torch.eye(n).roll(1, 0) - torch.eye(n).roll(-1, 0)
    A[torch.arange(0, n, 7), torch.arange(n - 1, -1, -7)] += 1
    show(left, A != 0, f"{int((A != 0).sum())} of {n * n} entries", cmap="Greys")
    show(right, multiply(A.to_sparse_csr(), torch.eye(n)[:, ::2].contiguous().cumsum(0)), "A @ X")


PICTURES = (transpose, scan, histogram, stencil, convolution, sort, sampling)
PICTURES += (quantized_matmul, rope, layer_norm, topk, sparse)


def draw(folder: Path) -> None:
    """Draw all pictures into a folder, the same each time."""
    from matplotlib import pyplot as plt

    matplotlib.rcParams["svg.hashsalt"] = "rawkern"
    folder.mkdir(exist_ok=True)
    for picture in PICTURES:
        torch.manual_seed(0)
        figure, axes = plt.subplots(1, 2, figsize=(6, 2.1), layout="constrained")
        for one in axes:
            one.tick_params(labelsize=7)
        picture(*axes)
        figure.savefig(folder / f"{picture.__name__}.svg", metadata={"Date": None}, facecolor="white")
        plt.close(figure)


if __name__ == "__main__":
    draw(ROOT / "docs" / "images" / "gallery")
