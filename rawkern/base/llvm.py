"""LLVM IR to machine code in memory: passes, code generation, loading. The only module that imports llvmlite."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache as once
from typing import Any

from rawkern.base import cache, environment
from rawkern.base.forking import Lock, compiling
from rawkern.base.scoped_setting import ScopedSetting
from rawkern.base.scopes import Scope
from rawkern.errors import MissingDependencyError, UnsupportedError

#: Functions outside of the generated code that it may call.
ALLOWED_SYMBOLS = frozenset(
    ("clock_gettime", "malloc", "malloc_usable_size", "free", "memcpy", "memset", "memmove", "fma", "fmaf")
)
FULL, QUICK = 2, 0  #: how much a module is optimized, as LLVM counts the effort of its code generator
FULL_PIPELINE_LINES = 5000
# Inlining comes last, as copying takes as long as a pass while the code is large. What follows `sroa` among the least
# would take a sixth of the time and give back nothing: code is generated as slowly. (NewGVN, the one redundancy pass
# offered by itself, aborts on ordinary kernels.)
_INLINED = ("always_inliner", "global_dead_code_eliminate")
LEAST = ("sroa", *_INLINED)
# What is called and stays a function is told the constants that it gets, and callers that it does not write.
INLINED_FIRST = (*_INLINED, "ipsccp", "post_order_function_attributes")
# `sccp` right after `sroa` takes out the phis of registers that no lane has set yet: half the time
FEW = (
    "sroa",
    "sccp",
    "simplify_cfg",
    "instruction_combine",
    "jump_threading",
    "simplify_cfg",
    "aggressive_dce",
    *_INLINED,
)
# What takes more than linear time in the code generator's blocks of thousands of instructions, bounded: dependences
# between accesses to memory, where to split live ranges, and how often one of hundreds of values is joined with another
# (a quarter of the time where registers of waiting lanes are merged all over a kernel). Code is as large, and the time
# 30 % less for the largest kernels. LLVM ends the process at an option that it does not know, so they are given to a
# version that was tried.
_TRIED = 22
_BOUNDED = (
    "-dag-maps-huge-region=100",
    "-dag-maps-reduction-size=50",
    "-grow-region-complexity-budget=100",
    "-huge-size-for-split=500",
    "-large-interval-freq-threshold=5",
)
# llvmlite's memory manager does not count the table of outer functions' addresses, 8 bytes for each that is called, and
# ends the process where the pages of the variables have no room for it. It counts as much more as the variables are
# aligned, so this one leaves room for 510 functions, whatever is beside it.
_ROOM = "@rk_room = global i64 0, align 4096"
_lock = Lock()  # LLVM's contexts are not safe to share between threads
_unused: list[Any] = []  # engines of objects that are gone, for the next thread that is alone to dispose of
_empty: list[Any] = []  # a module without code, for the next engine to begin with


OPTIMIZE = "RAWKERN_OPTIMIZE"
EFFORTS = {"2": FULL, "0": QUICK}


def parse_effort(text: str, source: str) -> int:
    """How much kernels are optimized, by the number that compilers know it by; ValueError for any other."""
    if text not in EFFORTS:
        raise ValueError(
            f"{source} is {text!r}; it is 2, for fast kernels, or 0, for a fast compilation of slower ones"
        )
    return EFFORTS[text]


#: How much kernels, the functions of the library and those of launches are optimized. Results are the same.
optimization = ScopedSetting(environment.read(OPTIMIZE, parse_effort, FULL))


class _Alone(Scope):
    """LLVM's binding, for this thread alone: enter it with the lock, as ``with _lock, compiling(), _Alone() as llvm:``.

    llvmlite takes and gives back a lock of its own in Python. An interrupt there leaves it locked, and what compiles
    in another thread would wait for ever.
    """

    def _begin(self, token: list[Any]) -> None:
        token.append(_inner_lock()._recursion_count())
        while _unused:
            _dispose(_unused.pop())

    def _end(self, token: list[Any]) -> None:
        for before in token:
            while _inner_lock()._recursion_count() > before:
                _inner_lock().release()

    def _entered(self) -> Any:
        return binding()


def _inner_lock() -> Any:
    return binding().ffi.lib._lock._lock


@once
def binding() -> Any:
    """Import LLVM's binding, made ready for this machine."""
    try:
        import llvmlite.binding as llvm
    except ImportError:
        raise MissingDependencyError(
            'kernels run on the CPU through llvmlite, which is not installed; pip install "llvmlite>=0.50"'
        ) from None
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    return llvm


