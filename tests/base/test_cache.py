"""The disk cache: what is read back is what was written, or nothing."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rawkern.base import cache
from rawkern.errors import RawkernError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cache"
    monkeypatch.setenv("RAWKERN_CACHE_DIR", str(path))
    return path


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_put_and_get(folder: Path) -> None:
    data = bytes(range(256)) * 3 + b"\n\0"
    assert cache.get("key-1") is None
    cache.put("key-1", data)
    cache.put("key-2", b"")
    assert cache.get("key-1") == data
    assert cache.get("key-2") == b""
    cache.put("key-1", b"new")
    assert cache.get("key-1") == b"new"
    assert cache.info() == (folder, 2, sum(path.stat().st_size for path in _files(folder)))
    cache.clear()
    assert cache.get("key-1") is None and cache.info().entries == 0


def test_directory_is_private_and_follows_the_environment(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cache.directory() == folder
    assert folder.stat().st_mode & 0o777 == 0o700
    monkeypatch.delenv("RAWKERN_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.directory() == tmp_path / "xdg" / "rawkern"


@pytest.mark.parametrize("where", [0, 20, 60, -1])
def test_damaged_entry_is_not_trusted(folder: Path, where: int) -> None:
    cache.put("key", b"machine code" * 10)
    (path,) = _files(folder)
    content = bytearray(path.read_bytes())
    content[where] ^= 1
    path.write_bytes(content)
    assert cache.get("key") is None
    cache.put("key", b"rebuilt")
    assert cache.get("key") == b"rebuilt"


def test_entries_that_were_exchanged_are_not_trusted(folder: Path) -> None:
    cache.put("first", b"code of the first")
    cache.put("second", b"code of the second")
    first, second = sorted(_files(folder), key=lambda path: path.name)
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
    assert cache.get("first") is None and cache.get("second") is None


@pytest.mark.parametrize("length", [0, 10, 30, 100])
def test_truncated_entry_is_not_trusted(folder: Path, length: int) -> None:
    cache.put("key", b"machine code" * 10)
    (path,) = _files(folder)
    path.write_bytes(path.read_bytes()[:length])
    assert cache.get("key") is None


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777, 0o1777])
def test_directory_that_others_can_write_to_is_rejected(folder: Path, mode: int) -> None:
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(RawkernError, match=r"others can write to the cache directory .*cache .*set RAWKERN_CACHE_DIR"):
        cache.get("key")
    folder.chmod(0o755)
    assert cache.get("key") is None


def test_directory_in_one_that_others_can_write_to_is_rejected(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    folder.parent.chmod(0o777)
    with pytest.raises(RawkernError, match=r"is in .* which others can write to"):
        cache.directory()
    folder.parent.chmod(0o1777)  # as /tmp: other users cannot rename our files
    assert cache.directory() == folder


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_directory_of_somebody_else_is_rejected(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, -1)
    with pytest.raises(RawkernError, match="belongs to user 12345, not to you"):
        cache.directory()


def test_symbolic_link_is_followed_to_what_is_checked(folder: Path, tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    real.chmod(0o777)
    folder.symlink_to(real)
    with pytest.raises(RawkernError, match="others can write"):
        cache.directory()
    real.chmod(0o700)
    assert cache.directory() == real


def test_file_in_its_place_is_rejected(folder: Path) -> None:
    folder.write_text("not a directory")
    with pytest.raises(RawkernError, match="is not a directory"):
        cache.directory()


def test_unwritable_disk_only_costs_speed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAWKERN_CACHE_DIR", "/proc/rawkern-cache")  # no file can be made there, not even by root
    cache.put("key", b"data")
    assert cache.get("key") is None


def test_what_is_not_a_file_is_not_read(folder: Path) -> None:
    """A pipe would be waited for, a device never ends, and a link leads elsewhere; what can be replaced, is."""
    cache.put("key", b"data")
    (entry,) = _files(folder)
    content = entry.read_bytes()

    def link() -> None:
        entry.with_suffix(".other").write_bytes(content)
        entry.symlink_to(entry.with_suffix(".other"))

    def bound() -> None:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(os.path.relpath(entry))  # the name of a socket has to be short

    for make in (lambda: os.mkfifo(entry), link, bound, lambda: entry.symlink_to("/dev/zero"), entry.mkdir):
        entry.unlink()
        make()
        assert cache.get("key") is None
        assert cache.put_file("key", b"x") is not None  # another file
        cache.put("key", b"data")
        if not entry.is_dir():
            assert cache.get("key") == b"data"
    os.mkfifo(source := cache.put_file("pipe", b"x").with_name("other.cu"))  # type: ignore[union-attr]
    assert source.exists()


def test_a_lock_that_is_a_pipe(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    os.mkfifo(folder / "one.lock")
    with cache.exclusive("one"):
        cache.put("key", b"data")
    assert cache.get("key") == b"data"


def test_a_directory_that_is_replaced_is_checked_again(folder: Path, tmp_path: Path) -> None:
    cache.put("key", b"data")
    folder.rename(tmp_path / "before")
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(RawkernError, match="others can write to the cache directory"):
        cache.get("key")
    folder.rmdir()
    folder.symlink_to(tmp_path / "before")
    assert cache.get("key") == b"data" and cache.directory() == tmp_path / "before"
    (tmp_path / "before").chmod(0o770)
    with pytest.raises(RawkernError, match="others can write to the cache directory"):
        cache.put("key", b"data")
    (tmp_path / "before").chmod(0o700)
    assert cache.get("key") == b"data"
    folder.unlink()
    (tmp_path / "before").rename(tmp_path / "after")
    cache.put("key", b"new")  # it is made again
    assert folder.stat().st_mode & 0o777 == 0o700 and cache.get("key") == b"new"


def test_full_disk_leaves_nothing_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.put("key", b"old")

    def full(source: str, target: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    cache.put("key", b"new")
    assert cache.get("key") == b"old"
    assert len(_files(folder)) == 1


def test_files_for_other_programs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = cache.put_file("source-1", b"text")
    assert path is not None and (path.suffix, path.read_bytes()) == (".cu", b"text")
    path.write_bytes(b"damaged")
    assert cache.put_file("source-1", b"text") == path and path.read_bytes() == b"text"
    path.with_name("own.cu").write_text("somebody's")
    assert [(entry.key, entry.nbytes) for entry in cache.entries()] == [("source-1", 4)]
    assert cache.clear().entries == 1 and _files(folder) == [path.with_name("own.cu")]
    monkeypatch.setenv("RAWKERN_CACHE_DIR", "/proc/rawkern-cache")
    assert cache.put_file("source-1", b"text") is None


@pytest.mark.parametrize("key", ["", "../evil", "a/b", ".hidden", "x" * 201, "a\n"])
def test_bad_key(folder: Path, key: str) -> None:
    with pytest.raises(ValueError, match="is not a cache key"):
        cache.put(key, b"")


def test_many_threads_and_processes_write_one_key(folder: Path) -> None:
    program = (
        "import sys; from rawkern.base import cache\n"
        "for i in range(100):\n"
        "    cache.put('key', bytes([i]) * 5000)\n"
        "    data = cache.get('key')\n"
        "    assert data is not None and len(set(data)) == 1 and len(data) == 5000, data\n"
    )
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    running = [subprocess.Popen([sys.executable, "-c", program], env=environment) for _ in range(2)]
    wrong: list[bytes | None] = []

    def work() -> None:
        for i in range(100):
            cache.put("key", bytes([i]) * 5000)
            data = cache.get("key")
            if data is None or len(data) != 5000 or len(set(data)) != 1:
                wrong.append(data)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [process.wait() for process in running] == [0, 0]
    assert not wrong


def test_records() -> None:
    value = {"names": ["a", "b"], "size": 3}
    cache.put_record("record-1", value, b"bytes\nwith newlines\n")
    assert cache.get_record("record-1") == (value, b"bytes\nwith newlines\n")
    cache.put_record("record-2", None)
    assert cache.get_record("record-2") == (None, b"")
    assert cache.get_record("record-3") is None
    cache.put("record-4", b"no JSON\nbytes")
    assert cache.get_record("record-4") is None


def test_state_of_files(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, other = tmp_path / "package", tmp_path / "other.py"
    (package / "inner" / "__pycache__").mkdir(parents=True)
    for path in (package / "a.py", package / "inner" / "b.ll", other):
        path.write_text(path.name)
    states = [cache.state_of(package, other)]
    assert not list(folder.rglob("*state-*"))  # what has changed this moment is read again
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() + 10**10)
    assert [cache.state_of(package, other) for _ in range(2)] == states * 2 and list(folder.rglob("*state-*"))
    (package / "inner" / "__pycache__" / "b.pyc").write_text("bytecode")
    assert cache.state_of(package, other) == states[0]
    for path in (package / "inner" / "b.ll", other):  # of the same length, with the former time
        times = path.stat().st_atime_ns, path.stat().st_mtime_ns
        path.write_text(path.name.upper())
        os.utime(path, ns=times)
        states.append(cache.state_of(package, other))
    assert len(set(states)) == 3 and cache.state_of(package, other) == states[-1]
    new = package / "inner" / "c.py"
    new.write_text("new")
    states.append(cache.state_of(package, other))
    os.replace(new, package / "A.py")  # read at another place
    states.append(cache.state_of(package, other))
    assert len(set(states)) == 5
    (package / "A.py").unlink()
    assert cache.state_of(package, other) == states[2]


def test_a_state_of_unchanged_files_is_found_without_reading_them(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "package" / "inner").mkdir(parents=True)
    for name in ("a.py", "inner/b.py"):
        (tmp_path / "package" / name).write_text(name)
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() + 10**10)
    state = cache.state_of(tmp_path / "package")
    monkeypatch.setattr(os, "scandir", None)
    assert cache.state_of(tmp_path / "package") == state
