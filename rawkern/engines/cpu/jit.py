"""LLVM IR to machine code in memory: passes, code generation, loading. The only module that imports llvmlite."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, astuple, dataclass
from functools import cache
from importlib import resources
from typing import Any

from rawkern import cache as disk
from rawkern.engines.cpu import check, parser
from rawkern.engines.cpu import ptx as ptx_
from rawkern.engines.cpu.plan import make_plan
from rawkern.engines.cpu.program import Lowered, lower
from rawkern.engines.cpu.records import runtime
from rawkern.engines.cpu.variables import Globals, lay_out_globals, sizes
from rawkern.errors import MissingDependencyError, UnsupportedError
from rawkern.forking import Lock, compiling

#: Functions outside of the generated code that it may call.
ALLOWED_SYMBOLS = frozenset(
    ("clock_gettime", "malloc", "malloc_usable_size", "free", "memcpy", "memset", "memmove", "fma", "fmaf")
)
_CHECKER = ("rk_check_", "rk_run_")  # what names in the checker's object file begin with
FULL_PIPELINE_LINES = 5000
FREE_RUNNING = 4  # lines of a kernel whose lanes may wait anywhere count as so many
# llvmlite's memory manager does not count what a call of an outer function takes in the table of their addresses: 8
# bytes, for which there is room on the page of this variable.
_ROOM = "@rk_room = global i64 0"
_resident: list[Any] = []  # engines that hold the checker
_lock = Lock()  # LLVM's contexts are not safe to share between threads


@dataclass(frozen=True)
class Code:
    """Machine code of one kernel for one shape of block."""

    object: bytes
    waiting: bool
    shared_static: int
    local_bytes: int
    recursive: bool
    sites: tuple[str, ...]
    checks: dict | None = None  # what the checker names (check.table), of a checked build


@cache
def _llvm() -> Any:
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
        """What the arithmetic tables ask: ``avx512f`` (with DQ) is used, x86 without FMA or F16C is worked around."""
        if self.machine != "x86_64":
            return frozenset()
        have = self.features.split(",")
        missing = {f"no{f}" for f in ("fma", "f16c") if f"+{f}" not in have}
        wide = "+avx512f" in have and "+avx512dq" in have
        return frozenset(missing | ({"avx512f"} if wide else set()))


@cache
def host() -> Cpu:
    """This machine's CPU."""
    llvm = _llvm()
    return Cpu(llvm.get_default_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())


_V3 = "avx avx2 bmi bmi2 cx16 f16c fma lzcnt movbe popcnt sse sse2 sse3 ssse3 sse4.1 sse4.2"
#: CPUs unlike most hosts, without AVX-512 or of another kind: code for them can be generated and measured anywhere.
OTHERS = {
    "haswell": Cpu("x86_64-unknown-linux-gnu", "haswell", ",".join(f"+{f}" for f in _V3.split())),
    "neoverse-n1": Cpu("aarch64-unknown-linux-gnu", "neoverse-n1", "+neon,+fullfp16,+lse"),
    "apple-m1": Cpu("aarch64-unknown-linux-gnu", "apple-m1", "+neon,+fullfp16,+lse"),
}


@cache
def own_version() -> str:
    """A digest of this package's sources: code made by another version is not taken from the cache."""
    digest = hashlib.sha256()
    root = resources.files("rawkern.engines.cpu")
    for folder in (root, root.joinpath("arith")):
        for file in sorted(folder.iterdir(), key=lambda p: p.name):
            if file.name.endswith((".py", ".ll")):
                digest.update(file.read_bytes())
    return digest.hexdigest()


def target_machine(cpu: Cpu) -> Any:
    llvm = _llvm()
    if cpu.machine != host().machine:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(cpu.triple)
    return target.create_target_machine(
        cpu=cpu.name, features=cpu.features, opt=2, reloc="pic", codemodel="small", jit=True
    )


