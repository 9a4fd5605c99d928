"""Progress bars, by tqdm if it is installed, for work longer than a second; none without a terminal."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

DELAY = 1.0  # seconds of work before a bar appears


@contextlib.contextmanager
def progress(what: str, total: int | None, unit: str) -> Iterator[Callable[[], Any]]:
    """Show how far some work is: what is yielded is to be called after each of its parts.

    The bar goes to stderr if that is a terminal or belongs to a notebook, and is taken away at the end.
    """
    made = _tqdm() if _watched() else None
    if made is None:
        yield lambda: None
        return
    with made(total=total, desc=what, unit=unit, delay=DELAY, leave=False, file=sys.stderr) as bar:
        yield bar.update


def _watched() -> bool:
    if sys.stderr is None:
        return False
    if sys.stderr.isatty():
        return True
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and "IPKernelApp" in shell.config


def _tqdm() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a notebook without widgets gets a bar of characters
        try:
            from tqdm.auto import tqdm
        except ImportError:
            return None
    return tqdm