@once
def _bound() -> None:
    """Bound what the code generator takes, for the process."""
    if binding().llvm_version_info[0] == _TRIED:
        for option in _BOUNDED:
            binding().set_option("rawkern", option)


@dataclass(frozen=True)
class Cpu:
    """What code is generated for, as LLVM names it."""

    triple: str
    name: str
    features: str

    @property
    def machine(self) -> str:
        return self.triple.split("-", 1)[0]

    def arithmetic(self) -> frozenset[str]:
        """What lowering asks: ``avx512f`` (with DQ), ``cx16`` are used, x86 without FMA or F16C is worked around."""
        if self.machine != "x86_64":
            return frozenset()
        have = self.features.split(",")
        missing = {f"no{f}" for f in ("fma", "f16c") if f"+{f}" not in have}
        wide = "+avx512f" in have and "+avx512dq" in have
        return frozenset(missing | ({"avx512f"} if wide else set()) | ({"cx16"} if "+cx16" in have else set()))


@once
def host() -> Cpu:
    """This machine's CPU."""
    with _lock, compiling(), _Alone() as llvm:
        have = llvm.get_host_cpu_features()
        features = ",".join(["+" + f if have[f] else "-" + f for f in sorted(have)])  # as its `flatten`, in a third
        return Cpu(llvm.get_default_triple(), llvm.get_host_cpu_name(), features)


_V3 = "avx avx2 bmi bmi2 cx16 f16c fma lzcnt movbe popcnt sse sse2 sse3 ssse3 sse4.1 sse4.2"
#: CPUs unlike most hosts, without AVX-512 or of another kind: code for them can be generated and measured anywhere.
OTHERS = {
    "haswell": Cpu("x86_64-unknown-linux-gnu", "haswell", ",".join(f"+{f}" for f in _V3.split())),
    "neoverse-n1": Cpu("aarch64-unknown-linux-gnu", "neoverse-n1", "+neon,+fullfp16,+lse"),
    "apple-m1": Cpu("aarch64-unknown-linux-gnu", "apple-m1", "+neon,+fullfp16,+lse"),
}


def declaration(result: str, name: str, params: str) -> str:
    """What declares a function: its parameters are ``ptr %blk, <32 x i64> %a`` where it is defined."""
    types = re.sub(r" %\w+", "", params)
    return f"declare {result} @{name}({types})"


def target_machine(cpu: Cpu, effort: int = FULL) -> Any:
    llvm = binding()
    if cpu.machine != host().machine:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(cpu.triple)
    return target.create_target_machine(
        cpu=cpu.name, features=cpu.features, opt=effort, reloc="pic", codemodel="small", jit=True
    )


def object_file(text: str, cpu: Cpu, size: int = 0, known: tuple[str, ...] = (), effort: int = FULL) -> bytes:
    """Optimize a module of about `size` lines and generate an object file; it may call functions `known` by prefix.

    An effort of `QUICK` takes a third of the time: it leaves most passes out, and much of what generates code.
    """
    usual = size <= FULL_PIPELINE_LINES
    with (
        _lock,
        compiling(),
        _Alone() as llvm,
        _module(llvm, f"{text}\n{_ROOM}") as module,
        # of the passes that the lowest effort leaves out, scheduling again after registers are found takes more than
        # linear time: as long as all others for blocks of thousands of instructions
        _disposed(target_machine(cpu, effort if usual else min(effort, 1))) as machine,
    ):
        _bound()
        module.triple = cpu.triple
        module.verify()
        optimize(llvm, module, machine, LEAST if effort == QUICK else None if usual else FEW)
        undefined = [
            f.name
            for f in module.functions
            if f.is_declaration and not f.name.startswith(("llvm.", *known)) and f.name not in ALLOWED_SYMBOLS
        ]
        if undefined:
            raise UnsupportedError(
                f"the generated code would call {', '.join(undefined)}, which rawkern does not provide"
            )
        return machine.emit_object(module)


