"""Grid, block and shared memory of a launch, validated once; a kernel's own limits are checked when it is loaded."""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

from rawkern.base.attributes import PLAIN, Attributes
from rawkern.base.gpus import LOCAL, MAX_BLOCK, MAX_CLUSTER, MAX_GRID, MAX_THREADS, WARP, Dim3
from rawkern.errors import LaunchError, UnsupportedError

DEFAULT_BLOCK = 256
AXES = "xyz"
_MAX_CLUSTER = (MAX_CLUSTER, MAX_CLUSTER, MAX_CLUSTER)


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """How many blocks of how many threads, the bytes of dynamic shared memory of a block, and what else is asked."""

    grid: Dim3
    block: Dim3
    shared_mem: int = 0
    attributes: Attributes = PLAIN

    @property
    def threads(self) -> int:
        """Threads of one block."""
        x, y, z = self.block
        return x * y * z


class Limited(Protocol):
    """What tells the limits of a kernel on a device: an engine's kernel."""

    @property
    def attributes(self) -> dict[str, int]: ...

    @property
    def max_shared_mem(self) -> int:
        """Bytes of shared memory that a block can have, static and dynamic together."""
        ...

    @property
    def architecture(self) -> str:
        """Of the GPU whose limits these are, such as ``"sm_90"``."""
        ...


class Clustered(Limited, Protocol):
    """What tells how a kernel's blocks may be clusters."""

    @property
    def cluster(self) -> Dim3 | None:
        """The blocks of a cluster as the source has them, if it does; zeros where it leaves them to the launch."""
        ...

    def most_of_cluster(self, block: Dim3, shared_mem: int, cluster: Dim3) -> int:
        """Blocks of a cluster: those asked for where that many fit, else the most that do; 0 where there are none."""
        ...


def make_config(name: str, grid: Any, block: Any, shared_mem: Any = 0, attributes: Attributes = PLAIN) -> LaunchConfig:
    """Check what a user gave for a launch of the kernel ``name``.

    Grid and block are an int or a tuple of 1 to 3 positive ints; missing axes are 1. Shared memory is dynamic, in bytes
    of a block. TypeError for a value that is not an int, ValueError for a number that no CUDA device accepts.
    """
    grid3 = _dim3(name, "grid", grid, MAX_GRID)
    block3 = _dim3(name, "block", block, MAX_BLOCK)
    threads = block3[0] * block3[1] * block3[2]
    if threads > MAX_THREADS:
        raise ValueError(
            f"{name}: block {_show(block3)} has {threads} threads, a block has at most {MAX_THREADS}; "
            f"use a smaller block and a larger grid"
        )
    return LaunchConfig(grid3, block3, _shared_mem(name, shared_mem), attributes)


def make_attributes(name: str, before: Attributes, *, cluster: Any, cooperative: Any, programmatic: Any) -> Attributes:
    """Check launch attributes; where one is None, that from before stays.

    TypeError for a value that is not a size or switch, ValueError for a cluster that no CUDA device accepts.
    """
    blocks = before.cluster if cluster is None else _dim3(name, "cluster", cluster, _MAX_CLUSTER)
    if (together := prod(blocks or ())) > MAX_CLUSTER:
        shown = _show(blocks or ())
        raise ValueError(f"{name}: cluster {shown} has {together} blocks, a cluster has at most {MAX_CLUSTER}")
    switches = []
    for what, given in (("cooperative", cooperative), ("programmatic", programmatic)):
        if given is not None and not isinstance(given, bool):
            raise TypeError(f"{name}: {what} is {_describe(given)}; pass True or False")
        switches.append(getattr(before, what) if given is None else given)
    return Attributes(blocks, *switches)


def count(name: str, n: Any) -> int:
    """The number of elements given to ``forall``: an int, 0 or more."""
    value = _integer(n)
    if value is None:
        raise TypeError(f"{name}: forall takes the number of elements as an int, got {_describe(n)}{_what_to_do(n)}")
    if value < 0:
        raise ValueError(f"{name}: forall({value}) is negative; the number of elements is 0 or more")
    return value


