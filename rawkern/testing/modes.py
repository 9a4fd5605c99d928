"""Test runs in other orders, or with another GPU's limits: ``--rawkern-order``, ``--rawkern-arch``."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from rawkern.launch import modes

_NAME = "_rawkern_order"  # of the parameter that is added to tests


def settle_architecture(config: pytest.Config, name: str) -> None:
    """Apply a GPU's limits to the whole run, including programs that the tests start."""
    try:
        asked = modes.architecture(name)
    except ValueError:
        gpus = ", ".join(each.name for each in modes.gpus.SPECIFICATIONS.values())
        raise pytest.UsageError(f"--rawkern-arch={name}: unknown GPU; choose one of {gpus}") from None
    environment = pytest.MonkeyPatch()
    environment.setenv(modes.ARCHITECTURE, name)
    asked.__enter__()
    config.add_cleanup(lambda: asked.__exit__(None, None, None))
    config.add_cleanup(environment.undo)


def settle_orders(config: pytest.Config, text: str) -> None:
    """Run each test once for each of the comma-separated seeds."""
    try:
        seeds = tuple(dict.fromkeys(modes.parse_seed(part.strip(), "it") for part in text.split(",")))
    except ValueError:
        raise pytest.UsageError(f"--rawkern-order={text}: pass seeds of 0 or more, such as 0,1,7") from None
    config.pluginmanager.register(OrderedRun(seeds), "rawkern.testing.order")


class OrderedRun:
    """Run each test in each of several orders; tests without parameters, such as unittest's, only in the first."""

    def __init__(self, seeds: tuple[int, ...]) -> None:
        self._seeds = seeds

    @pytest.hookimpl(trylast=True)  # after the test's own parameters, also in its name
    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        metafunc.fixturenames.append(_NAME)
        metafunc.parametrize(_NAME, self._seeds, ids=[f"order{seed}" for seed in self._seeds])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        seed = getattr(getattr(item, "callspec", None), "params", {}).get(_NAME, self._seeds[0])
        with pytest.MonkeyPatch.context() as environment, modes.order(seed):
            environment.setenv(modes.ORDER, str(seed))  # for programs that the test starts
            return (yield)
