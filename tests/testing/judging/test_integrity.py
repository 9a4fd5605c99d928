"""What is replaced in modules that measuring uses is named; what is only used, imported or set is not."""

from __future__ import annotations

import importlib
import time

import pytest
import torch

import rawkern
from rawkern.testing.judging import integrity


@pytest.fixture(scope="module")
def before() -> integrity.Snapshot:
    importlib.import_module("torch._dynamo")  # which replaces functions, and is there in a candidate's process
    importlib.import_module("rawkern.testing.kernel")
    return integrity.snapshot()


def test_use_is_no_change(before: integrity.Snapshot) -> None:
    x = torch.randn(9, requires_grad=True)
    rawkern.square(x).sum().backward()
    with rawkern.check():
        rawkern.square(x.detach())
    torch.set_default_dtype(torch.float32)
    assert integrity.changed(before) == []


def test_replacements_are_named(before: integrity.Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "allclose", lambda *_, **__: True)
    monkeypatch.setattr(torch.Tensor, "copy_", lambda self, *_: self)
    monkeypatch.setattr(time, "perf_counter", lambda: 0.0)
    monkeypatch.setattr(torch.cuda.Event, "elapsed_time", lambda *_: 0.0)
    monkeypatch.setattr("rawkern.launch.intercept.active", lambda: False)
    monkeypatch.setattr(torch.cuda.synchronize, "__code__", (lambda device=None: None).__code__)
    monkeypatch.delattr(torch, "manual_seed")
    assert set(integrity.changed(before)) == {
        "torch.allclose", "torch.Tensor.copy_", "time.perf_counter", "torch.cuda.Event.elapsed_time",
        "rawkern.launch.intercept.active", "torch.cuda.synchronize", "torch.manual_seed",
    }  # fmt: skip
