"""Options of the compiler as users give them: checked, include directories apart."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence

_INCLUDE_OPTION = re.compile(r"(?:-I|--include-path)(?:=|\s+)?(.*)\Z", re.DOTALL)
_REJECTED = (
    (re.compile(r"--?(?:gpu-architecture|arch|gencode|generate-code|gpu-code|code)\b"),
     "the tensors' device decides the architecture; leave it out"),
    (re.compile(r"--?(?:dlto|dlink-time-opt|rdc=true|relocatable-device-code=true|dc|device-c|ltoir|optix-ir)\b"),
     "kernels are loaded without a link step; leave it out, and launch from Python what a kernel would launch"),
    (re.compile(r"--?(?:time|fdevice-time-trace|create-pch|use-pch|pch)\b"),
     "the compiler would write files, or read files that the cache key does not cover; leave it out"),
    (re.compile(r"(?:-Xptxas|--?ptxas-options)\b.*?(?:^|[=, ])--?(?:o|output-file|optf|options-file)\b"),
     "the assembler's input and output are rawkern's; leave it out"),
)  # fmt: skip
_TAKE_VALUE = {
    "-I", "--include-path", "-D", "--define-macro", "-U", "--undefine-macro", "-include", "--pre-include", "-std",
    "--std",
}  # fmt: skip


def settings(
    options: Sequence[str], include_dirs: Sequence[str | os.PathLike[str]]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return checked options without include directories, and all include directories, absolute."""
    if not isinstance(options, (tuple, list)) or not all(isinstance(option, str) for option in options):
        raise TypeError(f"options is {options!r}; pass a tuple of strings, such as options=('-DN=4',)")
    if not isinstance(include_dirs, (tuple, list)):
        raise TypeError(
            f"include_dirs is {include_dirs!r}; pass a sequence of directories, such as include_dirs=['include']"
        )
    kept: list[str] = []
    directories: list[str] = []
    for option in _joined(options):
        if match := _INCLUDE_OPTION.match(option):
            directories.append(match[1])
            continue
        for pattern, reason in _REJECTED:
            if pattern.match(option):
                raise ValueError(f"option {option!r} cannot be used: {reason}")
        kept.append(option)
    directories = [os.path.abspath(os.fspath(directory)) for directory in (*include_dirs, *directories)]
    for directory in directories:
        if not os.path.isdir(directory):
            raise ValueError(f"include directory {directory} is not a directory")
    return tuple(kept), tuple(dict.fromkeys(directories))


def _joined(options: Iterable[str]) -> list[str]:
    """Join options given as two strings, such as "-D", "N=4"; NVRTC takes each in one string."""
    joined: list[str] = []
    waiting = ""
    for option in map(str.strip, options):
        if waiting:
            joined.append(waiting + ("" if waiting in ("-I", "-D", "-U") else "=") + option)
            waiting = ""
        elif option in _TAKE_VALUE:
            waiting = option
        elif option:
            joined.append(option)
    if waiting:
        raise ValueError(f"option {waiting!r} has no value")
    return joined
