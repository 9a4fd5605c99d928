"""``rawkern judge``: test candidates for a task, each in its own process, and report what is wrong with them."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rawkern.cli.text import CommandError, amount, duration, missing_file, paint, step, table, user_errors, whole

if TYPE_CHECKING:
    from rawkern.testing.judging.verdict import Verdict

#: Names in a task's file that are arguments of `rawkern.testing.judge`.
_SETTINGS = (
    "entry", "outputs", "mutates", "grid", "block", "forall", "shared_mem", "init_inputs", "seeds", "sizes", "special",
    "tolerance", "options", "include_dirs", "cooperative", "skip",
)  # fmt: skip
_TASK = """\
TASK.py is your Python file, which runs in this process. It defines the arguments of rawkern.testing.judge by name:
  reference      a function or torch module that computes the same
  inputs         the arguments, or a function that returns them
  outputs        for CUDA C: the positions of the arguments that the kernel writes
and optionally entry, mutates, grid, block, forall, shared_mem, init_inputs, seeds, sizes, special, tolerance,
options, include_dirs, cooperative, skip.
"""


def declare(commands: Any) -> None:
    """Add the command's parser."""
    parser = commands.add_parser(
        "judge",
        help="test untrusted kernels (such as generated ones), each in its own process",
        description="Test candidates for a task, each in its own process with time and memory limits, and report "
        "what is wrong with them. The exit status is 1 if a candidate fails.",
        epilog=_TASK,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("task", metavar="TASK.py", help="reference and inputs; see below")
    parser.add_argument("candidates", nargs="+", metavar="CANDIDATE", help=".cu files, or Python modules: .py files")
    parser.add_argument("--device", metavar="NAME", help="cpu, cuda or cuda:1 (default: cuda where there is one)")
    parser.add_argument(
        "--seconds", type=_positive, default=60.0, metavar="S", help="time limit of each process (default: 60)"
    )
    parser.add_argument(
        "--memory",
        type=whole(1),
        default=8 << 30,
        metavar="BYTES",
        help="memory limit of each process (default: 8 GiB)",
    )
    parser.add_argument("--seed", type=whole(0, 2**62), default=0, help="of the random inputs (default: 0)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(main=main)


def main(options: argparse.Namespace) -> int:
    """Run the command."""
    for name in (options.task, *options.candidates):
        if not Path(name).is_file():
            raise missing_file(name)
    with step("importing torch"):
        from rawkern.testing.judging.judge import judge
        from rawkern.testing.judging.worker import Worker

    limits = {"device": options.device, "seconds": options.seconds, "memory": options.memory, "seed": options.seed}
    found: dict[str, Verdict] = {}
    # What the task prints must not be mixed with the JSON.
    with contextlib.redirect_stdout(sys.stderr if options.json else sys.stdout):
        task = _task(options.task)
        with Worker() as worker:
            for name in options.candidates:
                with step(f"judging {name}"), user_errors(TypeError, ValueError):
                    found[name] = judge(Path(name), **task, **limits, worker=worker)
    if options.json:
        verdicts = [{"candidate": name, **verdict.as_dict()} for name, verdict in found.items()]
        print(json.dumps({"verdicts": verdicts}, indent=2))
    else:
        _print(found)
    return 0 if all(verdict.ok for verdict in found.values()) else 1


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return number


def _task(path: str) -> dict[str, Any]:
    """The arguments of `judge` that a file defines."""
    spec = importlib.util.spec_from_file_location("judged_task", path)
    if spec is None or spec.loader is None:
        raise CommandError(f"{path} is not a Python file")
    module = sys.modules["judged_task"] = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(Path(path).resolve().parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise CommandError(f"{path} cannot be run: {type(error).__name__}: {error}") from error
    names = vars(module)
    for needed in ("reference", "inputs"):
        if needed not in names:
            raise CommandError(f"{path} does not define {needed!r}; see rawkern judge --help")
    return {name: names[name] for name in ("reference", "inputs", *_SETTINGS) if name in names}


def _print(found: dict[str, Verdict]) -> None:
    rows = []
    for name, verdict in found.items():
        state = paint("right", "green") if verdict.ok else "fails " + ", ".join(verdict.failed)
        gpu = duration(verdict.gpu_seconds) if verdict.gpu_seconds is not None else "-"
        rows.append((name, state, gpu, duration(verdict.seconds), amount(verdict.memory)))
    print(table(("candidate", "", "GPU", "judged in", "memory"), rows, left=(0, 1)))
    for name, verdict in found.items():
        if verdict.ok:
            continue
        print(f"\n{name}{': ' + verdict.signature if verdict.signature else ''}")
        for check in verdict.failed:
            lines = verdict.checks[check].text.splitlines()
            print(f"  {check}: " + "\n    ".join(lines))
        if verdict.left:
            print(f"  processes it left running, now ended: {verdict.left}")
