"""Checks every launch of a test run: what ``--rawkern-check`` registers with pytest."""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from typing import Any

import pytest

from rawkern import errors
from rawkern.checked import launches
from rawkern.errors import CheckError
from rawkern.launch import level


def settle(config: pytest.Config, chosen: str) -> None:
    """Set the level of checks for the whole run, including programs that the tests start."""
    environment = pytest.MonkeyPatch()
    environment.setenv(level.VARIABLE, chosen)
    level.push(config, chosen)
    config.add_cleanup(lambda: level.pop(config))
    config.add_cleanup(environment.undo)
    if chosen == level.FULL:
        config.pluginmanager.register(CheckedRun(config), "rawkern.testing.checked")


class CheckedRun:
    """Run all checks for the whole test run: each finding fails its test.

    That includes a finding that the test's code catches, or that is raised on another thread. A test handles the
    findings inside its own ``with rawkern.check()``.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._depth = level.depth()
        self._found: list[CheckError] = []
        launches.listeners.append(self._hear)
        config.add_cleanup(self._end)

    def _end(self) -> None:
        launches.listeners.remove(self._hear)

    def _hear(self, error: CheckError) -> None:
        if level.depth() == self._depth:
            self._found.append(error)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self._found.clear()
        if item.get_closest_marker("rawkern_unchecked") is None:
            return (yield)
        before, self._depth = self._depth, -1  # ignores findings of the test's own contexts
        os.environ[level.VARIABLE] = level.BOUNDS
        try:
            with level.scoped(level.BOUNDS):
                return (yield)
        finally:
            os.environ[level.VARIABLE] = level.FULL
            self._depth = before

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self) -> Generator[None, Any, Any]:
        return (yield from self._watched())

    pytest_runtest_teardown = pytest_runtest_setup

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        marker = item.get_closest_marker("rawkern_finding")
        if marker is None or item.get_closest_marker("rawkern_unchecked"):
            return (yield from self._watched())
        kinds, match = _expected(*marker.args, **marker.kwargs)

        def fits(error: CheckError) -> bool:
            return isinstance(error, kinds) and re.search(match, str(error)) is not None

        try:
            yield
        except CheckError as error:
            if not fits(error):
                raise
        else:
            if not any(map(fits, self._found)):
                self._report()
                names = " or ".join(marker.args)
                pytest.fail(f"no launch of the test had the finding that its marker expects: {names}", pytrace=False)
        self._found.clear()

    def _watched(self) -> Generator[None, Any, Any]:
        """Run one phase of a test; raise findings that the test did not raise."""
        try:
            result = yield
        except pytest.skip.Exception:
            self._report()
            raise
        except BaseException as error:
            self._found = [each for each in self._found if each not in _chain(error)]
            if self._found:
                error.add_note(self._text())
            self._found.clear()
            raise
        self._report()
        return result

    def _report(self) -> None:
        if self._found:
            text = self._text()
            self._found.clear()
            pytest.fail(text, pytrace=False)

    def _text(self) -> str:
        each = "\n\n".join(f"{type(error).__name__}: {error}" for error in self._found)
        return f"checked launches had findings that the test did not raise:\n{each}"


def _chain(error: BaseException | None) -> list[BaseException]:
    """An error and its causes."""
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def _expected(*names: str, match: str = "") -> tuple[tuple[type[CheckError], ...], str]:
    """The arguments of the marker ``rawkern_finding``: names, as pytest would decorate a class that is the only one."""
    kinds: list[type[CheckError]] = []
    for name in names:
        kind = getattr(errors, name, None) if isinstance(name, str) else None
        if not (isinstance(kind, type) and issubclass(kind, CheckError)):
            pytest.fail(f"the marker rawkern_finding takes names of rawkern's CheckErrors, got {name!r}", pytrace=False)
        kinds.append(kind)
    return tuple(kinds) or (CheckError,), match
