"""The tests' cache folder, the seed of random programs, and how threads wait. The fixture ``device`` and the markers are rawkern's plugin's."""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Generator
from typing import Any

import pytest

# Named here, not in pyproject.toml, as that comes before source trees which are not installed can be imported.
pytest_plugins = ["rawkern.testing.plugin", "pytester"]
SEED = "RAWKERN_RANDOM_SEED"


def pytest_configure() -> None:
    """Set what the workers of a parallel run, which start after this, and all processes of tests inherit.

    The seed of this run's random programs. One thread, for torch as for the CPU engine: two wait for each other where
    other workers need their cores, so that an operation of torch on 40,000 elements takes 50 us, not 4, and the cases of
    gradients 55 s, not 31. Several sleep where they wait; they spin otherwise, and that operation takes 20 ms. Kernels
    compile quickly, as most run once on small data: the suite takes a third less time. ``RAWKERN_OPTIMIZE=2`` has them as
    users do.
    Inductor compiles scalar C++ here and now. It tries each instruction set in a process otherwise, precompiles headers
    and starts processes for compilation, which pays where there are many graphs: a test of it takes 6 s in place of 20.
    """
    os.environ.setdefault(SEED, str(random.randrange(10**9)))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("RAWKERN_OPTIMIZE", "0")
    os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    os.environ.setdefault("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "0")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave the thousands of tests, and what they have imported, out of each search for garbage: half a second then.

    And search less often: compilations make many objects, few of them in circles, and took 7 % of their time for it.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000, 20, 100)
        gc.enable()


def pytest_sessionfinish() -> None:
    """Leave all objects out of pytest's ten searches for garbage at its end, which take seconds in a process that ends."""
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let a worker run neighbors, which share what the first one compiles; who has none left takes half of another's."""
    if config.option.dist != "load":  # what -n stands for
        return None
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)


def pytest_report_header() -> str:
    return f"random programs: {SEED}={os.environ[SEED]}"


@pytest.fixture(scope="session", autouse=True)
def _cache_directory(tmp_path_factory: pytest.TempPathFactory):
    """Keep the tests' compiled code out of the user's cache; the workers of a run share what they compile."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "compiled"
    folder.mkdir(mode=0o700, exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAWKERN_CACHE_DIR", str(folder))
        yield


@pytest.fixture(scope="module", autouse=True)
def _threads(request: pytest.FixtureRequest) -> Generator[None]:
    """Have two threads where the subject is how blocks run, and what they do to each other; elsewhere there is one."""
    folders = {folder.name for folder in request.path.parents}
    if os.environ["OMP_NUM_THREADS"] != "1" or not folders & {"engines", "checked", "launch", "stress", "profiling"}:
        yield
        return
    import torch  # not for the process that hands out the tests

    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


@pytest.fixture
def optimized():
    """Have kernels as fast as for users: where their time counts, and for random programs, which try LLVM's passes, too."""
    from rawkern.base import llvm

    with llvm.optimization.scoped(llvm.FULL):
        yield


@pytest.fixture(scope="session", autouse=True)
def _native_launches():
    """Have the native function of a launch as soon as one asks for it: tests tell slow launches from others."""
    from rawkern.launch import native

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "in_background", False)
        yield
