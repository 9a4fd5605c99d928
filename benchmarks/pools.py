"""GPU memory of a program that uses torch and CuPy in turns, with a pool for each and with torch's for both.

Each step makes temporaries in torch, then in CuPy. Prints one line of JSON per arrangement: MiB that the pools hold at
the end (they only grow), MiB of the whole device in use, and microseconds of `cupy.empty` with its release.

    python -m benchmarks.pools
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

import torch

import rawkern

MIB = 1 << 20
STEPS = 20
SIZES = (64, 256, 384, 1024)  # MiB of the temporaries; each step has other ones
SMALL = 4096  # bytes of the arrays whose making is timed


def work(cupy: object) -> None:
    for step in range(STEPS):
        for size in SIZES:
            n = (size + step) * MIB // 4
            x = torch.ones(n, device="cuda")
            assert (x * 2)[-1].item() == 2
            del x
        for size in SIZES:
            n = (size + step) * MIB // 4
            a = cupy.ones(n, dtype=cupy.float32)  # type: ignore[attr-defined]
            assert float((a * 2)[-1]) == 2
            del a


def microseconds(cupy: object) -> float:
    best = float("inf")
    for _ in range(20):
        start = time.thread_time()
        for _ in range(1000):
            cupy.empty(SMALL, dtype="u1")  # type: ignore[attr-defined]
        best = min(best, time.thread_time() - start)
    return best * 1e3


def measure(arrangement: str) -> dict[str, object]:
    import cupy

    torch.cuda.init()
    cupy.ones(1)
    free, total = torch.cuda.mem_get_info()
    before = total - free
    if arrangement == "one pool":
        rawkern.use_torch_allocator()
    work(cupy)
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return {
        "arrangement": arrangement,
        "torch reserved MiB": torch.cuda.max_memory_reserved() // MIB,
        "CuPy's pool MiB": cupy.get_default_memory_pool().total_bytes() // MIB,
        "device MiB": (total - free - before) // MIB,
        "cupy.empty us": round(microseconds(cupy), 2),
    }


def main() -> None:
    for arrangement in ("two pools", "one pool"):  # in processes of their own: pools do not shrink
        done = subprocess.run([sys.executable, "-m", "benchmarks.pools", arrangement], check=True, capture_output=True)
        print(done.stdout.decode().strip())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1])))
    else:
        main()
