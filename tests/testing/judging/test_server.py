"""The process that candidates are forked from."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import rawkern
from rawkern.testing import Worker


def test_the_driver_is_not_started() -> None:
    """A forked process can use no GPU once the one that it comes from has asked for it. Nor is torch.compile imported."""
    program = """
import os, sys, threading
import torch
import cupy


def fail(*args, **kwargs):
    raise SystemError("asks for a GPU")


for module, names in (
    (torch.cuda, ("is_available", "device_count", "current_device", "_lazy_init", "init", "get_device_properties")),
    (cupy.cuda.runtime, ("getDeviceCount", "getDevice", "driverGetVersion")),
):
    for name in names:
        setattr(module, name, fail)
from rawkern.testing.judging import server

cache = os.environ["RAWKERN_CACHE_DIR"]
server.warm_up()
kept = os.environ["RAWKERN_CACHE_DIR"] == cache
imported = [name for name in ("rawkern.engines.cuda", "torch._dynamo") if name in sys.modules]
print("warm", threading.active_count(), imported, kept, flush=True)
os._exit(0)
"""
    root = str(Path(rawkern.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=200,
        env={**os.environ, "PYTHONPATH": root},
    )  # fmt: skip
    assert done.stdout == "warm 1 [] True\n", done.stderr


def test_what_all_kernels_share_comes_from_the_program_s_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Wherever the process runs, and whatever its environment leaves out."""

    def start(*_: object, env: dict[str, str], **__: object) -> None:
        raise OSError(env["RAWKERN_CACHE_DIR"])

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAWKERN_CACHE_DIR", "kept")
    monkeypatch.setattr(subprocess, "Popen", start)
    with pytest.raises(OSError, match=str(tmp_path / "kept")), Worker():
        pass
