"""Every planted defect is found, as what it is, at its line and nowhere else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import rawkern
from tests.checked import planted

MEMORY = (rawkern.OutOfBoundsError, rawkern.MisalignedError, rawkern.ReadOnlyError, rawkern.FreedMemoryError)


@pytest.mark.parametrize("defect", planted.DEFECTS, ids=lambda d: d.name)
def test_defect_is_found_at_its_line(defect, device):
    if defect.device_memory and device == "cuda":
        pytest.skip("the table's address is of the GPU's memory, which a checked launch does not look at")
    arguments = defect.arguments(device)
    before = [a.clone() for a in arguments if isinstance(a, torch.Tensor)] if device == "cuda" else []
    kernel = rawkern.RawKernel(defect.code, "k", options=defect.options)
    with rawkern.check(), pytest.raises(getattr(rawkern, defect.error)) as caught:
        kernel[defect.grid, defect.block, defect.shared](*arguments)
    reports = caught.value.reports
    assert {r.line for r in reports} <= set(defect.lines), [r.message for r in reports]
    assert reports[0].error is getattr(rawkern, defect.error)
    assert all("// defect" in r.access.excerpt for r in reports)
    assert re.search(defect.says, str(caught.value), re.S)
    if device == "cpu" and reports[0].error in MEMORY:  # an ordinary launch raises the same, before it does it
        with pytest.raises(reports[0].error) as ordinary:
            kernel[defect.grid, defect.block, defect.shared](*arguments)
        (report,) = ordinary.value.reports
        assert report.line in defect.lines and report.name in {r.name for r in reports}
    if device == "cuda":  # left as they were
        assert all(map(torch.equal, before, [a for a in arguments if isinstance(a, torch.Tensor)]))


def test_page_of_planted_defects_is_current():
    page = Path(__file__).parents[2] / "docs" / "planted-defects.md"
    assert page.read_text() == planted.page()
    assert len(planted.DEFECTS) >= 30
