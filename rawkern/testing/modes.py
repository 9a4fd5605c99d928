"""A test run in other orders, or by another GPU's limits: ``--rawkern-order``, ``--rawkern-arch``."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from rawkern.launch import modes

_NAME = "_rawkern_order"  # of the parameter that tests have besides their own


def settle_architecture(config: pytest.Config, name: str) -> None:
    """Keep a GPU's limits for the whole run, also in programs that the tests start."""
    try:
        asked = modes.architecture(name)
    except ValueError:
        gpus = ", ".join(each.name for each in modes.gpus.SPECIFICATIONS.values())
        raise pytest.UsageError(f"--rawkern-arch={name}: there is no such GPU; name one of {gpus}") from None
    environment = pytest.MonkeyPatch()
    environment.setenv(modes.ARCHITECTURE, name)
    asked.__enter__()
    config.add_cleanup(lambda: asked.__exit__(None, None, None))
    config.add_cleanup(environment.undo)


def settle_orders(config: pytest.Config, text: str) -> None:
    """Run each test once for each of the seeds that are given, with commas between them."""
    try:
        seeds = tuple(dict.fromkeys(modes.parse_seed(part.strip(), "it") for part in text.split(",")))
    except ValueError:
        raise pytest.UsageError(f"--rawkern-order={text}: name seeds, 0 or more, such as 0,1,7") from None
    config.pluginmanager.register(OrderedRun(seeds), "rawkern.testing.order")


class OrderedRun:
    """Each test under each of several orders; one that takes no parameters, as those of unittest, under the first."""

    def __init__(self, seeds: tuple[int, ...]) -> None:
        self._seeds = seeds

    @pytest.hookimpl(trylast=True)  # behind the test's own parameters, in its name as well
    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        metafunc.fixturenames.append(_NAME)
        metafunc.parametrize(_NAME, self._seeds, ids=[f"order{seed}" for seed in self._seeds])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        seed = getattr(getattr(item, "callspec", None), "params", {}).get(_NAME, self._seeds[0])
        with pytest.MonkeyPatch.context() as environment, modes.order(seed):
            environment.setenv(modes.ORDER, str(seed))  # for programs that the test starts
            return (yield)
