"""What public objects have in common: they are shared, and a misspelled attribute of theirs cannot be set."""

from __future__ import annotations

import functools
import inspect
from typing import Any, Self


@functools.cache
def _settable(kind: type) -> frozenset[str]:
    """The attributes that a class names, with a value or a type."""
    return frozenset(name for each in kind.__mro__ for name in (*vars(each), *inspect.get_annotations(each)))


class Shared:
    """What is shared and not copied: a copy of a module of torch's has the same kernels.

    Only what its class names can be set.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _settable(type(self)):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}: setting it would change nothing")
        object.__setattr__(self, name, value)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self
