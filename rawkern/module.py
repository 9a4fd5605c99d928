"""RawModule: CUDA source, from a string or a file, and the kernels, variables and constants in it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from rawkern.base import markup
from rawkern.base.api_boundary import api_boundary
from rawkern.base.dynamo import untraced
from rawkern.compile import programs
from rawkern.compile.files import own_sources
from rawkern.engines.devices import default_device, normalized
from rawkern.errors import CompileError, RawkernError
from rawkern.kernel import RawKernel
from rawkern.launch import variables
from rawkern.launch.builds import CuPySettings, PathLike, Unit, make_unit
from rawkern.properties import OfUnit
from rawkern.templates import TemplateKernel, instance_name


class RawModule(OfUnit):
    """CUDA source with any number of kernels, compiled at first use for the device of the tensors.

    Parameters
    ----------
    code : str, optional
        The source. Give this or ``path``.
    path : path, optional
        A source file. When it or a local header it includes changes, the next launch recompiles it; while it does
        not compile, each launch raises `CompileError`.
    options : sequence of str
        NVRTC options, such as ``("-use_fast_math", "-DTILE=32")``. The architecture is not among them.
    include_dirs : sequence of paths
        Where ``#include`` looks. CUDA's own headers are found without.
    name_expressions : sequence of str, optional
        Template instances to compile with the rest. Instances requested later, through `get_function`, are compiled
        separately; on a GPU their launches copy the module's variables back and forth.
    enable_cooperative_groups : bool
        Launch cooperatively, so that ``grid.sync()`` works.
    strided : bool
        Accept tensors that are not contiguous; the kernel gets their pointers and has to know their strides.
    backend : str
        ``"nvrtc"`` or ``"nvcc"``, as in CuPy. NVRTC compiles in both cases, and most of nvcc's extensions work.
    translate_cucomplex : bool
        Read ``#include <cuComplex.h>`` in ``code`` as CuPy's header, whose types are ``complex<float>`` and
        ``complex<double>``, with their operators.
    jitify : bool, optional
        Has no effect: standard headers are always found.

    Raises
    ------
    TypeError, ValueError, FileNotFoundError
        For settings that cannot work. The source itself is compiled later: `CompileError` comes at the first use.

    Notes
    -----
    A module is pickled as its settings (a file by its path) and may be used from several threads. A copy is the same
    object.
    """

    unit: Unit
    _functions: dict[str, RawKernel]

    @untraced
    @api_boundary
    def __init__(
        self,
        code: str | None = None,
        *,
        path: PathLike | None = None,
        options: Sequence[str] = (),
        include_dirs: Sequence[PathLike] = (),
        name_expressions: Iterable[str] | None = None,
        enable_cooperative_groups: bool = False,
        strided: bool = False,
        backend: str = "nvrtc",
        translate_cucomplex: bool = False,
        jitify: bool | None = None,
    ) -> None:
        cupy = CuPySettings(backend, translate_cucomplex, jitify)
        self.unit = make_unit(
            code, path, options, include_dirs, name_expressions, enable_cooperative_groups, strided, cupy
        )
        self._functions = {}

    @classmethod
    def of_unit(cls, unit: Unit) -> RawModule:
        """Return a module of a source that there is."""
        module = cls.__new__(cls)
        module.unit, module._functions = unit, {}
        return module

    def __reduce__(self) -> tuple[Any, ...]:
        return RawModule.of_unit, (self.unit,)

    def __repr__(self) -> str:
        return f"<RawModule from {self.unit.settings.title}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: the kernels with their parameters; for that the source is compiled."""
        title = f"RawModule from {self.unit.settings.title}"
        try:
            with self.unit.lock:
                build, there = self.unit.current(), self.kernels
                compiled = build.program().entries if len(there) > len(programs.templates(build.source)) else ()
                rows = [(one.name, ", ".join(one.params)) for one in compiled]
                for one in programs.declared(build.source) if build.source.binary is None else ():
                    if one.template and one.name in there:
                        rows.append((f"template <{', '.join(one.template_params)}> {one.name}", ", ".join(one.types)))
        except (RawkernError, ValueError) as error:
            return markup.failure(title, error)
        return markup.table(title, " ".join(self.options), list(dict.fromkeys(rows)), ("kernel", "parameters"))

    @property
    def name_expressions(self) -> tuple[str, ...]:
        """The template instances that are compiled with the rest."""
        return self.unit.settings.name_expressions

    # Kernels ------------------------------------------------------------------------------------------------------

    @untraced
    @api_boundary
    def get_function(self, name: str, *template_arguments: Any) -> RawKernel:
        """Return a kernel by name.

        Parameters
        ----------
        name : str
            ``"saxpy"``, with its namespace where the bare name is not unique; a template instance,
            ``"axpy<float, 4>"``; or an overload by its parameter types, ``"axpy(int, float*)"``.
        *template_arguments : torch.dtype, NumPy dtype, int, bool or str
            Of a template: ``get_function("axpy", torch.float32, 4)`` is ``get_function("axpy<float, 4>")``. A str is
            inserted unchanged.

        Returns
        -------
        RawKernel
            The same object each time.

        Raises
        ------
        ValueError
            There is no such kernel, or more than one; the message lists the existing ones.
        CompileError
            The source does not compile.
        """
        if not isinstance(name, str):
            raise TypeError(f"get_function takes the kernel's name as a string, got {type(name).__name__}")
        name = instance_name(name, template_arguments)
        with self.unit.lock:
            kernel = self._functions.get(name)
            if kernel is None:
                kernel = RawKernel.of_unit(self.unit, name)
                kernel.state()
                self._functions[name] = kernel
            return kernel

    @untraced
    @api_boundary
    def __getattr__(self, name: str) -> RawKernel:
        # Python, copy, pickle and notebooks ask for names with an underscore; none of them may start a compilation.
        if name.startswith("_"):
            raise AttributeError(
                f"RawModule has no attribute {name!r}; for a kernel of that name: get_function({name!r})"
            )
        try:
            kernel = self.launchable(name)
        except (ValueError, CompileError) as error:
            if isinstance(error, CompileError) and error.line is not None:
                raise
            raise AttributeError(str(error)) from None
        self.__dict__[name] = kernel
        return kernel

    def launchable(self, name: str) -> Any:
        """Return a kernel or, of a template's name, what is launched as a kernel is, and asked nothing else."""
        with self.unit.lock:
            template = programs.template_declarations(self.unit.current().source, name)
        return TemplateKernel(self, name) if template else self.get_function(name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(name for name in self.kernels if name.isidentifier())]

    @property
    @api_boundary
    def kernels(self) -> tuple[str, ...]:
        """The compiled kernels, and the templates found in the source."""
        with self.unit.lock:
            build = self.unit.current()
            templates = programs.templates(build.source)
            try:
                entries = build.program().entries
            except CompileError as error:
                if (
                    error.line is not None or not templates
                ):  # a source with only templates has no program, which is not an error
                    raise
                entries = ()
            return tuple(dict.fromkeys((*(entry.name for entry in entries), *templates)))

    # Variables ----------------------------------------------------------------------------------------------------

    @untraced
    @api_boundary
    def get_global(self, name: str, device: torch.device | str | int | None = None) -> torch.Tensor:
        """Return a ``__device__``, ``__constant__`` or ``__managed__`` variable as a tensor on its own memory.

        Writing to the tensor writes to the variable. It belongs to the currently compiled code: after an edit, call
        this again.

        Parameters
        ----------
        name : str
            The variable, with its namespace.
        device : torch.device, str or int, optional
            Whose copy of the variable; by default the current CUDA device's if there is one, else the CPU's.

        Returns
        -------
        torch.Tensor
            In the variable's element type and shape: ``float a[3][31]`` is float32 of shape (3, 31), a single number
            of shape (1,). A vector such as ``float4`` adds a dimension for its numbers; a type that torch does not
            have, such as a struct, one for its bytes (uint8). Pointers are addresses (int64).

        Raises
        ------
        ValueError
            There is no such variable.
        """
        where = default_device() if device is None else normalized(device)
        with self.unit.lock:
            return variables.view(self.unit.current(), name, where)

    @untraced
    @api_boundary
    def constant(self, expression: str, device: torch.device | str | int | None = None) -> bool | int | float:
        """Return the value of a constant expression, computed by the compiler with the source's names and macros.

        Parameters
        ----------
        expression : str
            A constexpr variable (``"ns::Traits<float, 4>::kSize"``), an enumerator, a macro, ``"sizeof(Params)"``, a
            call of a constexpr function (``"smem_bytes(128)"``), or any C++ made of these.
        device : torch.device, str or int, optional
            The device whose architecture ``__CUDA_ARCH__`` names; by default the current CUDA device if there is
            one, else the CPU engine.

        Returns
        -------
        bool, int or float
            By the expression's type; an enumerator is an int, a character its code. The value is that of the current
            source.

        Raises
        ------
        ValueError
            It is not a constant expression, or its type is not a number; the message has the compiler's words.
        CompileError
            The source does not compile.
        """
        if not isinstance(expression, str):
            raise TypeError(f"constant takes a C++ expression as a string, got {type(expression).__name__}")
        where = default_device() if device is None else normalized(device)
        with self.unit.lock:
            build = self.unit.current()
            return programs.constant(build.source, build.architecture(where), expression)

    # Compiling --------------------------------------------------------------------------------------------------

    @untraced
    @api_boundary
    def compile(self, log_stream: Any = None) -> None:
        """Compile now what the first use would, for the current CUDA device if there is one, else for the CPU.

        Parameters
        ----------
        log_stream : file, optional
            Where the compiler's warnings are written.

        Raises
        ------
        CompileError
            The source does not compile, or it has only templates and ``name_expressions`` names none.
        """
        with self.unit.lock:
            build, device = self.unit.current(), default_device()
            program = build.program(build.architecture(device))
            if device.type == "cpu":  # a GPU's assembler has seen it by now
                build.engine_module(device)
        if log_stream is not None:
            log_stream.write(program.log)

    @untraced
    @api_boundary
    def reload(self) -> None:
        """Read and compile the source now, whether or not it has changed.

        Raises
        ------
        CompileError
            It does not compile; launches raise the same until it is fixed.
        """
        self.unit.reload()


# Where rawkern's own sources are ------------------------------------------------------------------------------


def find_source(path: PathLike, caller: str | None) -> PathLike:
    """The file of a relative path: here, beside the caller's file, or, for a bare name, among rawkern's own."""
    text = os.fspath(path)
    if os.path.isabs(text) or os.path.isfile(text):
        return path
    beside = os.path.join(os.path.dirname(os.path.abspath(caller)), text) if caller else ""
    if os.path.isfile(beside):
        return beside
    folder = own_sources()
    bare = isinstance(path, str) and os.sep not in text and not text.endswith((".cu", ".cuh"))
    if bare and (folder / f"{text}.cu").is_file():
        return folder / f"{text}.cu"
    there = ", ".join(sorted(file.stem for file in folder.glob("*.cu")))
    own = f", nor one of rawkern's own sources ({there or 'none'}); a file's name ends in .cu" if bare else ""
    places = f"{os.getcwd()}{f', or in {os.path.dirname(beside)}, the folder of the calling file' if beside else ''}"
    raise FileNotFoundError(f"there is no file {text!r} in {places}{own}")
