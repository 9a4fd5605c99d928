"""The page of a report in a real browser, light and dark: Chromium without a window, where it is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import rawkern

BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
# Says what is seen, as text that the browser prints with the page.
ASK = """<script>
const of = (query) => [...document.querySelectorAll(query)];
const rows = of("tbody tr").map((row) => getComputedStyle(row).backgroundColor);
const box = of("circle")[0].getBoundingClientRect(), page = of(".rk-profile")[0];
document.body.dataset.seen = JSON.stringify([
  getComputedStyle(page).backgroundColor, getComputedStyle(page).color, new Set(rows).size, box.width, box.height,
  document.documentElement.scrollHeight, document.documentElement.scrollWidth, innerWidth]).replaceAll('"', "'");
</script></body>"""


@pytest.mark.parametrize(("width", "scheme", "back", "text"), [(1280, 1, "rgb(255, 255, 255)", "rgb(28, 28, 28)"),
                                                              (390, 0, "rgb(22, 24, 28)", "rgb(232, 232, 232)")])  # fmt: skip
def test_the_page_is_drawn(tmp_path: Path, width: int, scheme: int, back: str, text: str) -> None:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"needs a browser: none of {', '.join(BROWSERS)} is on PATH")
    with rawkern.profile(device="h200") as report:
        rawkern.softmax(torch.randn(16, 512), -1)
    report.save(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text().replace("</body>", ASK)
    (tmp_path / "asked.html").write_text(page)
    command = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--window-size={width},800",
        f"--user-data-dir={tmp_path / 'user'}",
    ]
    command += [f"--blink-settings=preferredColorScheme={scheme}", "--dump-dom", f"file://{tmp_path / 'asked.html'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    seen = re.search(r"data-seen=\"\[(.*?)\]\"", done.stdout)
    assert seen is not None, done.stderr
    assert f"'{back}','{text}'" in seen[1]
    heats, across, down, whole, wide, window = map(float, seen[1].rsplit("',", 1)[1].split(","))
    assert heats > 2
    assert across == pytest.approx(down)
    assert 5 < across <= 10
    assert whole > 500
    assert window == width
    assert wide <= window  # what is wide scrolls by itself
