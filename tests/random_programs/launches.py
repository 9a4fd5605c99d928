"""What a launch gets and what it leaves, as NumPy arrays: the same for the reference and every device."""

from __future__ import annotations

import random

import numpy as np

from .tree import Listing

UNWRITTEN = -77777  # what results are before a thread writes them


def inputs() -> dict[str, np.ndarray]:
    """The two tables that all programs read."""
    rng = random.Random(5)
    whole = [0, 1, -1, 2, 31, 32, -7, 2**31 - 1, -(2**31), 255, -128, 65535]
    whole += [rng.getrandbits(32) - 2**31 for _ in range(200)] + [rng.randrange(-40, 40) for _ in range(44)]
    nan, inf = float("nan"), float("inf")
    real = [0.0, -0.0, 1.0, -1.0, 0.5, nan, inf, -inf, 1e-40, -1e-42, 3e38, -2.5, 1e9, 2.5]
    real += [rng.gauss(0, 1) * 10.0 ** rng.randrange(-6, 7) for _ in range(242)]
    return {"in": np.array(whole, np.int32), "fin": np.array(real, np.float32)}


def outputs(program: Listing) -> dict[str, np.ndarray]:
    """Memory that a program writes, as it is before."""
    total = program.total
    acc = (np.arange(64, dtype=np.uint64) * 2654435761 + 12345).astype(np.uint32)
    acc[40:44] = acc[60:63] = 0  # floats, a lock, a ticket
    wide = np.arange(16 + 33 * (total // program.threads), dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    wide[13] = 0
    return {
        "out": np.full(program.rows * total, UNWRITTEN, np.int64),
        "own": (np.arange(8 * total) * 40503 % 1000003 - 500000).astype(np.int32),
        "acc": acc,
        "wide": wide,
    }


def difference(got: dict[str, np.ndarray], want: dict[str, np.ndarray], program: Listing) -> str:
    """Where results differ, or an empty text."""
    for name in want:
        wrong = np.flatnonzero(got[name] != want[name])
        if len(wrong):
            k, total = int(wrong[0]), program.total
            where = f"out[{k // total}] of thread {k % total}" if name == "out" else f"{name}[{k}]"
            return f"{len(wrong)} wrong in {name}; {where} is {got[name][k]}, not {want[name][k]}"
    return ""
