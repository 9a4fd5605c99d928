"""Edit a .cu file and run it again: no build step, no restart.

The script plays the person at the editor. It writes a kernel, launches it, changes the file (and a header it includes)
and launches again; the launch notices. An edit that does not compile raises at the launch, with file, line and excerpt,
until it is fixed.

    python examples/edit_and_rerun.py [--device cpu|cuda]
"""

import argparse
import tempfile
import time
from pathlib import Path

import torch

import rawkern

KERNEL = r"""
#include "factor.h"

extern "C" __global__ void f(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = EXPRESSION;
}
"""


def main(device: str, folder: Path) -> None:
    source, header = folder / "f.cu", folder / "factor.h"
    header.write_text("#define FACTOR 2.0f\n")
    source.write_text(KERNEL.replace("EXPRESSION", "x[i] + 1.0f"))
    module = rawkern.load(source)

    x = torch.arange(4, dtype=torch.float32, device=device)
    y = torch.empty_like(x)

    def run() -> list[float]:
        module.f.forall(x.numel())(x, y, x.numel())
        return y.tolist()

    print(f"{'x + 1':<24} {run()}")

    def edit(what: str, file: Path, text: str) -> None:
        start = time.perf_counter()
        file.write_text(text)
        time.sleep(0.1)  # launches look at the file every 0.1 s at most; edits are slower than that
        result = run()
        print(f"{what:<24} {result}   {time.perf_counter() - start:.3f} s from edit to result")

    edit("edited to FACTOR * x", source, KERNEL.replace("EXPRESSION", "FACTOR * x[i]"))
    edit("header: FACTOR is 10", header, "#define FACTOR 10.0f\n")
    try:
        edit("a mistake", source, KERNEL.replace("EXPRESSION", "FACTOR * z[i]"))
    except rawkern.CompileError as error:
        print(f"a mistake, reported at the launch:\n{error}")
    edit("fixed: x * x * x", source, KERNEL.replace("EXPRESSION", "x[i] * x[i] * x[i]"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        main(arguments.device, Path(temporary))
