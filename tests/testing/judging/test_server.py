"""The process that candidates are forked from."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import rawkern


def test_the_driver_is_not_started() -> None:
    """A forked process can use no GPU once the one that it comes from has asked for it."""
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

server.warm_up()
print("warm", threading.active_count(), "rawkern.engines.cuda" in sys.modules, flush=True)
os._exit(0)
"""
    root = str(Path(rawkern.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=200,
        env={**os.environ, "PYTHONPATH": root},
    )  # fmt: skip
    assert done.stdout == "warm 1 False\n", done.stderr
