"""The names that were probably meant where one is not known."""

from __future__ import annotations

from collections.abc import Iterable

_SIMILAR, _MARGIN = 0.6, 0.1  # difflib's ratio, and how far it may be below the best


def did_you_mean(name: object, known: Iterable[object], most: int = 2, least: float = _SIMILAR) -> str:
    """The end of a message on an unknown name, ``"; did you mean 'saxpy'?"``; "" where no known one is near.

    Case, underscores and hyphens do not count.
    """
    import difflib

    folded: dict[str, str] = {}
    for each in map(str, known):
        folded.setdefault(_folded(each), each)
    wanted = _folded(str(name))
    found = difflib.get_close_matches(wanted, folded, most, least)
    shares = [difflib.SequenceMatcher(None, each, wanted).ratio() for each in found]
    near = [folded[each] for each, share in zip(found, shares, strict=True) if share > shares[0] - _MARGIN]
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


def _folded(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "") or name