def cover(name: str, n: int, block: Any = DEFAULT_BLOCK, attributes: Attributes = PLAIN) -> LaunchConfig:
    """The one-dimensional launch whose threads cover ``n`` elements, at least one block of them, and whole clusters.

    ValueError when ``n`` needs more blocks than a grid can have.
    """
    size = _integer(block)
    if size is None:
        raise TypeError(f"{name}: the block of forall is an int (it launches one dimension), got {_describe(block)}")
    if not 1 <= size <= MAX_THREADS:
        raise ValueError(f"{name}: the block of forall is {size}; pass 1 to {MAX_THREADS} threads")
    along = attributes.cluster[0] if attributes.cluster else 1
    blocks = max(-(-n // (size * along)), 1) * along
    if blocks > MAX_GRID[0]:
        raise ValueError(
            f"{name}: forall({n}) needs {blocks} blocks of {size} threads, a grid has at most {MAX_GRID[0]}; "
            f"let each thread process several elements (a grid-stride loop) and launch with kernel[grid, block](...)"
        )
    return LaunchConfig((blocks, 1, 1), (size, 1, 1), 0, attributes)


def check_kernel_limits(name: str, config: LaunchConfig, kernel: Limited) -> None:
    """Compare a launch with what the compiled kernel and its device allow; the error names the limit and what to do.

    ValueError for a block or its shared memory, LaunchError for a kernel that no launch can be made of.
    """
    attributes, where = kernel.attributes, kernel.architecture
    most = attributes["max_threads_per_block"]
    if config.threads > most:
        raise ValueError(
            f"{name}: block {_show(config.block)} has {config.threads} threads, this kernel supports at most "
            f"{most} per block on {where} (limited by its registers or __launch_bounds__); use a smaller block"
        )
    static = attributes["shared_size_bytes"]
    room = max(kernel.max_shared_mem - static, 0)
    if config.shared_mem > room:
        declared = f" ({kernel.max_shared_mem} less {static} that the kernel declares itself)" if static else ""
        raise ValueError(
            f"{name}: shared_mem is {config.shared_mem} bytes, the maximum on {where} is {room} bytes{declared}; "
            f"use a smaller tile or fewer threads per block, or a GPU that has more (on the CPU, RAWKERN_ARCH names it)"
        )
    local = attributes["local_size_bytes"]
    if local > LOCAL:
        raise LaunchError(
            f"{name}: a thread needs {local} bytes of local memory, the maximum is {LOCAL} bytes on {where} and all "
            f"other GPUs; use smaller arrays in the kernel, or global memory for them"
        )


def cluster_of(name: str, attributes: Attributes, kernel: Clustered) -> Dim3 | None:
    """The blocks of a cluster in launches of a compiled kernel; ValueError where launch and source do not agree."""
    asked, own = attributes.cluster, kernel.cluster
    if own is None or own == asked:
        return asked
    if not any(own):
        if asked is None:
            raise ValueError(
                f"{name}: the source has clusters but not their size; launch {name}.configured(cluster=(2, 1, 1))"
            )
        return asked
    if asked is not None:
        raise ValueError(
            f"{name}: cluster is {_show(asked)}, and the source has __cluster_dims__{_show(own)}; leave cluster out of "
            f"the launch, or __cluster_dims__ out of the source"
        )
    return own


def check_cluster(name: str, config: LaunchConfig, kernel: Clustered) -> None:
    """Compare clusters, and what else only newer GPUs have, with what the compiled kernel and its device allow."""
    attributes, where = config.attributes, kernel.architecture
    asked, blocks = attributes.cluster, attributes.together
    if asked is None and not attributes.programmatic:
        return
    most = kernel.most_of_cluster(config.block, config.shared_mem, asked or (1, 1, 1))
    if not most:
        what = "programmatic dependent launch" if asked is None else "clusters"
        raise UnsupportedError(
            f"{name}: this kernel needs compute capability 9.0: {what}; {where} does not support that; "
            "use a newer GPU (on the CPU, RAWKERN_ARCH names it)"
        )
    if asked is not None and blocks > most:
        raise ValueError(
            f"{name}: cluster {_show(asked)} has {blocks} blocks; with {config.threads} threads and "
            f"{config.shared_mem} bytes of dynamic shared memory each, a cluster of this kernel has at most {most} on "
            f"{where}; use a smaller cluster or smaller blocks"
        )


def check_grid(name: str, config: LaunchConfig) -> None:
    """Reject a grid that is not made of whole clusters."""
    for axis, size, along in zip(AXES, config.grid, config.attributes.cluster or (), strict=False):
        if size % along:
            raise ValueError(
                f"{name}: grid.{axis} is {size}, and cluster.{axis} is {along}; a grid is made of whole clusters: use "
                f"{size + -size % along} blocks, of which the last ones have nothing to do"
            )


def auto_block(max_threads: int) -> int:
    """The block ``forall`` picks: 256 threads, or the whole warps that the kernel's own limit leaves."""
    if max_threads >= DEFAULT_BLOCK:
        return DEFAULT_BLOCK
    return max(max_threads // WARP * WARP, 1) if max_threads >= WARP else max(max_threads, 1)


def _dim3(name: str, what: str, value: Any, limits: Dim3) -> Dim3:
    axes = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    if not 1 <= len(axes) <= 3:
        raise ValueError(f"{name}: {what} has {len(axes)} axes; pass 1 to 3: {what}={tuple(axes)!r}")
    sizes: list[int] = []
    for axis, size, limit in zip(AXES, axes, limits, strict=False):
        number = _integer(size)
        if number is None:
            raise TypeError(
                f"{name}: {what} is an int or a tuple of 1 to 3 ints, got {_describe(size)}"
                f"{f' for axis {axis}' if len(axes) > 1 else ''}{_what_to_do(size)}"
            )
        if number < 1:
            hint = "; forall(n) takes n = 0, an explicit grid needs at least one block" if what == "grid" else ""
            raise ValueError(f"{name}: {what}.{axis} is {number}, it must be positive{hint}")
        if number > limit:
            raise ValueError(
                f"{name}: {what}.{axis} is {number}, the maximum is {limit}; {_smaller(what, number, limits)}"
            )
        sizes.append(number)
    sizes += [1] * (3 - len(sizes))
    return sizes[0], sizes[1], sizes[2]


def _smaller(what: str, number: int, limits: Dim3) -> str:
    """What to do if a size exceeds its axis' limit."""
    if what == "cluster":
        return "use a smaller cluster"
    if number <= limits[0]:
        return "put the longest axis on x"
    if what == "block":
        return "use a smaller block and a larger grid"
    return "let each thread process several elements (a loop with a step of gridDim.x * blockDim.x)"


def _shared_mem(name: str, value: Any) -> int:
    number = _integer(value)
    if number is None:
        raise TypeError(f"{name}: shared_mem is a number of bytes, an int, got {_describe(value)}{_what_to_do(value)}")
    if number < 0:
        raise ValueError(f"{name}: shared_mem is {number}, it must be 0 or more bytes")
    return number


def _integer(value: Any) -> int | None:
    """The value of an int of Python or NumPy; None for all else, bool among it."""
    if type(value) is int:
        return value
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return int(value)
    return None


def _describe(value: Any) -> str:
    return f"{type(value).__name__} {value!r}" if isinstance(value, (bool, float, str, type(None))) else _type(value)


def _type(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _what_to_do(value: Any) -> str:
    if isinstance(value, float):
        return "; divide with // or (n + block - 1) // block, which stays an int"
    return "; pass int(...)" if hasattr(value, "__index__") and not isinstance(value, bool) else ""


def _show(dims: tuple[int, ...]) -> str:
    return "(" + ", ".join(map(str, dims)) + ")"
