"""What kernels have for their derived backwards; what derives them is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rawkern.base.api_boundary import api_boundary

if TYPE_CHECKING:
    from rawkern.gradients.derived import Derived


class Derivable:
    """Kernels whose backward can be derived."""

    @api_boundary
    def derive(
        self,
        *,
        block: int | Sequence[int],
        grid: int | Sequence[int] | None = None,
        shared_mem: int = 0,
        wrt: Sequence[str] | None = None,
        max_iterations: int | None = None,
        constants: Mapping[str, int] | None = None,
    ) -> Derived:
        """Derive the kernel's backward from its source.

        Parameters
        ----------
        block : int or tuple of ints
            The shape of the blocks, which decides who owns which element: another shape needs another derivation.
        grid : int or tuple of ints, optional
            A grid like those of the launches: which of its axes have one block matters. By default those that the
            kernel, and what it may call, does not mention.
        shared_mem : int
            Bytes of dynamic shared memory of the launches, which decide the extent of ``extern __shared__`` arrays.
        wrt : sequence of str, optional
            Parameters to differentiate by: pointers to floating-point elements, and floating-point numbers. By default
            every pointer that is only read.
        max_iterations : int, optional
            The most iterations of loops that carry on what is not a sum, and whose number is not a constant. More end
            the launch with an error.
        constants : mapping of str to int, optional
            Integer parameters and the value of each in all launches of the backward, such as the size of tiles in
            shared memory. What depends on them is then known. A launch with another value raises an error.

        Returns
        -------
        Derived
            The backward: its text, and a callable.

        Raises
        ------
        NotDifferentiable
            The kernel does what has no derived backward; with line, reason and what to do.
        """
        from rawkern.gradients.derived import derive_kernel  # takes long to import

        return derive_kernel(self, block, grid, shared_mem, wrt, max_iterations, constants or {})
