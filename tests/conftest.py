"""Every test that takes ``device`` runs on each device there is; without a GPU its part is skipped, with the reason."""

from __future__ import annotations

import functools
import os

import pytest
import torch


@functools.cache
def _gpus() -> tuple[int, str]:
    """How many GPUs the tests can use, and why none if there is none."""
    if not torch.cuda.is_available():
        return 0, "torch finds no GPU"
    try:
        import cupy

        return min(torch.cuda.device_count(), cupy.cuda.runtime.getDeviceCount()), ""
    except (ImportError, RuntimeError) as error:
        return 0, f"CuPy finds no GPU: {error}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("multigpu"):
            item.add_marker(pytest.mark.gpu)


def pytest_runtest_setup(item: pytest.Item) -> None:
    needed = 2 if item.get_closest_marker("multigpu") else 1 if item.get_closest_marker("gpu") else 0
    if needed and _gpus()[0] < needed:
        pytest.skip(f"needs {needed} NVIDIA GPU{'s' if needed > 1 else ''}: {_gpus()[1] or f'there is {_gpus()[0]}'}")


@pytest.fixture(scope="session", autouse=True)
def _cache_directory(tmp_path_factory: pytest.TempPathFactory):
    """Keep the tests' compiled code out of the user's cache; the workers of a run share what they compile."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "compiled"
    folder.mkdir(mode=0o700, exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAWKERN_CACHE_DIR", str(folder))
        yield


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Each device that kernels run on."""
    return request.param
