"""Bytes by key on disk: what was compiled once is read back, never trusted unchecked.

Each entry is one file that starts with the checksum of its key and the rest. Entries are written to a temporary file
and moved into place, so that a reader in another process sees a whole entry or none. A disk that is full or read-only
costs speed, not correctness.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import marshal
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from rawkern.base.forking import Lock
from rawkern.errors import RawkernError

_MAGIC = b"rawkern-cache 2\n"
_DIGEST_SIZE = hashlib.sha256().digest_size
_HEADER_SIZE = len(_MAGIC) + _DIGEST_SIZE
_STATES = 2  # marshal's format in which they are kept
_SETTLED = 2_000_000_000  # nanoseconds after which a change of a file has a time of its own on every file system
_SUFFIX, _FILE_SUFFIX = ".bin", ".cu"
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}\Z")

# The directory that was checked last, by the setting it came from, and what it was then: checking costs a dozen system
# calls.
_checked: tuple[tuple[str, str, str], Path, tuple[int, ...] | None] | None = None


class CacheInfo(NamedTuple):
    """What the cache holds: its directory, the number of entries and their total size in bytes."""

    directory: Path
    entries: int
    nbytes: int


class Stored(NamedTuple):
    """One entry on disk: its key, file, size in bytes, and when it was written (seconds since the epoch)."""

    key: str
    path: Path
    nbytes: int
    written: float


def state_of(folder: str | Path, *files: str | Path) -> str:
    """A digest of the files in a folder, and of some others: what one state of a package is told from others by.

    Every first launch waits for this, so the digest is kept with the files and folders as the file system knew them. A
    file that was added, removed or renamed shows in its folder.
    """
    given = [str(folder), *map(str, files)]
    key = f"state-{digest(repr((_STATES, given)))}"
    stored = get_record(key)
    if stored is not None:
        known, body = stored
        with contextlib.suppress(OSError):
            if marshal.dumps(_states(known["paths"].split("\0")), _STATES) == body:
                return known["digest"]
    now = time.time_ns()
    folders, found, states = given[:1], [], []
    for path in folders:  # to which those within are added
        states += _states([path])
        with os.scandir(path) as entries:
            for entry in entries:
                if not entry.is_dir():
                    found.append(entry.path)
                elif entry.name != "__pycache__":
                    folders.append(entry.path)
    found = [*sorted(found), *given[1:]]
    states += _states(found)
    content = hashlib.sha256()
    for path in found:
        with open(path, "rb", buffering=0) as file:
            content.update(file.read())
    # The clock of a file system has steps: what was changed just now may change again without looking different.
    if all(now - changed > _SETTLED for *_, changed in states):
        known = {"paths": "\0".join([*folders, *found]), "digest": content.hexdigest()}
        put_record(key, known, marshal.dumps(states, _STATES))  # a thousand numbers, which take long to parse
    return content.hexdigest()


def _states(paths: list[str]) -> list[tuple[int, int, int, int]]:
    """What the file system knows of files and folders: four numbers each, the last is when that changed."""
    return list(map(attrgetter("st_ino", "st_size", "st_mtime_ns", "st_ctime_ns"), map(os.stat, paths)))


def directory() -> Path:
    """Return the cache directory, made and checked; it may be unwritable, but other users cannot write to it.

    It is ``RAWKERN_CACHE_DIR`` where that is set, else ``rawkern`` in the platform's user cache folder. RawkernError
    if another user could put files into it: machine code read from there would run as this user.
    """
    global _checked
    setting = (
        os.environ.get("RAWKERN_CACHE_DIR", ""),
        os.environ.get("XDG_CACHE_HOME", ""),
        os.environ.get("HOME", ""),
    )
    known = _checked
    if known is not None and known[0] == setting and _identity(known[1]) == known[2]:
        return known[1]
    path = configured()
    with contextlib.suppress(OSError):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = _resolved(path)
    identity = _identity(path)  # before the check, which so is made again for what takes its place meanwhile
    _check_private(path)
    _checked = (setting, path, identity)
    return path


def _identity(path: Path) -> tuple[int, ...] | None:
    """What tells a directory from another one in its place, or from itself with other rights; None for none."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mode, status.st_uid


