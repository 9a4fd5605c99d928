"""Operators from one declaration: `rawkern.op`."""

from rawkern.operators.define import op

__all__ = ["op"]
