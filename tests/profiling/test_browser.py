"""The page of a report in a real browser, light and dark: Chromium without a window, where it is installed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

import rawkern
from docs.browse import BROWSERS, Browser

PROGRAM = next(filter(None, map(shutil.which, BROWSERS)), None)
SEEN = """(() => {
    const page = getComputedStyle(document.querySelector(".rk-profile"));
    const rows = [...document.querySelectorAll("tbody tr")].map((row) => getComputedStyle(row).backgroundColor);
    const box = document.querySelector("circle").getBoundingClientRect(), root = document.documentElement;
    return { back: page.backgroundColor, text: page.color, heats: new Set(rows).size, across: box.width,
             down: box.height, tall: root.scrollHeight, wide: root.scrollWidth };
})()"""


@pytest.mark.skipif(PROGRAM is None, reason="Chromium draws the page")
def test_the_page_is_drawn(tmp_path: Path) -> None:
    assert PROGRAM is not None
    with rawkern.profile(device="h200") as report:
        rawkern.softmax(torch.randn(16, 512), -1)
    report.save(tmp_path / "report.html")
    browser = Browser(PROGRAM)
    try:
        browser.open((tmp_path / "report.html").as_uri())
        for width, scheme, back, text in (
            (1280, "light", "rgb(255, 255, 255)", "rgb(28, 28, 28)"),
            (390, "dark", "rgb(22, 24, 28)", "rgb(232, 232, 232)"),
        ):
            browser.show(width, scheme)
            seen = browser.run(SEEN)
            assert (seen["back"], seen["text"]) == (back, text)
            assert seen["heats"] > 2
            assert seen["across"] == pytest.approx(seen["down"], rel=1e-3)  # browsers round boxes to 1/64 of a pixel
            assert 5 < seen["across"] <= 10
            assert seen["tall"] > 500
            assert seen["wide"] <= width  # what is wide scrolls by itself
        assert not browser.errors()
    finally:
        browser.close()
