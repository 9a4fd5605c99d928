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
from rawkern.cli.text import CommandError, user_errors, whole


def declare(commands: Any) -> None:
    """Add the command's parser."""
    parser = commands.add_parser(
        "grad",
        help="derive a kernel's backward and print it as CUDA C",
        description="Derive the backward of a kernel from its text, for one shape of blocks, and print it as CUDA C. "
        "The exit status is 1 for a kernel that has no derived backward; the message has line, reason and way out.",
    )
    source_options(parser)
    parser.add_argument("kernel", metavar="KERNEL", help="the kernel; also an instance of a template, 'axpy<float, 4>'")
    parser.add_argument("--block", default="256", metavar="X[,Y[,Z]]", help="the blocks' shape (default: 256)")
    parser.add_argument("--grid", metavar="X[,Y[,Z]]",
                        help="a grid like those of the launches: which axes have one block matters "
                             "(default: those that the kernel does not mention)")  # fmt: skip
    parser.add_argument("--shared-mem", type=whole(0), default=0, metavar="BYTES",
                        help="dynamic shared memory of the launches")  # fmt: skip
    parser.add_argument("--wrt", metavar="NAME[,NAME]",
                        help="parameters to differentiate by (default: all pointers that are only read)")  # fmt: skip
    parser.add_argument("--max-iterations", type=whole(1), metavar="N",
                        help="the most iterations of a loop that carries on what is no sum")  # fmt: skip
    parser.add_argument("--passes", action="store_true",
                        help="print the kernel's intermediate representation after each pass first")  # fmt: skip
    parser.add_argument("-o", "--output", metavar="FILE", help="write the text to a file")
    parser.add_argument("--json", action="store_true", help="print JSON: the text, with what is known of it")
    parser.set_defaults(main=main)


def main(options: argparse.Namespace) -> int:
    """Run the command."""
    read_source(options)  # the file and options, before torch is imported
    from rawkern.gradients import ir  # takes long to import
    from rawkern.gradients.passes import pipeline

    kernel = rawkern.RawKernel(
        path=options.file, name=options.kernel, options=compile_options(options), include_dirs=options.include_dirs
    )
    wrt = None if options.wrt is None else [name.strip() for name in options.wrt.split(",")]
    grid = None if options.grid is None else _shape(options.grid)
    block = _shape(options.block)
    shown: dict[str, str] = {}

    def show(name: str, kernel: ir.Kernel) -> None:
        if name == "read":  # once more, in another way
            shown.clear()
        shown.setdefault(name, ir.printed(kernel))

    with user_errors(ValueError, TypeError), pipeline.watched(show) if options.passes else nullcontext():
        kernel.signature  # noqa: B018  # a kernel that is not there is told before anything is derived
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
        print(f"{os.fspath(options.output)}: {found.kernel.name}, {found.atomics} additions that may meet")
    return 0


def _shape(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.replace("x", ",").split(","))
    except ValueError:
        raise CommandError(f"{text!r} is no shape; write it as 16,16") from None