class Translation:
    """A PTX module on its way to machine code; parsed at most once, and not at all when all its code is cached."""

    def __init__(self, text: str):
        self.text = text
        self.key = hashlib.sha256(text.encode()).hexdigest()
        self._parsed: ptx_.Ptx | None = None

    def parsed(self) -> ptx_.Ptx:
        if self._parsed is None:
            self._parsed = parser.parse(self.text)
        return self._parsed

    def globals(self) -> Globals:
        """Layout of the module's variables, from the disk cache where it is there."""
        key = f"globals-{self.key}-{own_version()}"
        stored = disk.get_record(key)
        if stored is not None:
            fields, image = stored
            pointers = tuple((a, b, c) for a, b, c in fields["pointers"])
            return Globals(fields["offsets"], fields["size"], image, pointers)
        layout = lay_out_globals(self.parsed())
        fields = {"offsets": layout.offsets, "size": layout.size, "pointers": layout.pointers}
        disk.put_record(key, fields, layout.image)
        return layout

    def resources(self, kernel: str) -> dict[str, int]:
        """Static shared memory and local memory of a kernel in bytes, and the PTX version; no code is generated."""
        key = "resources-" + hashlib.sha256(f"{self.key} {kernel} {own_version()}".encode()).hexdigest()
        stored = disk.get_record(key)
        if stored is not None:
            return stored[0]
        parsed = self.parsed()
        shared, local = sizes(parsed, kernel)
        found = {"shared_static": shared, "local_bytes": local, "ptx_version": parsed.version}
        disk.put_record(key, found)
        return found

    def code(self, kernel: str, layout: Globals, tid_shape: str, checked: bool = False) -> Code:
        """Machine code of `kernel` for blocks of one shape (`grid.shape_of`), compiled or from the disk cache."""
        cpu = host()
        parts = (
            self.key,
            kernel,
            tid_shape,
            cpu.triple,
            cpu.name,
            cpu.features,
            _llvm().llvm_version_info,
            own_version(),
            checked,
        )
        key = "code-" + hashlib.sha256(json.dumps(parts).encode()).hexdigest()
        stored = disk.get_record(key)
        if stored is not None:
            fields, body = stored
            fields["sites"] = tuple(fields["sites"])
            return Code(body, **fields)
        code = self.compile(kernel, layout, tid_shape, checked)
        fields = asdict(code)
        body = fields.pop("object")
        disk.put_record(key, fields, body)
        return code

    def compile(self, kernel: str, layout: Globals, tid_shape: str, checked: bool = False) -> Code:
        cpu = host()
        lowered = self.lower(kernel, layout, tid_shape, cpu, checked)
        return Code(
            emit(lowered, cpu),
            lowered.waiting,
            lowered.shared_static,
            lowered.local_bytes,
            lowered.recursive,
            tuple(lowered.sites),
            lowered.checks,
        )

    def lower(self, kernel: str, layout: Globals, tid_shape: str, cpu: Cpu, checked: bool = False) -> Lowered:
        return lower(make_plan(self.parsed(), kernel, layout, tid_shape, checked), cpu.arithmetic())


def module_text(lowered: Lowered, cpu: Cpu) -> str:
    """The kernel with its scheduler."""
    checked = lowered.checks is not None
    own, wide = cpu.machine == host().machine, "avx512f" in cpu.arithmetic()
    scheduler = runtime(lowered.waiting, cpu.machine, checked, own, wide)
    if checked:
        scheduler = f"{scheduler}\n{check.connection()}"
    # LLVM takes a declaration only once
    known = {line for line in scheduler.splitlines() if line.startswith("declare")}
    return "\n".join([*_once(scheduler), *(line for line in lowered.text.splitlines() if line not in known)])


def _once(text: str) -> list[str]:
    """Lines of a text, each declaration once."""
    lines = text.splitlines()
    return list(dict.fromkeys(x for x in lines if x.startswith("declare"))) + [
        x for x in lines if not x.startswith("declare")
    ]


def emit(lowered: Lowered, cpu: Cpu) -> bytes:
    """Optimise and generate an object file.

    llvmlite has no assembler for another kind of CPU than the host's: an object for one lacks the routine that switches
    stacks. It shows what generating it takes and how large it is, and cannot be run.
    """
    size = lowered.text.count("\n") * (FREE_RUNNING if lowered.free_running else 1)
    return _object(module_text(lowered, cpu), cpu, size, _CHECKER if lowered.checks is not None else ())


