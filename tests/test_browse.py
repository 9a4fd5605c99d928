"""docs/browse.py, which looks at the pages of the site in a browser, finds what is wrong with a page."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from docs.browse import BROWSERS, browse

PROGRAM = next(filter(None, map(shutil.which, BROWSERS)), None)
HEAD = '<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
GOOD = '<link rel="icon" href="data:,"><article><p id="here">Fine.</p><pre style="overflow: auto">{}</pre>{}</article>'


@pytest.mark.skipif(PROGRAM is None, reason="Chromium looks at the pages")
def test_what_is_wrong_is_found(tmp_path: Path) -> None:
    assert PROGRAM is not None
    (tmp_path / "inner").mkdir()
    pages = {
        "index": GOOD.format(
            "x" * 900, '<a href="inner/also.html#here">a place</a> <a href="http://x.invalid">out</a>'
        ),
        "inner/also": GOOD.format("", '<a href="#nowhere">x</a><a href="../gone.html">y</a>'),
        "script": GOOD.format("", "<script>console.error('told'); undefined_name();</script><img src='gone.png'>"),
        "wide": GOOD.format("", "<div style='width: 500px'>wide</div>"),
        "dark": GOOD.format("", "<style>@media (prefers-color-scheme: dark) { p { width: 1400px } }</style>"),
        "code": GOOD.format("", f'<div class="highlight"><pre style="overflow: auto">{"y" * 900}</pre></div>'),
        "contents": GOOD.format("", '<aside class="toc-drawer" style="position: fixed; right: -9em">Contents</aside>'),
        "cut": GOOD.format("", f"<div style='overflow: hidden'>{'x' * 100}</div>"),
    }
    for name, text in pages.items():
        (tmp_path / f"{name}.html").write_text(HEAD + text)
    site = tmp_path.as_uri()
    wrong = "\n".join(browse(tmp_path, PROGRAM))
    for line in (
        f"inner/also: a link leads to {site}/inner/also.html, which has no place #nowhere",
        f"inner/also: a link leads to {site}/gone.html, which is not there",
        f"script: {site}/gone.png is not a picture",
        "script: the console says told",
        "script: the console says ReferenceError: undefined_name is not defined",
        """wide at 390, light: <div class=""> 'wide' reaches over the side""",
        """dark at 1280, dark: <p class=""> 'Fine.' reaches over the side""",
        "cut at 390, dark: <div",
        """code at 1280, light: <pre class=""> 'yyyy""",
        "contents at 1280, dark: the contents are not visible",
    ):
        assert line in wrong
    for line in ("index", "wide at 1280", "dark at 1280, light", "cut at 1280", "code at 390"):
        assert line not in wrong
    with pytest.raises(ValueError, match=r"has none of the pages absent; build it"):
        browse(tmp_path, PROGRAM, only=["absent"])
