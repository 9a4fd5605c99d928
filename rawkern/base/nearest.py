"""The names that were probably meant where one is not known."""

from __future__ import annotations

from collections.abc import Iterable

_SIMILAR = 0.6  # difflib's ratio, of the names without regard to case and underscores


def did_you_mean(name: object, known: Iterable[object], most: int = 2) -> str:
    """The end of a message on an unknown name, ``"; did you mean 'saxpy'?"``; "" where no known one is near."""
    import difflib

    folded: dict[str, str] = {}
    for each in map(str, known):
        folded.setdefault(_folded(each), each)
    wanted = _folded(str(name))
    near = [folded[found] for found in difflib.get_close_matches(wanted, folded, most, _SIMILAR)]
    if wanted in folded:  # it differs in case or underscores alone
        near = [folded[wanted]]
    near = [each for each in near if each != str(name)]
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


def _folded(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "") or name
