"""The page of benchmarks says what the kept results say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import page

TEXT = (page.DOCS / "benchmarks.md").read_text()


def test_the_page_is_made_of_the_kept_results() -> None:
    assert page.rendered(TEXT) == TEXT, "run python -m benchmarks.page"
    for picture in re.findall(r"\]\((images/[\w-]+\.svg)\)", TEXT):
        assert (page.DOCS / picture).is_file()


def test_a_changed_number_and_a_missing_block_are_seen() -> None:
    number = re.search(r"\d\.\d+ us", page.launch_table())
    assert number and page.rendered(TEXT.replace(number[0], "0.123 us")) == TEXT
    with pytest.raises(ValueError, match="it should have"):
        page.rendered(TEXT.replace("<!-- /nbody -->", ""))


def test_shares_are_of_the_copys_rate() -> None:
    operator = {
        "forward": {"torch": {"median": 4.0}, "rawkern": {"median": 2.0}, "Liger": {"error": "not installed"}},
        "limits": [1.5, 3.0],
    }
    assert page.share(operator, "forward", "rawkern") == 0.75
    assert page.share(operator, "forward", "torch") == 0.375
    assert page.share(operator, "forward", "Liger") is None
    assert page.share(operator, "backward", "rawkern") is None


def test_pictures(tmp_path: Path) -> None:
    made = page.draw(tmp_path)
    assert {path.name for path in made} == set(re.findall(r"images/(benchmarks-\w+\.svg)", TEXT))
    again = [path.read_bytes() for path in made]
    assert [path.read_bytes() for path in page.draw(tmp_path)] == again
