"""What can be asked of kernels and modules, and set, under CuPy's names."""

from __future__ import annotations

import operator
from typing import Any

from rawkern.base import markup
from rawkern.base.dynamo import untraced
from rawkern.base.shared import Shared
from rawkern.engines.devices import default_device
from rawkern.errors import RawkernError
from rawkern.launch.builds import Unit


class OfUnit(Shared):
    """What is made from a source with its settings."""

    unit: Unit

    @property
    def code(self) -> str | None:
        """The source as it was given; None for a file."""
        return self.unit.settings.code

    @property
    def file_path(self) -> str | None:
        """The path of the source file; None for a string."""
        return self.unit.settings.path

    @property
    def options(self) -> tuple[str, ...]:
        """The compiler's options, without include directories."""
        return self.unit.settings.options

    @property
    def backend(self) -> str:
        """As it was given: ``"nvrtc"`` or ``"nvcc"``."""
        return self.unit.settings.cupy.backend

    @property
    def enable_cooperative_groups(self) -> bool:
        """Whether launches are cooperative."""
        return self.unit.settings.cooperative


_RANGES = {"max_dynamic_shared_size_bytes": (0, (1 << 31) - 1), "preferred_shared_memory_carveout": (-1, 100)}

_SHOWN = {  # in notebooks
    "num_regs": ("registers of a thread", ""),
    "local_size_bytes": ("local memory of a thread", "bytes"),
    "shared_size_bytes": ("static shared memory of a block", "bytes"),
    "max_dynamic_shared_size_bytes": ("dynamic shared memory of a block, at most", "bytes"),
    "const_size_bytes": ("constant memory", "bytes"),
    "max_threads_per_block": ("threads of a block, at most", ""),
}


def _attribute(name: str, what: str) -> property:
    def get(kernel: Attributes) -> int:
        return kernel.attributes[name]

    return property(get, doc=what)


class Attributes:
    """A compiled kernel's resources and limits, on the current CUDA device if there is one, else on the CPU."""

    def _engine_kernel(self, device: Any) -> Any:
        raise NotImplementedError

    @property
    def signature(self) -> str:
        """The kernel's declaration."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        """What a notebook shows: the signature, and what a launch takes; for that the kernel is compiled."""
        try:
            signature, found, device = self.signature, self.attributes, default_device()
        except (RawkernError, ValueError) as error:
            return markup.failure(repr(self), error)
        rows = [(words, f"{found[name]:,} {unit}".rstrip()) for name, (words, unit) in _SHOWN.items()
                if device.type == "cuda" or name != "num_regs"]  # fmt: skip
        return markup.table(signature, f"on {'the CPU' if device.type == 'cpu' else device}", rows)

    @property
    def attributes(self) -> dict[str, int]:
        """Registers, memory and limits under CuPy's names, on the current CUDA device if there is one, else the CPU.

        ``num_regs`` (per thread), ``shared_size_bytes`` (static), ``local_size_bytes``, ``const_size_bytes``,
        ``max_threads_per_block``, ``max_dynamic_shared_size_bytes``, ``ptx_version``, ``binary_version`` and others.
        The CPU engine has no registers or binary version: 0.
        """
        return dict(self._engine_kernel(default_device()).attributes)

    # The same one by one, as CuPy has them.
    num_regs = _attribute("num_regs", "Registers of a thread; 0 on the CPU.")
    shared_size_bytes = _attribute("shared_size_bytes", "Bytes of static shared memory of a block.")
    local_size_bytes = _attribute("local_size_bytes", "Bytes of local memory of a thread.")
    const_size_bytes = _attribute("const_size_bytes", "Bytes of constant memory of the kernel.")
    max_threads_per_block = _attribute("max_threads_per_block", "The largest block that the kernel runs with.")
    ptx_version = _attribute("ptx_version", "The PTX version it was compiled for, as 10 * major + minor.")
    binary_version = _attribute("binary_version", "The architecture of its machine code, such as 90; 0 on the CPU.")
    cache_mode_ca = _attribute("cache_mode_ca", "Whether global loads are cached in L1 by the compiler's option.")

    @property
    def max_dynamic_shared_size_bytes(self) -> int:
        """Bytes of dynamic shared memory that a block may have; launches raise it as they need, and it can be set."""
        return self.attributes["max_dynamic_shared_size_bytes"]

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, value: int) -> None:
        self.set_attribute("max_dynamic_shared_size_bytes", value)

    @property
    def preferred_shared_memory_carveout(self) -> int:
        """The percentage of the L1 cache that shared memory is to get, -1 for the driver's choice; it can be set.

        The CPU has none to share out, and notes it only.
        """
        return self.attributes["preferred_shared_memory_carveout"]

    @preferred_shared_memory_carveout.setter
    def preferred_shared_memory_carveout(self, value: int) -> None:
        self.set_attribute("preferred_shared_memory_carveout", value)

    @untraced
    def set_attribute(self, name: str, value: int) -> None:
        """Set an attribute of the compiled kernel; a kernel that is compiled again starts with its own.

        Parameters
        ----------
        name : str
            ``"max_dynamic_shared_size_bytes"`` or ``"preferred_shared_memory_carveout"``.
        value : int
            In bytes, or in percent, -1 to 100.

        Raises
        ------
        TypeError, ValueError
            There is no such attribute to set, or the value is not one.
        LaunchError
            The device has not so much shared memory.
        """
        if name not in _RANGES:
            raise ValueError(f"{name!r} cannot be set; a kernel has {' and '.join(_RANGES)} to set")
        try:
            number = operator.index(value)
        except TypeError:
            raise TypeError(f"{name} is {value!r}; pass an int") from None
        low, high = _RANGES[name]
        if not low <= number <= high:
            raise ValueError(f"{name} is {value!r}; it is {low} to {high}")
        self._engine_kernel(default_device()).set_attribute(name, number)

    def set_shared_memory_config(self, shared_mem_bytes: int) -> None:
        """Set ``max_dynamic_shared_size_bytes``, as kernels of `torch.cuda._compile_kernel` do; launches do it, too.

        Parameters
        ----------
        shared_mem_bytes : int
            Bytes of dynamic shared memory that a block may have.

        Raises
        ------
        LaunchError
            The device has not so much.
        """
        self.set_attribute("max_dynamic_shared_size_bytes", shared_mem_bytes)
