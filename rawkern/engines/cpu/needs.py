"""What kernels need of a GPU, counted as its assembler does; and its words for what is too much on all of them."""

from __future__ import annotations

from dataclasses import dataclass

from rawkern.base import gpus


@dataclass(frozen=True)
class Needs:
    """What one kernel needs; memory in bytes."""

    shared: int  # static shared memory of a block
    local: int  # of a thread: the largest frame of the functions it reaches
    parameters: int
    max_threads: int  # of a block, from ``__launch_bounds__``
    bounded: bool  # whether there are such
    #: Blocks of a cluster, from ``__cluster_dims__``, and zeros where they are the launch's; None without clusters.
    cluster: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class ModuleNeeds:
    """What a module's kernels need by symbol, those that the engine understands."""

    kernels: dict[str, Needs]
    constant: int  # bytes of ``__constant__`` variables
    version: int  # of PTX, as 10 * major + minor
    target: int  # the architecture that its code is for: 90 for ``sm_90a``


def ptxas_errors(needs: ModuleNeeds) -> str:
    """What ptxas says of a module that no GPU takes, a line for each error; "" if there is none."""
    lines = []
    if needs.constant > gpus.CONSTANT:
        lines.append(f"File uses too much global constant data ({needs.constant:#x} bytes, {gpus.CONSTANT:#x} max)")
    room = gpus.PARAMETERS if needs.version >= gpus.LARGE_PARAMETERS_FROM else gpus.PARAMETERS_BEFORE
    static = gpus.STATIC_SHARED if needs.target < 90 else gpus.HOPPER.shared_per_block  # of code for Hopper alone
    for name, kernel in needs.kernels.items():
        for what, used, most in (
            ("shared data", kernel.shared, static),
            ("parameter space", kernel.parameters, room),
        ):
            if used > most:
                lines.append(f"Entry function '{name}' uses too much {what} ({used:#x} bytes, {most:#x} max)")
    return "\n".join(f"ptxas error   : {line}" for line in lines)
