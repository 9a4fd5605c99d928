"""``rawkern run``: launches one kernel of a file on arguments from the command line, and shows what it changed."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import statistics
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rawkern.cli.build import compile_options, read_source, source_options
from rawkern.cli.text import CommandError, duration, paint, plural, step, table, user_errors, whole
from rawkern.errors import OutOfBoundsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from rawkern.arguments.signature import Signature
    from rawkern.kernel import RawKernel
    from rawkern.testing.guards import Guarded

_REPEATS = 100
# Bytes around each tensor, which catch out-of-bounds writes; they are not NaNs, so that `y[i] += 1` shows.
_MARGIN = 1 << 20
ARGUMENTS = """\
An argument is NAME=EXPRESSION, or EXPRESSION in the order of the parameters:
  n=1000  a=-2.5  flag=True  p=None  v=(1,2,3)  s={'radius': 2.0}
  x=randn(1000)  x=rand(3,4)  k=randint(0,10,1000)  i=arange(1000)
  out=empty(n)  z=zeros(n)  o=ones(n)  f=full(n,2.5)  t=tensor([1,2,5])  x=@file.npy
Tensors get the parameter's dtype; if it has none, write dtype=NAME: zeros(9, dtype=float16). Numbers may use
arithmetic and the names of other numbers. empty() is filled with NaN, so that elements never written show.
"""


@dataclass(frozen=True)
class Launch:
    """A kernel with its arguments and configuration."""

    kernel: RawKernel
    signature: Signature
    arguments: dict[str, Any]
    margins: dict[str, Guarded]  # by tensor; empty for checked launches
    go: Callable[[], None]
    form: str  # "forall(1000)", "grid 4, block 256"


@dataclass(frozen=True)
class Outside:
    """A write outside a tensor that its margins show; takes the place of a checker's report."""

    message: str
    error: type[Exception] = OutOfBoundsError
    file: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        return f"{self.message}; --check shows where"


