"""The passes that prepare a kernel for its reverse, in the order in which they run.

Each takes a well-formed kernel (`ir.verify`) and leaves one that does the same; it changes the kernel in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from rawkern.gradients.index.threads import group_of
from rawkern.gradients.ir import Kernel
from rawkern.gradients.passes.array_renaming import with_renamed_arrays
from rawkern.gradients.passes.dce import without_dead_values
from rawkern.gradients.passes.in_place import unaliased
from rawkern.gradients.passes.induction import with_induction_variables
from rawkern.gradients.passes.memory_partition import partitioned
from rawkern.gradients.passes.prefetching import unpipelined
from rawkern.gradients.passes.reductions import with_reductions
from rawkern.gradients.passes.store_forwarding import forwarded
from rawkern.gradients.passes.taping import taped

Watch = Callable[[str, Kernel], None]
_WATCH: ContextVar[Watch | None] = ContextVar("watch", default=None)


@dataclass(frozen=True)
class Options:
    """What passes may do."""

    assume: bool = True  # rely on what `Kernel.assumed` then says of a launch
    shared: bool = False  # forward stores to shared memory, not only those to global memory
    rename: bool = False  # make shared arrays that are overwritten several
    tape: bool = False  # keep what is read of global memory that is overwritten


def passes(options: Options) -> Iterator[tuple[str, Callable[[Kernel], Kernel]]]:
    """The passes by name."""
    yield "induction", with_induction_variables
    yield "prefetching", unpipelined
    yield "memory partition", partitioned
    if options.rename:
        yield "array renaming", with_renamed_arrays
    yield "reductions", with_reductions
    yield "thread groups", _grouped
    if options.tape:
        yield "taping", lambda kernel: taped(kernel, options.assume)
    yield "in place", lambda kernel: unaliased(kernel, options.assume)
    yield "store forwarding", lambda kernel: forwarded(kernel, options.assume, options.shared)


def prepared(kernel: Kernel, options: Options) -> Kernel:
    """The kernel after all passes, which reads nothing that it has written, as far as that can be."""
    for name, run in passes(options):
        kernel = run(kernel)
        tell(name, kernel)
    return kernel


def without_dead_code(kernel: Kernel, outputs: Set[str]) -> Kernel:
    """The kernel with what these outputs depend on, once they are known."""
    kernel = without_dead_values(kernel, outputs)
    tell("dead code", kernel)
    return kernel


@contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Call `watch` with the name of each pass that runs meanwhile, and the kernel after it."""
    token = _WATCH.set(watch)
    try:
        yield
    finally:
        _WATCH.reset(token)


def tell(name: str, kernel: Kernel) -> None:
    """Show a kernel to who watches."""
    watch = _WATCH.get()
    if watch is not None:
        watch(name, kernel)


def _grouped(kernel: Kernel) -> Kernel:
    kernel.group = group_of(kernel.body, kernel.block[0])
    return kernel
