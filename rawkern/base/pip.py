"""The pip command that brings what is missing, for the way in which rawkern itself was installed."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

_ROOT = Path(__file__).resolve().parents[2]  # of a clone, else a folder of packages


def command(extra: str = "") -> str:
    """Return the command that installs an extra of rawkern: from the clone, archive or index that it came from.

    Without a name it is the one with the compiler, and CuPy if torch is for GPUs.
    """
    asked = f"[{extra or fitting(torch_cuda())}]"
    if (_ROOT / "pyproject.toml").is_file():
        return f'pip install -e "{_ROOT}{asked}"'
    url = _url()
    folder = unquote(urlsplit(url).path) if url.startswith("file:") else ""
    if folder and os.path.isdir(folder):
        return f'pip install "{folder}{asked}"'
    return f'pip install "rawkern{asked} @ {url}"' if url else f'pip install "rawkern{asked}"'


def fitting(cuda: str | None) -> str:
    """Return the extra for a version of CUDA, None for CPUs alone."""
    return "cpu" if cuda is None else "cuda12" if cuda.startswith("12.") else "cuda13"


def torch_cuda() -> str | None:
    """The CUDA that torch was built with; None without, or while torch is not imported."""
    return getattr(getattr(sys.modules.get("torch"), "version", None), "cuda", None)


def _url() -> str:
    """Where pip took rawkern from, "" if from an index."""
    from importlib import metadata

    try:
        return json.loads(metadata.distribution("rawkern").read_text("direct_url.json") or "{}").get("url", "")
    except (metadata.PackageNotFoundError, ValueError):
        return ""
