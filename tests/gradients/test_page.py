"""The page of what is derived, and of what is not supported, is that of the tests."""

from __future__ import annotations

from tests.gradients.page import COMMAND, PAGE, page


def test_the_page_is_made_of_the_tests() -> None:
    assert PAGE.read_text() == page(), f"write it again: {COMMAND}"
