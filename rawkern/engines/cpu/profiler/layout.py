"""Records that a profiled kernel's code shares with Python."""

from __future__ import annotations

from typing import Any

from rawkern.base.records import Record
from rawkern.engines.cpu.records import MEMORY

#: What launches know of their memory, and in which `ranges` (RANGE) distinct sectors are marked; the last has no end.
#: Builds that trace write requests at `trace`, while there is `room`, in rows.
PROFILE = Record("Profile", (*MEMORY.fields, ("ranges", "ptr"), ("trace", "ptr"), ("room", "i64")))
ROW = 35  # words of a row: access and warp, lanes and block (two words), an address for each lane
#: Memory from `start` on. `shift` makes its addresses those of a GPU, where allocations are aligned to more than a
#: line; `map` has a byte for each sector, which is set when the sector is touched, if there is a map.
RANGE = Record("Range", (("start", "i64"), ("size", "i64"), ("shift", "i64"), ("map", "ptr")))
#: Counters of one instruction that accesses memory. `requests`, `sectors`, `ideal` and `lines` are those of global and
#: local memory; `shared`, `wavefronts` and `wavefronts_ideal` of shared memory. `collisions`: the most lanes of each
#: warp with one address. `low`, `high`: the least and the most bytes from one active lane to the next, of the first
#: two. `misaligned`: bits below a sector of the first lane's addresses, were lanes contiguous. `plain`: how often whole
#: warps accessed shared memory in a way of which all is known when code is made (`Counting`). `lanes`: offsets in
#: shared memory of the lanes of `mask`, of the request with the most wavefronts too many, and `worst`, one more than
#: those; 0 before there is one.
ACCESS = Record(
    "Access",
    (
        ("requests", "i64"), ("sectors", "i64"), ("ideal", "i64"), ("lines", "i64"),
        ("shared", "i64"), ("wavefronts", "i64"), ("wavefronts_ideal", "i64"), ("collisions", "i64"),
        ("low", "i64"), ("high", "i64"), ("misaligned", "i64"), ("plain", "i64"),
        ("worst", "i64"), ("mask", "i64"), ("lanes", "[32 x i32]"),
    ),
)  # fmt: skip
NONE_LOW, NONE_HIGH = (1 << 63) - 1, -(1 << 63)  # of `low` and `high`, before there are two lanes
#: Bytes before the counters of a block's memory: for each warp the word with which bounds find its calls.
HEADS = 32 * 8
SECTOR, LINE = 32, 128


class Tally:
    """The counters of one build: how many words, and those of accesses and of blocks, as plain data."""

    def __init__(self) -> None:
        self.words = 0
        self.accesses: list[dict[str, Any]] = []
        self.blocks: list[dict[str, Any]] = []

    def room(self, words: int) -> int:
        """Where so many further counters stand."""
        self.words += words
        return self.words - words