@cache
def checker(cpu: Cpu) -> tuple[bytes, list[str]]:
    """The checker's object file, and the functions it has for kernels."""
    parts = (*astuple(cpu), _llvm().llvm_version_info, own_version())
    key = "checker-" + hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    stored = disk.get_record(key)
    if stored is not None:
        return stored[1], stored[0]["functions"]
    text = "\n".join(_once(check.checker()))
    functions = re.findall(r"^define i64 @(\w+)\(", text, re.M)
    body = _object(text, cpu, 0, _CHECKER)
    disk.put_record(key, {"functions": functions}, body)
    return body, functions


def _object(text: str, cpu: Cpu, size: int, known: tuple[str, ...]) -> bytes:
    """Optimise a module of about `size` lines and generate an object file; it may call functions `known` by prefix."""
    llvm = _llvm()
    with (
        _lock,
        compiling(),
        llvm.create_context() as context,
        llvm.parse_assembly(f"{text}\n{_ROOM}", context) as module,
        target_machine(cpu) as machine,
    ):
        module.triple = cpu.triple
        module.verify()
        optimise(llvm, module, machine, size)
        undefined = [
            f.name
            for f in module.functions
            if f.is_declaration
            and not f.name.startswith(("llvm.", *known))
            and f.name not in ALLOWED_SYMBOLS | {"rk_switch", "rk_start"}
        ]
        if undefined:
            raise UnsupportedError(
                f"the generated code would call {', '.join(undefined)}, which rawkern does not provide"
            )
        return machine.emit_object(module)


def optimise(llvm: Any, module: Any, machine: Any, size: int) -> None:
    """Optimise a module of `size` lines of IR.

    LLVM's usual pipeline without what the emitted code has already (vectors, unrolled loops); its time grows faster
    than the kernel, so large ones get a few cheap passes alone. (NewGVN, the one redundancy pass offered by itself,
    aborts on ordinary kernels.)
    """
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False
    with llvm.create_pass_builder(machine, options) as builder:
        if size <= FULL_PIPELINE_LINES:
            passes = builder.getModulePassManager()
        else:
            passes = llvm.create_new_module_pass_manager()
            # `sccp` right after `sroa` takes out the phis of registers that no lane has set yet: half the time
            for name in (
                "sroa",
                "sccp",
                "simplify_cfg",
                "instruction_combine",
                "jump_threading",
                "simplify_cfg",
                "aggressive_dce",
            ):
                getattr(passes, f"add_{name}_pass")()
            passes.add_always_inliner_pass()  # last, as copying takes as long as a pass while the code is large
            passes.add_global_dead_code_eliminate_pass()
        passes.run(module, builder)


class Loaded:
    """Machine code in executable memory, in an engine of its own."""

    def __init__(self, code: Code):
        checked = code.checks is not None
        if checked:
            load_checker()
        with _lock, compiling():
            self._engine = in_memory(code.object)
            self.enter = self._engine.get_function_address("rk_enter")
            self.launch = self._engine.get_function_address("rk_launch")
            self.stack_range = self._engine.get_function_address("rk_stack_range") if checked else 0


def in_memory(body: bytes) -> Any:
    """An engine that holds one object file's code, in one stretch of memory.

    llvmlite's own memory manager sees to that. LLVM's takes free pages wherever they are, and code that lies more than
    2 GB from its constants (CUDA's libraries are that large) ends the process.
    """
    llvm = _llvm()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target_machine(host()), use_lmm=True)
    engine.add_object_file(llvm.ObjectFileRef.from_data(body))
    engine.finalize_object()
    return engine


@cache
def load_checker() -> None:
    """Load the checker for all kernels that are loaded after it."""
    body, functions = checker(host())
    with _lock, compiling():
        engine = in_memory(body)
        for name in functions:
            _llvm().add_symbol(name, engine.get_function_address(name))
        _resident.append(engine)
