"""The structs in which elementwise kernels get arrays of any strides."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import rawkern
from rawkern.compile import nvrtc, programs
from rawkern.compile.source import CPU_ARCH

mixed = rawkern.elementwise("T x, T z", "T y", "y = x * 2 + z", "axes_mixed")
total = rawkern.reduction("T x, T w", "T y", "x * w", "a + b", "y = a", "0", "axes_total")


@pytest.mark.parametrize("operator", [mixed, total])
def test_layouts_are_those_of_the_compiler_which_is_not_asked(operator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[tuple[str, ...]] = []
    real = nvrtc._run
    monkeypatch.setattr(nvrtc, "_run", lambda *args: runs.append(args[4]) or real(*args))
    x, z = torch.rand(8, 6).t(), torch.rand(8)
    torch.testing.assert_close(operator(x, z), x * 2 + z if operator is mixed else (x * z).sum())
    assert runs and not any(runs), "no debug information is asked for"
    states = [kernel.state() for kernel in operator.loop.kernels.values()]
    found = [(state, p.ctype) for state in states for p in state.signature.params if p.ctype.kind == "struct"]
    assert found
    for state, ctype in found:
        program = state.build.program(CPU_ARCH, state.asked)
        assert programs.struct_layout(program, ctype.name) == ctype.layout
