"""A cubin's machine code as text, from NVIDIA's nvdisasm if it is installed."""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection

from rawkern.cli.text import CommandError

_SECTION = re.compile(r"^//-+ (\.\S+) +-+\s*$", re.M)


def disassembler() -> str:
    """Find nvdisasm: on PATH, in the wheel nvidia-cuda-nvdisasm, or in a CUDA toolkit; else `CommandError`."""
    folders = [os.path.join(folder, "nvidia", "*", "bin") for folder in sys.path]
    folders += [os.path.join(root, "bin") for name in ("CUDA_HOME", "CUDA_PATH") if (root := os.environ.get(name))]
    folders.append("/usr/local/cuda/bin")
    path = shutil.which("nvdisasm")
    for pattern in folders if path is None else ():
        path = path or next((p for f in sorted(glob.glob(pattern)) if (p := shutil.which("nvdisasm", path=f))), None)
    if path is None:
        raise CommandError("--sass needs nvdisasm, which was not found; run: pip install nvidia-cuda-nvdisasm")
    return path


def sass(cubin: bytes, symbols: Collection[str] | None = None) -> str:
    """Disassemble a cubin, or only the kernels of these symbols in it."""
    program = disassembler()
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([program, "-c", file.name], capture_output=True, text=True)
    if done.returncode:
        raise CommandError(f"{program} cannot read the cubin: {done.stderr.strip() or done.stdout.strip()}")
    if symbols is None:
        return done.stdout.strip("\n")
    parts = _SECTION.split(done.stdout)[1:]  # name, text, name, text ...
    wanted = {f".text.{symbol}" for symbol in symbols}
    return "\n".join(
        f"// {name}\n{text.strip()}" for name, text in zip(parts[::2], parts[1::2], strict=True) if name in wanted
    )
