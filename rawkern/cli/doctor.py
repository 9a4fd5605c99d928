"""``rawkern doctor``: checks the installation and says how to fix it."""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import signal
import threading
from collections.abc import Iterator
from typing import Any

import rawkern
from rawkern.cli import examine
from rawkern.cli.driver import driver
from rawkern.cli.examine import Finding
from rawkern.cli.text import paint, plural, step

_COLORS = {examine.OK: "green", examine.NOTE: "yellow", examine.FAULT: "red"}


def declare(commands: Any) -> None:
    """Add the command's parser."""
    parser = commands.add_parser(
        "doctor",
        help="check the installation and show how to fix what is missing",
        description="Look at Python, libraries, compiler, headers, driver, GPUs and cache, and run a tiny kernel on "
        "each engine. The exit status is 1 if something is broken; missing optional parts are notes.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(main=main)


def main(options: argparse.Namespace) -> int:
    """Run the command."""
    findings = _findings()
    faults = [finding for finding in findings if finding.state == examine.FAULT]
    if options.json:
        shown = [
            {"part": f.part, "state": f.state, "text": f.text, "fix": f.fix, **f.details} for f in findings
        ]  # fmt: skip
        print(json.dumps({"rawkern": rawkern.__version__, "ok": not faults, "findings": shown}, indent=2))
        return 1 if faults else 0
    _print(findings)
    notes = [finding for finding in findings if finding.state == examine.NOTE and finding.fix]
    if faults:
        print(f"\n{plural(len(faults), 'fault')}. To fix:")
    elif notes:
        print("\nall required parts work; optional:")
    else:
        print("\neverything works")
    for fix in dict.fromkeys(finding.fix for finding in faults or notes):
        parts = dict.fromkeys(finding.part for finding in faults or notes if finding.fix == fix)
        print(f"  {', '.join(parts)}: {fix}")
    return 1 if faults else 0


def _print(findings: list[Finding]) -> None:
    print(f"rawkern {rawkern.__version__} on {platform.system()} {platform.machine()}\n")
    width = max(len(finding.part) for finding in findings)
    before = None
    for finding in findings:
        part = finding.part if finding.part != before else ""
        before = finding.part
        print(f"{paint(f'{finding.state:<5}', _COLORS[finding.state])}  {part:<{width}}  {finding.text}")


def _findings() -> list[Finding]:
    with step("asking the driver"):
        known = driver()
    with step("importing libraries"), _ending_at_ctrl_c():
        findings = examine.libraries(known)
    cache = examine.cache()
    with examine.usable_cache(cache):
        with step("looking for the compiler"):
            findings += examine.toolchain(known)
        findings += [*examine.driver_and_gpus(known), *cache, *examine.variables(), *examine.cpu()]
        for device in ("cpu", *(f"cuda:{index}" for index in range(len(known.gpus)))):
            with step(f"running a kernel on {device}"):
                findings.append(examine.engine(device))
    return findings


@contextlib.contextmanager
def _ending_at_ctrl_c() -> Iterator[None]:
    """End the process at Ctrl-C: a library that is being imported mistakes the exception for a missing dependency."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
