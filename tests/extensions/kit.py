"""Extensions in files of a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rawkern import cpp_extension

HEAD = "#include <torch/extension.h>\n#include <ATen/cuda/CUDAContext.h>\n#include <vector>\n"


def load(folder: Path, source: str, *, name: str = "ext", **more: Any) -> Any:
    """The extension of one source, all of whose host functions are its attributes unless it binds some."""
    file = folder / f"{name}.cu"
    file.write_text(HEAD + source)
    return cpp_extension.load(name, [file], **more)
