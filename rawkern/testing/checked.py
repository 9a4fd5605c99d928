"""A test run with every launch checked: what ``--rawkern-check`` registers with pytest."""

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
    """Have a level of checks for the whole run, also in programs that the tests start."""
    environment = pytest.MonkeyPatch()
    environment.setenv(level.VARIABLE, chosen)
    level.ask(config, chosen)
    config.add_cleanup(lambda: level.give_up(config))
    config.add_cleanup(environment.undo)
    if chosen == level.FULL:
        config.pluginmanager.register(CheckedRun(config), "rawkern.testing.checked")


class CheckedRun:
    """Checks in full for the whole run: each finding fails its test.

    So does one that the test's code catches, or that is raised on another thread. Findings inside a test's own
    ``with rawkern.check()`` are its own affair.
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
        before, self._depth = self._depth, -1  # none of what its own contexts find is ours
        os.environ[level.VARIABLE] = level.BOUNDS
        try:
            with level.asked(level.BOUNDS):
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
                pytest.fail(f"no launch of the test had the finding that its marker names: {names}", pytrace=False)
        self._found.clear()

    def _watched(self) -> Generator[None, Any, Any]:
        """Run one phase of a test; raise what was found in it and did not come up."""
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
        return f"checked launches found what did not come up through the test:\n{each}"


def _chain(error: BaseException | None) -> list[BaseException]:
    """An error with what it came from."""
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def _expected(*names: str, match: str = "") -> tuple[tuple[type[CheckError], ...], str]:
    """The arguments of the marker ``rawkern_finding``; a class alone would be taken for what is marked, hence names."""
    kinds: list[type[CheckError]] = []
    for name in names:
        kind = getattr(errors, name, None) if isinstance(name, str) else None
        if not (isinstance(kind, type) and issubclass(kind, CheckError)):
            pytest.fail(f"the marker rawkern_finding takes names of rawkern's CheckErrors, got {name!r}", pytrace=False)
        kinds.append(kind)
    return tuple(kinds) or (CheckError,), match
