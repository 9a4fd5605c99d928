"""``rawkern grad``: the derived backward of a kernel, as CUDA C."""

from __future__ import annotations

import argparse
import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import rawkern
from rawkern.cli.build import compile_options, read_source, source_options
from rawkern.cli.text import CommandError, plural, user_errors, whole


def declare(commands: Any) -> None:
    """Add the command's parser."""
    parser = commands.add_parser(
        "grad",
        help="derive a kernel's backward and print it as CUDA C",
        description="Derive the backward of a kernel from its source, for one block size, and print it as CUDA C. "
        "The exit status is 1 if the kernel is not supported; the message has the line, the reason and what to do.",
    )
    source_options(parser)
    parser.add_argument("kernel", metavar="KERNEL", help="the kernel; also an instance of a template, 'axpy<float, 4>'")
    parser.add_argument("--block", default="256", metavar="X[,Y[,Z]]", help="block dimensions (default: 256)")
    parser.add_argument("--grid", metavar="X[,Y[,Z]]",
                        help="a typical grid; only which axes have one block matters "
                             "(default: those that the kernel does not mention)")  # fmt: skip
    parser.add_argument("--shared-mem", type=whole(0), default=0, metavar="BYTES",
                        help="dynamic shared memory of the launches")  # fmt: skip
    parser.add_argument("--wrt", metavar="NAME[,NAME]",
                        help="parameters to differentiate (default: all pointers that are only read)")  # fmt: skip
    parser.add_argument("--max-iterations", type=whole(1), metavar="N",
                        help="maximum iterations of a loop that carries a value other than a plain sum")  # fmt: skip
    parser.add_argument("--passes", action="store_true",
                        help="print the kernel's intermediate representation after each pass first")  # fmt: skip
    parser.add_argument("-o", "--output", metavar="FILE", help="write the source to a file")
    parser.add_argument("--json", action="store_true", help="print JSON: the source and its properties")
    parser.set_defaults(main=main)


def main(options: argparse.Namespace) -> int:
    """Run the command."""
    read_source(options)  # the file and options, before torch is imported
    from rawkern.gradients import ir  # slow to import
    from rawkern.gradients.passes import pipeline

    kernel = rawkern.RawKernel(
        path=options.file, name=options.kernel, options=compile_options(options), include_dirs=options.include_dirs
    )
    wrt = None if options.wrt is None else [name.strip() for name in options.wrt.split(",")]
    grid = None if options.grid is None else _shape(options.grid)
    block = _shape(options.block)
    shown: dict[str, str] = {}

    def show(name: str, kernel: ir.Kernel) -> None:
        if name == "read":  # the second pass of that name
            shown.clear()
        shown.setdefault(name, ir.printed(kernel))

    with user_errors(ValueError, TypeError), pipeline.watched(show) if options.passes else nullcontext():
        kernel.signature  # noqa: B018  # reports a missing kernel before anything is derived
        found = kernel.derive(
            block=block, grid=grid, shared_mem=options.shared_mem, wrt=wrt, max_iterations=options.max_iterations
        )
    if options.output is not None:
        Path(options.output).write_text(found.source)
    if options.json:
        known = {"file": options.file, "kernel": kernel.name, "backward": found.kernel.name, "block": found.block}
        known |= {name: getattr(found, name) for name in ("wrt", "outputs", "saved", "atomics", "source")}
        print(json.dumps(known | ({"passes": shown} if options.passes else {}), indent=2))
        return 0
    for name, text in shown.items():
        print(f"--- {name}\n{text}")
    if options.output is None:
        print(found.source, end="")
    else:
        print(f"{os.fspath(options.output)}: {found.kernel.name}, {plural(found.atomics, 'atomic addition')}")
    return 0


def _shape(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.replace("x", ",").split(","))
    except ValueError:
        raise CommandError(f"invalid block dimensions {text!r}; write them as 16,16") from None
