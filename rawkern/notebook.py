"""The cell magic ``%%cuda`` of IPython and Jupyter: CUDA in a cell of its own, its kernels in the notebook's names."""

from __future__ import annotations

import keyword
import shlex
from collections import Counter
from typing import Any

from rawkern.base import frames
from rawkern.base.api_boundary import hide, meant
from rawkern.errors import CompileError
from rawkern.module import RawModule

_SETTINGS = {"--cooperative": "enable_cooperative_groups", "--strided": "strided"}


def register(shell: Any) -> None:
    """Give an IPython shell the magic ``%%cuda``."""

    def cuda(line: str, cell: str) -> None:
        """Compile a cell of CUDA C, and put its kernels into the notebook's names.

        ::

            %%cuda [name] [options]

        A name gets the cell's `rawkern.RawModule`. Options are the compiler's, such as -DN=4, and --cooperative and
        --strided, which are RawModule's enable_cooperative_groups and strided; {N} is the value of Python's N.
        """
        try:
            shell.push(_names(line, cell, frames.caller()))
        except Exception as error:
            if meant(error):  # the message has the place in the cell; frames of IPython do not help
                hide(error)
                shown = shell.InteractiveTB.get_exception_only(type(error), error)
                error._render_traceback_ = lambda: shown  # type: ignore[attr-defined]
            raise

    shell.register_magic_function(cuda, "cell", "cuda")


def _names(line: str, cell: str, place: frames.Place | None) -> dict[str, Any]:
    """What the cell defines: its kernels, and its module if that has a name."""
    words = shlex.split(line)
    given = words.pop(0) if words and not words[0].startswith("-") else None
    if given is not None and not _is_name(given):
        raise ValueError(f"%%cuda {line}: {given!r} is not a name for the cell's module; write %%cuda [name] [options]")
    settings: dict[str, Any] = {_SETTINGS[word]: True for word in words if word in _SETTINGS}
    options = tuple(word for word in words if word not in _SETTINGS)
    # The first line is the magic's: with an empty one in its place, the source's lines are those of the cell.
    module = RawModule("\n" + cell, options=options, **settings)
    if place is not None:
        module = RawModule.of_unit(module.unit.standing((place[0], frames.WHOLE)))
    try:
        module.compile()
    except CompileError as error:
        if error.line is not None or not module.kernels:  # templates alone are compiled by their launches
            raise
    found = _kernels(module, given)
    if given in found:
        raise ValueError(f"%%cuda {line}: the cell has a kernel {given!r}; give its module another name")
    return found | ({} if given is None else {given: module})


def _kernels(module: RawModule, given: str | None) -> dict[str, Any]:
    """The kernels and templates by their names without namespaces, where those tell them apart."""
    names = [name for name in module.kernels if not name.endswith(">")]  # instances come from their template
    count = Counter(name.rpartition("::")[2] for name in names)
    found, apart = {}, {}
    for name in names:
        bare = name.rpartition("::")[2]
        try:
            if count[bare] > 1 or not _is_name(bare):
                raise ValueError(f"{bare} cannot be one name in Python")
            found[bare] = module.launchable(name)
        except ValueError as error:
            apart[name] = error
    if apart and given is None:
        name, error = next(iter(apart.items()))
        raise ValueError(
            f"%%cuda: {error}; give the cell's module a name: %%cuda NAME, and NAME.get_function({name!r})"
        )
    return found


def _is_name(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text)
