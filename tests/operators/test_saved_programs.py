"""Programs that torch.export saved, loaded in other processes: their operators are found by name."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import rawkern
from tests import forked


def run(script: str, new: bool = False) -> str:
    """Run a script in another process, that of a `new` interpreter or a forked one, which has torch already."""
    python = [sys.executable] if new else forked.python()
    return subprocess.run([*python, "-c", script], check=True, timeout=300, capture_output=True, text=True).stdout


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.act = rawkern.nn.RMSNorm(4), rawkern.nn.GELU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rawkern.sum(rawkern.softmax(self.act(self.norm(rawkern.square(x))), 1), 0)


class Composed(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        plus = rawkern.elementwise("T x", "T y", "y = x + 1", "rawkern_test::saved_plus")
        total = rawkern.reduction("T x", "T y", "x", "a + b", "y = a", "0", "rawkern_test::saved_total")
        return total(plus(x), axis=0)


def test_ready_made_operators_are_found(tmp_path: Path) -> None:
    """After `import rawkern` alone, before torch or after it."""
    x, model = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)), Model()
    torch.export.save(torch.export.export(model, (x,)), tmp_path / "model.pt2")
    torch.save((x, model(x).detach()), tmp_path / "expected.pt")
    first = "import rawkern, sys; assert 'torch' not in sys.modules; import torch"
    for imports, new in (("import torch, rawkern", False), (first, True)):
        run(
            f"""
{imports}
x, expected = torch.load({str(tmp_path / "expected.pt")!r})
torch.testing.assert_close(torch.export.load({str(tmp_path / "model.pt2")!r}).module()(x), expected)
""",
            new,
        )


def test_formulas_are_found_after_they_changed(tmp_path: Path) -> None:
    torch.export.save(torch.export.export(Composed(), (torch.ones(3, 4),)), tmp_path / "composed.pt2")
    found = run(f"""
import torch, rawkern
rawkern.elementwise("T x", "T y", "y = x + T(2)", "rawkern_test::saved_plus", preamble="// newer")
rawkern.reduction("T x", "T y", "x", "b + a", "y = -a", "0", "rawkern_test::saved_total")
print(torch.export.load({str(tmp_path / "composed.pt2")!r}).module()(torch.ones(3, 4)).tolist())
""")
    assert found == "[-9.0, -9.0, -9.0, -9.0]\n"


def test_every_operator_is_found_by_its_name() -> None:
    from rawkern.library import (  # noqa: F401
        activations,
        cross_entropy,
        dropout,
        elementwise,
        embedding,
        nbody,
        norm,
        rotary,
        scale_by_sign_of_sum,
        softmax,
        sum,
    )

    every = {name.split("::")[1].split(".")[0] for name in torch._C._dispatch_get_all_op_names() if "rawkern::" in name}
    # Those of backward passes, and what other tests have derived from them, are made with their forward.
    forward = sorted(name for name in every if not re.search(r"_(compiled|backward)(_|$)", name))
    assert {"gelu_half", "norm", "add_norm", "relu_", "softmax_grad", "scale_by_sign_of_sum_like"} <= set(forward)
    run(f"""
import os, torch, rawkern
names = {forward}
if child := os.fork():  # in another order, in a process that has none of them yet
    assert os.waitpid(child, 0)[1] == 0
else:
    names.reverse()
for name in names: getattr(torch.ops.rawkern, name)
os._exit(0) if not child else None
""")
    with pytest.raises(AttributeError):
        torch.ops.rawkern.scaled_by_nobody  # noqa: B018


def test_names_do_not_depend_on_how_a_formula_is_kept() -> None:
    """What has no namespace is told apart by its text."""
    formula = rawkern.elementwise("T x, raw T w", "T y", "y = x * w[0]", "kept")
    assert str(formula.operator.overload) == "rawkern_elementwise.kept_86ac7dc4.default"
    fixed = rawkern.elementwise("T x", "T y", "y = x", "rawkern_test::kept")
    assert str(fixed.operator.overload) == "rawkern_test.kept.default"
    again = rawkern.elementwise("T x", "T y", "y = x + 1", "rawkern_test::kept")
    x = torch.ones(3)
    assert again is not fixed and torch.ops.rawkern_test.kept(x).tolist() == [2, 2, 2] == again(x).tolist()
    back = rawkern.elementwise("T x", "T y", "y = x", "rawkern_test::kept")
    assert torch.ops.rawkern_test.kept(x).tolist() == [1, 1, 1] == back(x.requires_grad_()).tolist()
