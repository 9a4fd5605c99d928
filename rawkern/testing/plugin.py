"""The pytest plugin: fixtures ``device`` and ``rawkern_profile``, markers ``gpu`` and ``multigpu``, options.

It is loaded in every environment that has rawkern, so torch and CuPy are imported only once a test needs a GPU or an
option asks for something.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Generator
from typing import Any

import pytest

KNOWN = ("cpu", "cuda")
MARKERS = {
    "gpu": "needs an NVIDIA GPU that torch and CuPy can use; skipped where there is none",
    "multigpu": "needs two of them; such a test is a gpu test too",
    "rawkern_finding(*errors, match='')": "under --rawkern-check the test must have a finding of one of these kinds, "
    "given by name ('RaceError'), in whose text the regular expression is found",
    "rawkern_unchecked(reason)": "under --rawkern-check the launches of the test are not checked",
}


class _Device(str):
    """A value of the fixture ``device`` here: tells it from those of a fixture of that name elsewhere."""


@pytest.fixture(
    params=[
        pytest.param(_Device("cpu"), id="cpu"),
        pytest.param(_Device("cuda"), id="cuda", marks=pytest.mark.gpu),
    ]
)
def device(request: pytest.FixtureRequest) -> str:
    """Each device that kernels run on: "cpu", and "cuda" where there is a GPU."""
    return str(request.param)


@pytest.fixture
def rawkern_profile() -> Generator[Any, None, None]:
    """A report of all launches of the test so far, as ``with rawkern.profile() as report`` gives it."""
    from rawkern.profiling.launches import profile

    with profile() as report:
        yield report


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("rawkern", "kernels (rawkern)")
    group.addoption(
        "--rawkern-device",
        metavar="DEVICES",
        help="what the fixture 'device' is: cpu, cuda or cpu,cuda; without a GPU, asking for cuda is an error (by "
        "default every device there is)",
    )
    group.addoption(
        "--rawkern-check",
        dest="rawkern_level",
        action="store_const",
        const="full",
        help="run every launch checked (rawkern.check), on the CPU engine; a finding fails the test",
    )
    group.addoption(
        "--rawkern-level",
        dest="rawkern_level",
        choices=("off", "bounds", "full"),
        help="how closely launches on the CPU are looked at; full is --rawkern-check",
    )
    group.addoption(
        "--rawkern-order",
        metavar="SEEDS",
        help="run each test once for each seed, such as 0,1,7: launches on the CPU run their blocks and warps in an "
        "order that the seed tells (rawkern.order)",
    )
    group.addoption(
        "--rawkern-arch",
        metavar="ARCH",
        help="the GPU whose limits launches on the CPU keep, such as sm_90 (rawkern.architecture)",
    )
    group.addoption(
        "--rawkern-time-limit",
        metavar="SECONDS",
        help="end launches on the CPU that take longer (rawkern.time_limit), and say where their warps are",
    )


@pytest.hookimpl(trylast=True)  # after those who register markers of their own
def pytest_configure(config: pytest.Config) -> None:
    registered = {line.split(":")[0].split("(")[0].strip() for line in config.getini("markers")}
    # A project's own marker of the name keeps the meaning it has there.
    config.stash[_ours] = frozenset(name for name in ("gpu", "multigpu") if name not in registered)
    for name, meaning in MARKERS.items():
        if name not in registered:
            config.addinivalue_line("markers", f"{name}: {meaning}")
    chosen = _chosen(config)
    if chosen is not None and "cuda" in chosen and _gpus()[0] == 0:
        raise pytest.UsageError(f"--rawkern-device={','.join(chosen)}: there is no GPU to test on: {_gpus()[1]}")
    if config.option.rawkern_level:
        from rawkern.testing import checked

        checked.settle(config, config.option.rawkern_level)
    order, arch = config.getoption("--rawkern-order"), config.getoption("--rawkern-arch")
    if order is not None or arch is not None:
        from rawkern.testing import modes

        if arch is not None:
            modes.settle_architecture(config, arch)
        if order is not None:
            modes.settle_orders(config, order)
    if config.option.rawkern_time_limit is not None:
        _limit_time(config, config.option.rawkern_time_limit)
    if "RAWKERN_VERIFY" not in os.environ:  # derived backwards of small launches; also in programs that tests start
        environment = pytest.MonkeyPatch()
        environment.setenv("RAWKERN_VERIFY", "1")
        config.add_cleanup(environment.undo)


def _limit_time(config: pytest.Config, text: str) -> None:
    """Have a limit of time for the whole run, also in programs that the tests start."""
    from rawkern.engines.cpu.runtime import limits

    try:
        seconds = limits.seconds(text, "--rawkern-time-limit")
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    environment = pytest.MonkeyPatch()
    environment.setenv(limits.TIME_VARIABLE, text)
    limits.time.ask(config, seconds)
    config.add_cleanup(lambda: limits.time.give_up(config))
    config.add_cleanup(environment.undo)


_ours = pytest.StashKey[frozenset[str]]()


def _chosen(config: pytest.Config) -> tuple[str, ...] | None:
    """The devices that ``--rawkern-device`` names; None where it is not given."""
    text = config.getoption("--rawkern-device")
    if text is None:
        return None
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if wrong := [name for name in names if name not in KNOWN]:
        raise pytest.UsageError(f"--rawkern-device={text}: there is no device {wrong[0]!r}; name cpu, cuda or cpu,cuda")
    return names


def pytest_report_header(config: pytest.Config) -> list[str]:
    chosen = _chosen(config)
    said = [f"on {', '.join(chosen)}"] if chosen is not None else []
    said += [f"launches are checked: {level}"] if (level := config.option.rawkern_level) else []
    said += [f"in the order of {seeds}"] if (seeds := config.getoption("--rawkern-order")) is not None else []
    said += [f"with the limits of {arch}"] if (arch := config.getoption("--rawkern-arch")) is not None else []
    said += [f"launches may take {limit} s"] if (limit := config.option.rawkern_time_limit) else []
    return [f"rawkern: {'; '.join(said)}"] if said else []


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "multigpu" in config.stash[_ours]:
        for item in items:
            if item.get_closest_marker("multigpu"):
                item.add_marker(pytest.mark.gpu)
    chosen = _chosen(config)
    if chosen is not None:
        left_out = [item for item in items if _device_of(item) not in (None, *chosen)]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if _device_of(item) in (None, *chosen)]


def _device_of(item: pytest.Item) -> str | None:
    """What the fixture ``device`` of this plugin is in a test; None in tests that do not use it."""
    values = getattr(getattr(item, "callspec", None), "params", {})
    value = values.get("device")
    return str(value) if isinstance(value, _Device) else None


def pytest_runtest_setup(item: pytest.Item) -> None:
    ours = item.config.stash[_ours]
    needed = 0
    if _device_of(item) == "cuda" or ("gpu" in ours and item.get_closest_marker("gpu")):
        needed = 1
    if "multigpu" in ours and item.get_closest_marker("multigpu"):
        needed = 2
    if not needed:
        return
    chosen = _chosen(item.config)
    if chosen is not None and "cuda" not in chosen:
        pytest.skip(f"--rawkern-device={','.join(chosen)} leaves out GPUs")
    there, why = _gpus()
    if there < needed:
        text = f"needs {needed} NVIDIA GPU{'s' if needed > 1 else ''}: {why or f'there is {there}'}"
        if chosen is not None:
            pytest.fail(f"--rawkern-device={','.join(chosen)}, and the test {text}", pytrace=False)
        pytest.skip(text)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> None:
    """Have rawkern's own frames hidden where it has raised an error on purpose."""
    entry = call.excinfo.tb if call.excinfo is not None else None
    while entry is not None:
        if str(entry.tb_frame.f_globals.get("__name__")).startswith("rawkern."):
            entry.tb_frame.f_globals["__tracebackhide__"] = _hidden
        entry = entry.tb_next


def _hidden(found: pytest.ExceptionInfo[BaseException] | None) -> bool:
    from rawkern.base import border

    return found is not None and border.meant(found.value)


@functools.cache
def _gpus() -> tuple[int, str]:
    """How many GPUs tests can use, and why none if there is none."""
    import torch

    if not torch.cuda.is_available():
        return 0, "torch finds no GPU"
    try:
        import cupy

        return min(torch.cuda.device_count(), cupy.cuda.runtime.getDeviceCount()), ""
    except (ImportError, RuntimeError) as error:
        return 0, f"CuPy finds no GPU: {error}"
