"""Tensors that a kernel's launches have found addresses of, kept so that the next launch need not ask Python."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
import torch

from rawkern.arguments.addresses import HOLDERS, storage
from rawkern.base import torch_private as private
from rawkern.base.llvm import LoadedObject, stored_object
from rawkern.base.records import LISTED, filled
from rawkern.base.table import TABLE, keep, preamble, table
from rawkern.engines.cpu.records import LAUNCH, LED_TO, MEMORY
from rawkern.errors import UnsupportedError

MOST_BYTES = 1 << 25  # of an argument or a tensor in which addresses are looked for


_PACK = Struct(LED_TO.format("ref", "live")).pack_into


class Words(NamedTuple):
    """64-bit words in which addresses may stand, and how native code finds them, as `LED_TO` has it."""

    words: np.ndarray
    base: int
    extent: int = 0
    known: int = 0


class Row(NamedTuple):
    """A tensor's storage, and where its address has stood."""

    ref: weakref.ref[torch.Tensor]
    start: int
    size: int
    base: int
    extent: int
    offset: int
    known: int


class Recalled:
    """What `recall.ll` reads of tensors: where in `places`, or in each other, their addresses stand.

    For tensors whose address none of them holds now, what was found `before` is kept.
    """

    def __init__(
        self, refs: Iterable[weakref.ref[torch.Tensor]], places: Sequence[Words], before: Recalled | None = None
    ) -> None:
        # by identity, as comparing weak references compares the tensors
        left = {id(ref): (ref, *storage(t), t.dtype in HOLDERS) for ref in refs if (t := ref()) is not None}
        self._table = (ctypes.c_uint64 * (LED_TO.size // 8 * (len(left) + 1)))()
        at, work = ctypes.addressof(self._table), list(places)
        self._rows: list[Row] = []
        while work and left:
            place = work.pop(0)
            for key, (ref, start, size, holds) in list(left.items()):
                hits = np.flatnonzero((place.words >= start) & (place.words < start + size))
                if not len(hits) or any(start < r.start + r.size and r.start < start + size for r in self._rows):
                    continue  # what overlaps is left to Python: the ranges are looked up as if none did
                del left[key]
                if holds:
                    here = at + LED_TO.size * len(self._rows)
                    address, extent = (here + LED_TO.offset(field) for field in ("start", "live"))
                    work.append(Words(words_at(start, size), address, extent))
                offset = 8 * int(hits[0])
                known = place.known and place.known + 2 * offset
                self._rows.append(Row(ref, start, size, place.base, place.extent, offset, known))
        if before is not None:
            self._keep(before, left)
        for k, row in enumerate(self._rows):
            _PACK(self._table, LED_TO.size * k, id(row.ref), *row[1:], 0)
        order = sorted(range(len(self._rows)), key=lambda k: self._rows[k].start)
        self._sorted = (ctypes.c_uint64 * max(len(order), 1))(*(at + LED_TO.size * k for k in order))
        self._room = (ctypes.c_uint64 * (2 * len(order) + 2))()  # an empty row before the others
        self.count = len(order)
        #: Fields of a `MEMORY`.
        self.fields = {
            "tensors": at, "sorted": ctypes.addressof(self._sorted), "recalled": ctypes.addressof(self._room) + 16,
        }  # fmt: skip

    def _keep(self, before: Recalled, left: Mapping[int, tuple[Any, int, int, bool]]) -> None:
        """Add the rows of before of tensors that are left and have the same memory still."""
        first = ctypes.addressof(before._table)
        for row in before._rows:
            same = id(row.ref) in left and left[id(row.ref)][1:3] == row[1:3]
            apart = all(row.start + row.size <= r.start or r.start + r.size <= row.start for r in self._rows)
            if same and apart and not first <= row.base < first + ctypes.sizeof(before._table):
                self._rows.append(row)


def words_at(address: int, size: int) -> np.ndarray:
    """The words from an address on, as many as are looked at."""
    return np.frombuffer(ctypes.string_at(address, min(size, MOST_BYTES) // 8 * 8), np.uint64)


@cache
def entry() -> int:
    """The address of what is called before a launch; 0 where this torch is not one that native code can read."""
    try:
        data, nbytes = private.storage_layout()
        readings = preamble()
        table()
    except UnsupportedError:
        return 0
    body = Path(__file__).with_name("recall.ll").read_text()
    records = (LAUNCH, MEMORY, LED_TO, LISTED)
    body = filled(body, (*records, TABLE), {"data_offset": data, "nbytes_offset": nbytes})
    text = "\n".join([*(record.llvm for record in records), readings, body])
    loaded = LoadedObject(stored_object(text))
    keep(loaded)
    return loaded.address("rk_recall")