def get(key: str) -> bytes | None:
    """Return the bytes stored under a key, or None if there are none or they are damaged (they are then removed)."""
    path = _file(key)
    content = _content(path)
    if content is None:
        return None
    data = content[_HEADER_SIZE:]
    if content[:_HEADER_SIZE] == _header(key, data):
        return data
    with contextlib.suppress(OSError):
        os.unlink(path)
    return None


def put(key: str, data: bytes) -> None:
    """Store bytes under a key, replacing what was there; silently does nothing where the disk takes no files."""
    _write(_path(key), _header(key, data), data)


def put_file(key: str, data: bytes) -> Path | None:
    """Store bytes as a file that other programs can read, and return its path; None where the disk takes no files."""
    path = _path(key, _FILE_SUFFIX)
    if _content(path) == data:
        return path
    return path if _write(path, data) else None


def _content(path: str | Path) -> bytes | None:
    """The bytes of a file; None where there is none, or something else: a pipe would wait, a link leads away."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            return None
        parts = []
        while part := os.read(handle, status.st_size + 1):
            parts.append(part)
        return b"".join(parts)
    except OSError:
        return None
    finally:
        os.close(handle)


def _write(path: Path, *parts: bytes) -> bool:
    """Put a file into place whole; False where the disk takes none."""
    temporary = None
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=".tmp-", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.writelines(parts)
        os.replace(temporary, path)
        return True
    except OSError:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        return False


def _header(key: str, data: bytes) -> bytes:
    """What an entry begins with: of the key as well, so that a file under another one's name is not taken for it."""
    return _MAGIC + hashlib.sha256(b"%s\n%s" % (key.encode(), data)).digest()


def get_record(key: str) -> tuple[Any, bytes] | None:
    """Return the JSON value and the bytes stored by `put_record`, or None if there are none or they are damaged."""
    data = get(key)
    if data is None:
        return None
    head, _, body = data.partition(b"\n")
    try:
        return json.loads(head), body
    except ValueError:
        return None


def put_record(key: str, value: Any, body: bytes = b"") -> None:
    """Store a JSON value and bytes under a key, as `put` does."""
    put(key, json.dumps(value).encode() + b"\n" + body)


_kept: dict[str, Any] = {}
_lock = Lock()


def kept(key: str, ask: Callable[[], Any]) -> Any:
    """Return the JSON value kept under a key, in memory or on disk, asking for it where there is none."""
    with _lock:
        if key in _kept:
            return _kept[key]
    stored = get_record(key)
    value = ask() if stored is None else stored[0]
    if stored is None:
        put_record(key, value)
    with _lock:
        _kept[key] = value
    return value


