"""What is known of launches, so that those that are alike begin at once."""

from __future__ import annotations

from typing import Any

MOST = 256  # launches that a loop, a reduction or a backward knows


def keep(known: dict[Any, Any], key: Any, value: Any) -> None:
    """Add to what is known of launches, of which there are never many."""
    if len(known) >= MOST:
        known.clear()
    known[key] = value
