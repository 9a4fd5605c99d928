"""Files of sources: their bytes, text, checksums and time stamps."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path


def own_sources() -> Path:
    """The directory of rawkern's own ``.cu`` files: inside an installed package, beside it in a source tree."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "cuda_src"
    return inside if inside.is_dir() else package.parent / "cuda_src"


def read(path: str) -> bytes | None:
    """The bytes of a file; None where it cannot be read."""
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError):  # ValueError: no path at all, as one with NUL
        return None


def read_text(path: str) -> str:
    """The text of a file as far as it is one; "" where it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        return ""


def read_patiently(path: str) -> bytes:
    """The bytes of a file that an editor may be about to put in its place."""
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise ValueError(f"{path!r} is not a path: it has an unpaired surrogate") from None
    for pause in (0.005, 0.02, 0.05, 0.1):
        try:
            return Path(path).read_bytes()
        except FileNotFoundError:
            if not os.path.isdir(os.path.dirname(path)):
                break
            time.sleep(pause)
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise error.with_traceback(None) from None


def stamp(path: str) -> tuple[int, int, int, int] | None:
    """What changes when a file does; None where there is none."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    # The inode tells a file that was replaced by one of the same size within the clock's tick; ctime one whose
    # mtime was set back.
    return (status.st_mtime_ns, status.st_size, status.st_ino, status.st_ctime_ns)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
