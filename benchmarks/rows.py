"""Operators over rows on a GPU, beside torch's and Liger-Kernel's: what `benchmarks.operators` measures of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

import rawkern
from benchmarks.passes import Case

ROWS, COLUMNS = 8192, 4096
TOKENS, CLASSES = 4096, 32768
ENTRIES, LOOKUPS, WIDTH = 32000, 16384, 1024  # of the embedding
WHOLE = ROWS * COLUMNS


def numbers(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype, requires_grad=True)


def softmax(dtype: torch.dtype) -> Case:
    contenders = {
        "torch": lambda x: F.softmax(x, -1),
        "rawkern": lambda x: rawkern.softmax(x, -1),
        "Liger": lambda x: liger("softmax", "LigerSoftmaxFunction")(x),
    }
    return Case(contenders, (numbers(dtype, ROWS, COLUMNS),), 2 * WHOLE, 3 * WHOLE)


def layer_norm(dtype: torch.dtype) -> Case:
    contenders = {
        "torch": lambda x, w, b: F.layer_norm(x, (COLUMNS,), w, b),
        "rawkern": lambda x, w, b: rawkern.layer_norm(x, (COLUMNS,), w, b),
        "Liger": lambda x, w, b: liger("layer_norm", "LigerLayerNormFunction")(x, w, b, 1e-5),
    }
    inputs = numbers(dtype, ROWS, COLUMNS), numbers(dtype, COLUMNS), numbers(dtype, COLUMNS)
    return Case(contenders, inputs, 2 * WHOLE, 3 * WHOLE)


def rms_norm(dtype: torch.dtype) -> Case:
    contenders = {
        "torch": lambda x, w: F.rms_norm(x, (COLUMNS,), w, 1e-5),
        "rawkern": lambda x, w: rawkern.rms_norm(x, (COLUMNS,), w, 1e-5),
        "Liger": lambda x, w: liger("rms_norm", "LigerRMSNormFunction")(x, w, 1e-5, 0.0, "llama", False),
    }
    return Case(contenders, (numbers(dtype, ROWS, COLUMNS), numbers(dtype, COLUMNS)), 2 * WHOLE, 3 * WHOLE)


def add_rms_norm(dtype: torch.dtype) -> Case:
    def composed(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> Any:
        s = x + r
        return F.rms_norm(s, (COLUMNS,), w, 1e-5), s

    contenders = {
        "torch": composed,
        "rawkern": lambda x, r, w: rawkern.add_rms_norm(x, r, (COLUMNS,), w, 1e-5),
        "Liger": lambda x, r, w: liger("fused_add_rms_norm", "LigerFusedAddRMSNormFunction")(x, r, w, 1e-5),
    }
    inputs = numbers(dtype, ROWS, COLUMNS), numbers(dtype, ROWS, COLUMNS), numbers(dtype, COLUMNS)
    return Case(contenders, inputs, 4 * WHOLE, 4 * WHOLE)


def cross_entropy(dtype: torch.dtype) -> Case:
    target = torch.randint(0, CLASSES, (TOKENS,), device="cuda")
    contenders = {
        "torch": lambda x: F.cross_entropy(x, target),
        "rawkern": lambda x: rawkern.cross_entropy(x, target),
    }
    return Case(contenders, (numbers(dtype, TOKENS, CLASSES),), TOKENS * CLASSES, 2 * TOKENS * CLASSES)


def total(dim: int | None) -> Callable[[torch.dtype], Case]:
    contenders = {"torch": lambda x: torch.sum(x, dim), "rawkern": lambda x: rawkern.sum(x, dim)}
    return lambda dtype: Case(contenders, (numbers(dtype, ROWS, COLUMNS),), WHOLE, 0)


def sign(dtype: torch.dtype) -> Case:
    contenders = {
        "torch": lambda x: torch.where(x.sum() > 0, 2 * x, -2 * x),
        "rawkern": rawkern.scale_by_sign_of_sum,
    }
    return Case(contenders, (numbers(dtype, ROWS, COLUMNS),), 3 * WHOLE, 2 * WHOLE)


def embedding(dtype: torch.dtype) -> Case:
    index = torch.randint(0, ENTRIES, (LOOKUPS,), device="cuda")
    contenders = {
        "torch": lambda table: F.embedding(index, table),
        "rawkern": lambda table: rawkern.embedding(index, table),
    }
    inputs = (numbers(dtype, ENTRIES, WIDTH),)
    return Case(contenders, inputs, 2 * LOOKUPS * WIDTH, (LOOKUPS + ENTRIES) * WIDTH)


def liger(module: str, name: str) -> Callable[..., Any]:
    from importlib import import_module

    return getattr(import_module(f"liger_kernel.ops.{module}"), name).apply


CASES: dict[str, Callable[[torch.dtype], Case]] = {
    "softmax": softmax,
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
    "residual + rms_norm": add_rms_norm,
    "cross_entropy": cross_entropy,
    "sum of rows": total(1),
    "sum of columns": total(0),
    "sum of all": total(None),
    "scale_by_sign_of_sum": sign,
    "embedding": embedding,
}