def digest(text: str) -> str:
    """Return a text that stands for another one in a key."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


@contextlib.contextmanager
def exclusive(name: str) -> Iterator[None]:
    """Let one process at a time go on, among those that use this directory; without a lock where it takes no files."""
    try:
        handle = os.open(directory() / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        yield
        return
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        with contextlib.suppress(OSError):  # closing is not enough: a child forked meanwhile has it open, too
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


def clear(older_than: float = 0.0) -> CacheInfo:
    """Remove the entries written more than so many seconds ago; a file that is not rawkern's own is left alone.

    Returns what was removed. Entries written meanwhile by other processes may stay.
    """
    now, count, nbytes = time.time(), 0, 0
    for entry in [*entries(), *_unfinished()]:
        if now - entry.written >= older_than:
            with contextlib.suppress(OSError):
                entry.path.unlink()
                count += 1
                nbytes += entry.nbytes
    return CacheInfo(directory(), count, nbytes)


def info() -> CacheInfo:
    """Return the directory, the number of entries and their size in bytes."""
    found = entries()
    return CacheInfo(directory(), len(found), sum(entry.nbytes for entry in found))


def entries() -> list[Stored]:
    """Return every entry; a file counts as one only where its name belongs into its folder, as `put` chooses it."""
    found = []
    for path in directory().glob("??/*"):
        key, suffix = path.stem, path.suffix
        if suffix not in (_SUFFIX, _FILE_SUFFIX) or not _KEY.match(key) or path != _path(key, suffix):
            continue
        if (stored := _stored(key, path)) is not None:
            found.append(stored)
    return found


def configured() -> Path:
    """Return the directory as the settings name it, neither made nor checked."""
    setting = os.environ.get("RAWKERN_CACHE_DIR", "")
    if setting:
        return Path(setting).expanduser().absolute()
    import platformdirs  # only where needed: RAWKERN_CACHE_DIR spares the import

    return Path(platformdirs.user_cache_dir("rawkern", appauthor=False))


def _resolved(path: Path) -> Path:
    """Follow symbolic links once, so that what was checked is what is used afterwards."""
    try:
        return path.resolve(strict=False)
    except (OSError, RuntimeError) as error:
        raise RawkernError(f"the cache directory {path} cannot be resolved: {error}; {_WHAT_TO_DO}") from None


_WHAT_TO_DO = "set RAWKERN_CACHE_DIR to a directory that only you can write to"


def _check_private(path: Path) -> None:
    """Reject a directory that another user can write to or replace."""
    try:
        status = os.stat(path)
    except OSError:
        return  # not there and not to be made: get finds nothing, put does nothing
    if not stat.S_ISDIR(status.st_mode):
        raise RawkernError(f"the cache directory {path} is not a directory; {_WHAT_TO_DO}")
    if status.st_uid != os.geteuid():
        raise RawkernError(f"the cache directory {path} belongs to user {status.st_uid}, not to you; {_WHAT_TO_DO}")
    if status.st_mode & 0o022:
        mode = stat.S_IMODE(status.st_mode)
        raise RawkernError(
            f"others can write to the cache directory {path} (mode {mode:04o}); chmod go-w it, or {_WHAT_TO_DO}"
        )
    for parent in path.parents:
        _check_parent(path, parent)


def _check_parent(path: Path, parent: Path) -> None:
    """Reject a parent in which another user could replace the directory."""
    try:
        status = os.stat(parent)
    except OSError:
        return
    if status.st_uid not in (0, os.geteuid()) and status.st_mode & 0o200:
        raise RawkernError(
            f"the cache directory {path} is in {parent}, which belongs to user {status.st_uid}; {_WHAT_TO_DO}"
        )
    # With the sticky bit (/tmp) only owners rename their entries, so ours stays ours.
    if status.st_mode & 0o002 and not status.st_mode & stat.S_ISVTX:
        raise RawkernError(f"the cache directory {path} is in {parent}, which others can write to; {_WHAT_TO_DO}")


def _path(key: str, suffix: str = _SUFFIX) -> Path:
    return Path(_file(key, suffix))


def _file(key: str, suffix: str = _SUFFIX) -> str:
    if not _KEY.match(key):
        raise ValueError(f"{key!r} is not a cache key; use up to 200 letters, digits, '_', '-' and '.'")
    # Two characters of the key as a folder keep directories small; hashed keys spread evenly.
    return f"{directory()}{os.sep}{hashlib.sha256(key.encode()).hexdigest()[:2]}{os.sep}{key}{suffix}"


def _unfinished() -> list[Stored]:
    """The temporary files of `put`, which a process that died has left behind."""
    found = (_stored("", path) for path in directory().glob("[0-9a-f][0-9a-f]/.tmp-" + 8 * "[a-z0-9_]"))
    return [stored for stored in found if stored is not None]


def _stored(key: str, path: Path) -> Stored | None:
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return Stored(key, path, status.st_size, status.st_mtime) if stat.S_ISREG(status.st_mode) else None