def declare(commands: Any) -> None:
    """Add the command's parser."""
    parser = commands.add_parser(
        "run",
        help="launch a kernel of a .cu file; show what it changed",
        description="Launch a kernel of a .cu file on arguments made here, and show what it changed.",
        epilog=ARGUMENTS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    source_options(parser)
    parser.add_argument("kernel", metavar="KERNEL", help="its name, or an instance: 'axpy<float, 4>'")
    launch_options(parser)
    parser.add_argument("--device", metavar="NAME", help="cpu, cuda or cuda:1 (default: cuda where there is one)")
    parser.add_argument(
        "--check", action="store_true", help="check every access; on errors, show them and exit with status 1"
    )
    parser.add_argument("--time", nargs="?", type=_repeats, const=_REPEATS, default=0, metavar="REPEATS",
                        help=f"also time launches: the median of N (default: {_REPEATS})")  # fmt: skip
    parser.add_argument("--save", metavar="DIR", help="write every tensor to DIR/NAME.npy after the launch")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(main=main)


def launch_options(parser: argparse.ArgumentParser) -> None:
    """Add a launch's arguments and options to a parser."""
    parser.add_argument("arguments", nargs="*", default=[], metavar="ARG", help="see below")
    parser.add_argument("--grid", metavar="N", help="blocks: 4, 4,2 or '(n + 255) // 256'")
    parser.add_argument("--block", metavar="N", help="threads per block: 256 or 16,16")
    parser.add_argument("--forall", metavar="N", help="enough blocks to cover N elements, instead of --grid")
    parser.add_argument("--shared", metavar="BYTES", default="0", help="dynamic shared memory per block")
    parser.add_argument("--cluster", metavar="N", help="blocks of a thread block cluster: 2 or 2,1,1")
    parser.add_argument("--cooperative", action="store_true", help="launch cooperatively, so that grid.sync() works")
    parser.add_argument(
        "--seed", type=whole(0, 2**63 - 1), default=0, help="seed of randn, rand and randint (default: 0)"
    )


def main(options: argparse.Namespace) -> int:
    """Run the command."""
    read_source(options)  # the file and options, before torch is imported
    with step("importing torch"):
        import torch

    device = device_named(options.device)
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        return _run(options, device)


def _repeats(text: str) -> int:
    try:
        return whole(1)(text)
    except argparse.ArgumentTypeError as error:
        hint = "" if text.lstrip("-").isdigit() else f"; write --time={_REPEATS}, or put --time after the arguments"
        raise argparse.ArgumentTypeError(f"{error}{hint}") from None


def device_named(name: str | None) -> torch.device:
    """The device of an option, by default a GPU if there is one; CommandError for other devices."""
    import torch

    from rawkern.engines.devices import default_device, normalized

    if name is None:
        return default_device()
    try:
        wanted = torch.device(name)
    except RuntimeError:
        raise CommandError(f"--device {name}: choose cpu, cuda, or one of several GPUs such as cuda:1") from None
    with user_errors(ValueError):
        if wanted.type == "cuda" and (wanted.index or 0) >= torch.cuda.device_count():
            raise CommandError(f"device {name} does not exist: torch finds {plural(torch.cuda.device_count(), 'GPU')}")
        return normalized(wanted)


def _run(options: argparse.Namespace, device: torch.device) -> int:
    from rawkern.cli.arguments import tensors_in
    from rawkern.cli.summary import summary

    if options.save:
        with user_errors(FileExistsError):
            os.makedirs(options.save, exist_ok=True)
    with step(f"compiling {options.file}"):
        launch = launch_of(options, device, margins=not options.check)
    tensors = tensors_in(launch.arguments)
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    sys.stdout.flush()
    findings: tuple[Any, ...] = ()
    printing = _printing_to_stderr() if options.json else contextlib.nullcontext()
    start = time.perf_counter()
    with step(f"running {options.kernel}"), user_errors(TypeError, ValueError, OverflowError), printing:
        if options.check:
            findings = _checked(launch.go)
        else:
            launch.go()
        if device.type == "cuda":
            _synchronize(launch, options)
    seconds = time.perf_counter() - start
    findings = findings or tuple(_outside(launch))
    told = [summary(name, before[name], tensor) for name, tensor in tensors.items()]
    if options.save:
        _save(options.save, tensors)
    times = _timed(options, launch, device, before) if options.time and not findings else []
    median = statistics.median(times) if times else None
    report = {
        "kernel": launch.kernel.name, "signature": str(launch.signature), "device": str(device), "launch": launch.form,
        "seconds": {"first": seconds, "median": median, "repeats": len(times)}, "tensors": told,
        "findings": [{"error": f.error.__name__, "message": f.message, "file": f.file, "line": f.line}
                     for f in findings],
    }  # fmt: skip
    if options.json:
        print(json.dumps(_strict(report), indent=2))
    else:
        _print(report, launch.arguments, options.check)
    if findings:
        print("\n\n".join(map(str, findings)), file=sys.stderr)
    return 1 if findings else 0


def _synchronize(launch: Launch, options: argparse.Namespace) -> None:
    import torch

    try:
        torch.cuda.synchronize()
    except RuntimeError as error:  # an illegal address or a trap: this process can no longer read from the GPU
        hint = "" if options.check else "; --check shows where"
        raise CommandError(f"{launch.kernel.name}: {str(error).partition(chr(10))[0]}{hint}") from None


def _outside(launch: Launch) -> Iterator[Outside]:
    for name, margins in launch.margins.items():
        if (found := margins.outside()) is not None:
            side, near = found
            index = margins.tensor.numel() + near if side == "after" else -1 - near
            has = plural(margins.tensor.numel(), "element")
            yield Outside(f"{launch.kernel.name} writes {name}[{index}]; {name} has {has}")


@contextlib.contextmanager
def _printing_to_stderr() -> Iterator[None]:
    """Send what kernels print to stderr: from the CPU through Python, from a GPU through C."""
    import ctypes

    stdout, standard = os.dup(1), ctypes.CDLL(None)
    sys.stdout.flush()
    try:
        os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        standard.fflush(None)
        os.dup2(stdout, 1)
        os.close(stdout)


def _checked(go: Callable[[], None]) -> tuple[Any, ...]:
    """Launch and check every access; returns the findings."""
    import rawkern

    try:
        with rawkern.check():
            go()
    except rawkern.CheckError as error:
        if not error.reports:
            raise
        return error.reports
    return ()


# The launch -----------------------------------------------------------------------------------------------------


def launch_of(options: argparse.Namespace, device: torch.device, *, margins: bool) -> Launch:
    """The launch that the options describe, with or without margins around its tensors."""
    import rawkern
    from rawkern.cli.arguments import evaluated, replaced, tensors_in
    from rawkern.cli.expressions import POISON
    from rawkern.engines.devices import default_device
    from rawkern.testing.guards import surround

    module = rawkern.RawModule(
        path=options.file, options=compile_options(options), include_dirs=options.include_dirs,
        enable_cooperative_groups=options.cooperative,
    )  # fmt: skip
    with user_errors(ValueError):
        kernel = module.get_function(options.kernel)
        signature = kernel.state().signature
    with step("making arguments"):
        arguments, numbers = evaluated(options.arguments, signature, device, options.seed)
        tensors = tensors_in(arguments) if margins else {}
        around = {name: surround(name, tensor, POISON, _MARGIN) for name, tensor in tensors.items()}
        arguments = replaced(arguments, lambda name, t: around[name].tensor if around else t)
    if device.type == "cpu" and default_device().type != "cpu" and not tensors_in(arguments):
        raise CommandError(f"{kernel.name} has no tensor that selects the CPU; hide the GPU with CUDA_VISIBLE_DEVICES=")
    with user_errors(TypeError, ValueError):
        launcher, form = _configured(options, kernel, numbers)
    values = tuple(arguments.values())
    return Launch(kernel, signature, arguments, around, lambda: launcher(*values), form)


def _configured(options: argparse.Namespace, kernel: RawKernel, numbers: dict[str, Any]) -> tuple[Any, str]:
    from rawkern.cli.expressions import number

    block = None if options.block is None else number(options.block, numbers)
    shared = number(options.shared, numbers)
    cluster = None if options.cluster is None else number(options.cluster, numbers)
    kernel, together = kernel.configured(cluster=cluster), f", cluster {_dims(cluster)}" if cluster is not None else ""
    if options.forall is not None:
        if options.grid is not None or shared:
            raise CommandError("--forall cannot be combined with --grid or --shared")
        count = number(options.forall, numbers)
        form = f"forall({count}{'' if block is None else f', block={block}'}){together}"
        return kernel.forall(count, block=block), form
    if options.grid is None or block is None:
        raise CommandError("pass the number of threads to launch: --grid and --block, or --forall N")
    grid = number(options.grid, numbers)
    form = f"grid {_dims(grid)}, block {_dims(block)}{f', {shared} bytes of shared memory' if shared else ''}"
    return kernel[grid, block, shared], form + together


def _dims(size: Any) -> str:
    return " x ".join(map(str, size)) if isinstance(size, tuple) else str(size)


def _timed(
    options: argparse.Namespace, launch: Launch, device: torch.device, before: dict[str, torch.Tensor]
) -> list[float]:
    """The times of launches; each starts from the original arguments."""
    from rawkern.cli.arguments import owner, tensors_in
    from rawkern.cli.timing import launch_times

    read = {param.name for param in launch.signature.params if param.is_pointer and param.const}
    pairs = [(t, before[name]) for name, t in tensors_in(launch.arguments).items() if owner(name) not in read]

    def restore() -> None:
        for tensor, copy in pairs:
            tensor.copy_(copy)

    with step(f"timing {options.time} launches"):
        return launch_times(launch.go, device, options.time, restore)


def _save(folder: str, tensors: dict[str, torch.Tensor]) -> None:
    import numpy as np

    from rawkern.cli.summary import to_numpy

    for name, tensor in tensors.items():
        np.save(os.path.join(folder, f"{name}.npy"), to_numpy(tensor))


# Output --------------------------------------------------------------------------------------------------------


def _print(report: dict[str, Any], arguments: dict[str, Any], checked: bool) -> None:
    from rawkern.cli.summary import shown

    print(f"{report['signature']}\n{report['launch']} on {report['device']}")
    if plain := [f"{name} = {value}" for name, value in _plain_arguments(arguments).items()]:
        print(", ".join(plain))
    head = ("", "dtype", "shape", "changed", "min", "max", "mean", "NaN", "first")
    rows = []
    for t in report["tensors"]:
        total = math.prod(t["shape"])
        changed = f"{t['changed']} of {total}" if t["changed"] else "no"
        shape, numbers = "x".join(map(str, t["shape"])) or "()", (shown(t[name]) for name in ("low", "high", "mean"))
        first = " ".join(map(shown, t["first"])) + (" ..." if total > len(t["first"]) else "")
        rows.append((t["name"], t["dtype"], shape, changed, *numbers, t["nans"], first))
    if rows:
        print("\n" + table(head, rows, left=(0, 1, 8)))
    seconds, findings = report["seconds"], report["findings"]
    median = f"; the median of {seconds['repeats']}: {duration(seconds['median'])}" if seconds["repeats"] else ""
    print(f"\n{'checked launch' if checked else 'first launch'}: {duration(seconds['first'])}{median}")
    if checked:
        found = paint(plural(len(findings), "finding"), "red") if findings else paint("nothing found", "green")
        print(f"checks: {found}")


def _plain_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments without their tensors; a struct keeps its other members."""
    import torch

    plain: dict[str, Any] = {}
    for name, value in arguments.items():
        kept = _plain_arguments(value) if isinstance(value, dict) else value
        tensors = isinstance(value, list) and any(isinstance(item, torch.Tensor) for item in value)
        if not isinstance(value, torch.Tensor) and not tensors and (kept or kept == value):
            plain[name] = kept
    return plain


def _strict(value: Any) -> Any:
    """A value for JSON, which has no complex numbers, NaN or infinities: those become text."""
    if isinstance(value, dict):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return list(map(_strict, value))
    finite = not isinstance(value, (float, complex)) or (isinstance(value, float) and math.isfinite(value))
    return value if finite else str(value)