def optimize(llvm: Any, module: Any, machine: Any, names: tuple[str, ...] | None) -> None:
    """Optimize a module of IR by the passes of some names.

    With None it is LLVM's usual simplification of functions without what the emitted code has already (vectors,
    unrolled loops), after inlining. LLVM's pipeline for modules simplifies once before and once after inlining, which
    takes two to four times as long for code that is as fast. The time grows faster than the kernel, so large ones get
    a few cheap passes alone.
    """
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False
    # By itself llvmlite does not dispose of a pass manager: an empty method hides the one that does. 60 kB a module.
    # (The builder's callbacks, 1.5 kB, are lost: nothing deletes them, and a builder that is used again calls those of
    # the module before, which are gone.)
    managers = llvm.newpassmanagers.NewPassManager._dispose
    with _disposed(options), _disposed(llvm.create_pass_builder(machine, options)) as builder:
        with _disposed(llvm.create_new_module_pass_manager(), managers) as passes:
            for name in names or INLINED_FIRST:
                getattr(passes, f"add_{name}_pass")()
            passes.run(module, builder)
        if names is None:
            with _disposed(builder.getFunctionPassManager(), managers) as passes:
                for function in module.functions:
                    if not function.is_declaration:
                        passes.run(function, builder)


def _dispose(owner: Any, how: Callable[[Any], None] | None = None) -> None:
    """Dispose of an object of LLVM's, unless another one owns it.

    llvmlite's own `close` marks the object after that. After an interrupt in between, `__del__` would dispose again.
    """
    if not owner._owned and not owner.closed:  # garbage in a cycle has been closed by its own `__del__`
        owner._owned = True
        (how or type(owner)._dispose)(owner)
        owner.detach()


@contextmanager
def _disposed(owner: Any, how: Callable[[Any], None] | None = None) -> Iterator[Any]:
    """An object of LLVM's that is disposed of at the end."""
    try:
        yield owner
    finally:
        _dispose(owner, how)


@contextmanager
def _module(llvm: Any, text: str) -> Iterator[Any]:
    """A module in a context of its own, both of which are disposed of at the end.

    The other way round would end the process: a module that an interrupt keeps from it here keeps its context, too.
    """
    context = llvm.create_context()
    module = llvm.parse_assembly(text, context)
    try:
        yield module
    finally:
        _dispose(module)
        _dispose(context)


class LoadedObject:
    """Code of an object file, or of several, for as long as this object lives.

    Each file lies in one stretch of memory, which llvmlite's own memory manager sees to. LLVM's takes free pages
    wherever they are, and code that lies more than 2 GB from its constants (CUDA's libraries are that large) ends the
    process. Of files that call one another, those that call come first: LLVM calls what it has loaded already directly,
    which ends the process too where that lies 2 GB away, and what is not loaded yet from any distance.
    """

    def __init__(self, *bodies: bytes):
        # An engine begins with a module; code is generated of what stays in it. Nothing does, so no features of the CPU
        # matter, which a machine takes five times as long with.
        with _lock, compiling(), _Alone() as llvm:
            nothing = _empty.pop() if _empty else llvm.parse_assembly("")  # an interrupt leaves it to its engine
            machine = target_machine(replace(host(), name="", features=""))
            self._engine = llvm.create_mcjit_compiler(nothing, machine, use_lmm=True)
            self._engine.remove_module(nothing)
            _empty.append(nothing)
            for body in bodies:
                self._engine.add_object_file(llvm.ObjectFileRef.from_data(body))
            self._engine.finalize_object()

    def __del__(self, unused: list[Any] = _unused) -> None:
        """Leave the engine to a thread that is alone with LLVM.

        This one may be anywhere. If it disposed of the engine while another thread forks, the child would find
        llvmlite's lock locked for ever.
        """
        if hasattr(self, "_engine"):
            unused.append(self._engine)

    def address(self, name: str) -> int:
        """Address of a function that the code exports."""
        return self.addresses(name)[0]

    def addresses(self, *names: str) -> list[int]:
        """Addresses of several; LLVM is taken and given back once."""
        with _lock, compiling(), _Alone():
            return [self._engine.get_function_address(name) for name in names]

    def offer(self, names: Mapping[str, str]) -> None:
        """Let code that is loaded after this call some of its functions: the names it calls them by, with their own."""
        with _lock, compiling(), _Alone() as llvm:
            for called, name in names.items():
                llvm.add_symbol(called, self._engine.get_function_address(name))


def stored_object(text: str, most: int = FULL) -> bytes:
    """An object file of a module for this CPU, from the disk cache where it is there.

    The usual passes take as long as generating code does, and functions like these gain nothing by them. With an effort
    of at `most` `QUICK` code is generated in a seventh of the time.
    """
    cpu, effort = host(), min(optimization.current, most)
    given = f"{cpu} {binding().llvm_version_info} {effort}\n{text}"  # without quoting the text
    key = "native-" + hashlib.sha256(given.encode()).hexdigest()
    found = cache.get(key)
    if found is None:
        cache.put(key, found := object_file(text, cpu, FULL_PIPELINE_LINES + 1, effort=effort))
    return found
