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
    "multigpu": "needs two GPUs; also counts as a gpu test",
    "rawkern_finding(*errors, match='')": "under --rawkern-check the test must have a finding of one of these kinds, "
    "given by name ('RaceError'), with a message that matches the regular expression",
    "rawkern_unchecked(reason)": "the launches of the test are not checked under --rawkern-check",
}


class _Device(str):
    """A value of this plugin's fixture ``device``; distinguishes it from other fixtures of that name."""


@pytest.fixture(
    params=[
        pytest.param(_Device("cpu"), id="cpu"),
        pytest.param(_Device("cuda"), id="cuda", marks=pytest.mark.gpu),
    ]
)
def device(request: pytest.FixtureRequest) -> str:
    """Each device that kernels run on: "cpu", and "cuda" if there is a GPU."""
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
        help="values of the fixture 'device': cpu, cuda or cpu,cuda; cuda without a GPU is an error (default: "
        "all available devices)",
    )
    group.addoption(
        "--rawkern-check",
        dest="rawkern_level",
        action="store_const",
        const="full",
        help="check every launch (rawkern.check) on the CPU engine; a finding fails the test",
    )
    group.addoption(
        "--rawkern-level",
        dest="rawkern_level",
        choices=("off", "bounds", "full"),
        help="level of checks for launches on the CPU; full is --rawkern-check",
    )
    group.addoption(
        "--rawkern-order",
        metavar="SEEDS",
        help="run each test once for each seed, such as 0,1,7: launches on the CPU run their blocks and warps in an "
        "order determined by the seed (rawkern.order)",
    )
    group.addoption(
        "--rawkern-arch",
        metavar="ARCH",
        help="apply this GPU's limits to launches on the CPU, such as sm_90 (rawkern.architecture)",
    )
    group.addoption(
        "--rawkern-time-limit",
        metavar="SECONDS",
        help="abort launches on the CPU that take longer (rawkern.time_limit), and show where their warps are",
    )


@pytest.hookimpl(trylast=True)  # after plugins that register their own markers
def pytest_configure(config: pytest.Config) -> None:
    registered = {line.split(":")[0].split("(")[0].strip() for line in config.getini("markers")}
    # A project's own marker of the same name keeps its meaning.
    config.stash[_ours] = frozenset(name for name in ("gpu", "multigpu") if name not in registered)
    for name, meaning in MARKERS.items():
        if name not in registered:
            config.addinivalue_line("markers", f"{name}: {meaning}")
    chosen = _chosen(config)
    if chosen is not None and "cuda" in chosen and _gpus()[0] == 0:
        raise pytest.UsageError(f"--rawkern-device={','.join(chosen)}: no GPU to test on: {_gpus()[1]}")
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
    """Set a time limit for the whole run, including programs that the tests start."""
    from rawkern.engines.cpu.runtime import limits

    try:
        seconds = limits.seconds(text, "--rawkern-time-limit")
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    environment = pytest.MonkeyPatch()
    environment.setenv(limits.TIME_VARIABLE, text)
    limits.time.push(config, seconds)
    config.add_cleanup(lambda: limits.time.pop(config))
    config.add_cleanup(environment.undo)


_ours = pytest.StashKey[frozenset[str]]()


def _chosen(config: pytest.Config) -> tuple[str, ...] | None:
    """The devices that ``--rawkern-device`` names; None if it is not given."""
    text = config.getoption("--rawkern-device")
    if text is None:
        return None
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if wrong := [name for name in names if name not in KNOWN]:
        raise pytest.UsageError(f"--rawkern-device={text}: unknown device {wrong[0]!r}; choose cpu, cuda or cpu,cuda")
    return names


def pytest_report_header(config: pytest.Config) -> list[str]:
    chosen = _chosen(config)
    said = [f"on {', '.join(chosen)}"] if chosen is not None else []
    said += [f"level of checks: {level}"] if (level := config.option.rawkern_level) else []
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
    """The value of this plugin's fixture ``device`` in a test; None if the test does not use it."""
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
        pytest.skip(f"--rawkern-device={','.join(chosen)} excludes GPUs")
    there, why = _gpus()
    if there < needed:
        text = f"needs {needed} NVIDIA GPU{'s' if needed > 1 else ''}: {why or f'found {there}'}"
        if chosen is not None:
            pytest.fail(f"--rawkern-device={','.join(chosen)}, but the test {text}", pytrace=False)
        pytest.skip(text)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> None:
    """Hide rawkern's own frames for errors that it raises on purpose."""
    entry = call.excinfo.tb if call.excinfo is not None else None
    while entry is not None:
        if str(entry.tb_frame.f_globals.get("__name__")).startswith("rawkern."):
            entry.tb_frame.f_globals["__tracebackhide__"] = _hidden
        entry = entry.tb_next


def _hidden(found: pytest.ExceptionInfo[BaseException] | None) -> bool:
    from rawkern.base import api_boundary

    return found is not None and api_boundary.meant(found.value)


@functools.cache
def _gpus() -> tuple[int, str]:
    """How many GPUs tests can use, and the reason if there is none."""
    import torch

    if not torch.cuda.is_available():
        return 0, "torch finds no GPU"
    try:
        import cupy

        return min(torch.cuda.device_count(), cupy.cuda.runtime.getDeviceCount()), ""
    except (ImportError, RuntimeError) as error:
        return 0, f"CuPy finds no GPU: {error}"
