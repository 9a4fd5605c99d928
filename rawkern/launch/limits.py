"""Limits of kernels: the heap of ``malloc``, the stack of a thread, time."""

from __future__ import annotations

import operator

import torch

from rawkern.base.api_boundary import api_boundary
from rawkern.base.dynamo import untraced
from rawkern.base.scoped_setting import SettingScope
from rawkern.engines.devices import default_device, engine, normalized

_NAMES = ("malloc_heap_size", "stack_size")


@untraced
@api_boundary
def set_limit(name: str, nbytes: int, device: torch.device | str | int | None = None) -> None:
    """Set a device's heap size for ``malloc`` in kernels, or the stack size of a thread.

    Parameters
    ----------
    name : str
        ``"malloc_heap_size"``: the bytes that all kernels together may hold of the device heap; beyond, ``malloc`` in a
        kernel returns a null pointer. ``"stack_size"``: the bytes of a thread's stack, which recursive functions
        use up.
    nbytes : int
        The limit, in bytes. On a GPU the driver may round it up.
    device : torch.device, str or int, optional
        The device; by default the current CUDA device's if there is one, else the CPU's.

    Raises
    ------
    TypeError, ValueError
        The name or the value is invalid.
    LaunchError
        The driver rejects it. The first kernel on a GPU that uses ``malloc`` fixes the size of its heap.

    Notes
    -----
    Corresponds to ``cudaDeviceSetLimit``. A GPU starts with a heap of 8 MiB and stacks of 1 KiB, the CPU engine with 16
    GiB and 248 KiB; there only recursive functions are limited by the stack.
    """
    _check_name(name)
    try:
        value = operator.index(nbytes)
    except TypeError:
        raise TypeError(f"{name} is {nbytes!r}, a limit is an int, in bytes") from None
    if isinstance(nbytes, bool) or value <= 0:
        raise ValueError(f"{name} is {nbytes!r}, a limit is a positive number of bytes")
    where = default_device() if device is None else normalized(device)
    engine(where).set_limit(where, name, value)


@untraced
@api_boundary
def get_limit(name: str, device: torch.device | str | int | None = None) -> int:
    """Return a limit of a device.

    Parameters
    ----------
    name : str
        ``"malloc_heap_size"`` or ``"stack_size"``, as for `set_limit`.
    device : torch.device, str or int, optional
        The device; by default the current CUDA device's if there is one, else the CPU's.

    Returns
    -------
    int
        The limit, in bytes.

    Raises
    ------
    ValueError
        There is no such limit.
    """
    _check_name(name)
    where = default_device() if device is None else normalized(device)
    return engine(where).get_limit(where, name)


class time_limit(SettingScope):
    """Abort CPU launches that exceed a time limit: ``with rawkern.time_limit(10): ...``, or as a decorator.

    Such a launch raises a `LaunchTimeoutError` that names the kernel and, for its warps, the CUDA lines and whether
    they compute, wait in a loop for other threads or wait at a barrier. Ctrl-C reports the
    same in a note of the `KeyboardInterrupt`. Memory keeps what the launch has written until then; later launches
    work normally.

    The environment variable ``RAWKERN_TIME_LIMIT`` sets the limit for a whole program, and pytest's option
    ``--rawkern-time-limit`` for all tests. The limit applies to the whole process: while one thread is inside, it holds
    for the launches of all threads; of several contexts the one entered last counts. Launches on a GPU have no limit:
    a running GPU kernel cannot be aborted.

    Parameters
    ----------
    seconds : float
        Elapsed time that each launch may take, without compilation; ``inf`` for no limit. A launch checks the clock
        in its loops and between blocks, so it may end some milliseconds late.

    Raises
    ------
    TypeError, ValueError
        It is not a number above 0.
    """

    def __init__(self, seconds: float) -> None:
        from rawkern.engines.cpu.runtime import limits

        self.seconds = limits.seconds(seconds, "seconds")
        super().__init__((limits.time, self.seconds))


def _check_name(name: str) -> None:
    if name not in _NAMES:
        raise ValueError(f"{name!r} is not a limit; choose {' or '.join(map(repr, _NAMES))}")
