"""Memory of the variables of a module's programs: in C++ there is one of each name, whichever instances use it.

Template instances that are asked for later are programs of their own. A variable that an earlier program has keeps its
place; others follow. So the offsets in a program's code follow from which programs there were before.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import mmap
from dataclasses import replace
from typing import TYPE_CHECKING

from rawkern.engines.cpu.records import Globals
from rawkern.engines.cpu.runtime.jit import Translation
from rawkern.errors import UnsupportedError

if TYPE_CHECKING:  # a program whose code is in the cache is not parsed
    from rawkern.engines.cpu.ptx.data import Ptx, Var

ROOM = 16 << 20  # for variables of later programs; untouched pages take no memory


class Variables:
    """One block of memory, laid out program by program. Its method is called under the lock of the module's build."""

    def __init__(self) -> None:
        self.address = 0
        self._programs: list[tuple[Translation, Globals]] = []
        self._size = self._room = 0
        self._memory: mmap.mmap | None = None

    def add(self, translation: Translation) -> Globals:
        """Lay out a program's variables and give the new ones their first values."""
        own = translation.globals()
        if self._memory is None:
            self._room = own.size + ROOM
            self._memory = mmap.mmap(-1, self._room, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self._memory.madvise(mmap.MADV_NOHUGEPAGE)  # most modules have a few bytes
            self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        layout = self._beside(own, translation.parsed()) if self._programs and own.offsets else own
        size = max(self._size, layout.size)
        if size > self._room:
            raise UnsupportedError(
                f"a template instance requested after others has {size - self._size} bytes of variables, and "
                f"there is room for {self._room - self._size}; name the instances in name_expressions"
            )
        names = sorted(own.offsets, key=own.offsets.__getitem__)
        for k, name in enumerate(names):
            at, to = own.offsets[name], layout.offsets[name]
            end = own.offsets[names[k + 1]] if k + 1 < len(names) else own.size
            if to < self._size:
                continue
            ctypes.memmove(self.address + to, own.image[at:end], end - at)
            for place, other, addend in own.pointers if at != end else ():  # that start with the address of another
                if at <= place < end:
                    value = self.address + layout.offsets[other] + addend
                    ctypes.c_uint64.from_address(self.address + to + place - at).value = value
        moved, self._size = layout.offsets != own.offsets, size
        layout = replace(layout, size=size, moved=_digest(layout.offsets) if moved else "")
        self._programs.append((translation, layout))
        return layout

    def _beside(self, own: Globals, ptx: Ptx) -> Globals:
        """The layout of a program after others."""
        offsets, size = {}, self._size
        for name in own.offsets:
            var = ptx.variables[name]
            known = self._known(name, var)
            if known is None:
                known = -(-size // max(var.align, 16)) * max(var.align, 16)
                size = known + max(var.size, 1)
            offsets[name] = known
        return replace(own, offsets=offsets, size=size)

    def _known(self, name: str, var: Var) -> int | None:
        """Where an earlier program has a variable."""
        if name.startswith(("$", "__unnamed")):  # the compiler's, numbered in each program
            return None
        for translation, layout in self._programs:
            if name in layout.offsets:
                other = translation.parsed().variables[name]
                same = (other.space, other.size, other.init) == (var.space, var.size, var.init)
                return layout.offsets[name] if same and layout.offsets[name] % max(var.align, 1) == 0 else None
        return None


def _digest(offsets: dict[str, int]) -> str:
    return hashlib.sha256(json.dumps(offsets).encode()).hexdigest()
