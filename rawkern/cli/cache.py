"""``rawkern cache``: shows and removes compiled code on disk."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from typing import Any

from rawkern.base import cache
from rawkern.cli.text import CommandError, amount, plural, table

# The meaning of the part of a key before its first hyphen.
_KINDS = {
    "program": "PTX and cubins",
    "code": "machine code for this CPU",
    "checker": "machine code of the checker",
    "names": "names of parameters",
    "struct": "layouts of structs",
    "globals": "layouts of variables",
    "resources": "resources of kernels",
    "toolchain": "where the compiler is",
    "tuning": "choices of autotune",
    "source": "sources given as strings",
}
_DAY = 86400
_AGES = (("a day", _DAY), ("a week", 7 * _DAY), ("30 days", 30 * _DAY), ("longer ago", float("inf")))
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": _DAY, "w": 7 * _DAY}


def declare(commands: Any) -> None:
    """Add the command's parser."""
    parser = commands.add_parser(
        "cache",
        help="show or clear the compiled code on disk",
        description="Show what the disk cache holds, or clear it. Everything in it is rebuilt when it is needed. "
        "RAWKERN_CACHE_DIR sets another directory.",
    )
    parser.add_argument("action", nargs="?", choices=("info", "clear"), default="info", help="default: info")
    parser.add_argument(
        "--older-than",
        metavar="AGE",
        type=_age,
        help="clear: only entries older than 12h, 30d, 2w",
    )
    parser.add_argument("--yes", action="store_true", help="clear: do not ask (it never asks without a terminal)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(main=main)


def main(options: argparse.Namespace) -> int:
    """Run the command."""
    if options.action != "clear" and (options.yes or options.older_than is not None):
        raise CommandError("--older-than and --yes go with `rawkern cache clear`; nothing is removed")
    return _clear(options) if options.action == "clear" else _info(options)


def _age(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text)
    if match is None:
        raise argparse.ArgumentTypeError(
            f"invalid age {text!r}; use a number with a unit (s, m, h, d or w), such as 30d"
        )
    return float(match[1]) * _UNITS[match[2]]


def _info(options: argparse.Namespace) -> int:
    found = cache.entries()
    folder = cache.directory()
    writable = folder.is_dir() and os.access(folder, os.W_OK)
    kinds = _grouped((entry.key.partition("-")[0], entry) for entry in found)
    now = time.time()
    ages = _grouped((next(i for i, (_, limit) in enumerate(_AGES) if now - e.written < limit), e) for e in found)
    if options.json:
        print(json.dumps({
            "directory": str(folder), "writable": writable, "entries": len(found),
            "bytes": sum(entry.nbytes for entry in found),
            "kinds": {kind: {"entries": count, "bytes": nbytes} for kind, (count, nbytes) in kinds.items()},
            "written_within": {_AGES[i][0]: {"entries": n, "bytes": nbytes} for i, (n, nbytes) in ages.items()},
        }, indent=2))  # fmt: skip
        return 0
    total = amount(sum(entry.nbytes for entry in found))
    print(f"{folder}{'' if writable else ' (not writable: nothing is kept)'}")
    print(f"{plural(len(found), 'entry')}, {total}")
    if found:
        rows = [(_KINDS.get(kind, kind), n, amount(nbytes)) for kind, (n, nbytes) in kinds.items()]
        print("\n" + table(("kind", "entries", "size"), rows))
        rows = [(_AGES[i][0], n, amount(nbytes)) for i, (n, nbytes) in sorted(ages.items())]
        print("\n" + table(("written within", "entries", "size"), rows))
    return 0


def _grouped(pairs: Any) -> dict[Any, tuple[int, int]]:
    """Count and bytes of the entries under each group, the largest group first."""
    groups: dict[Any, tuple[int, int]] = {}
    for group, entry in pairs:
        count, nbytes = groups.get(group, (0, 0))
        groups[group] = count + 1, nbytes + entry.nbytes
    return dict(sorted(groups.items(), key=lambda item: -item[1][1]))


def _clear(options: argparse.Namespace) -> int:
    now, age = time.time(), options.older_than or 0.0
    old = [entry for entry in cache.entries() if now - entry.written >= age]
    if old and not options.yes and sys.stdin.isatty() and sys.stdout.isatty():
        size = amount(sum(entry.nbytes for entry in old))
        answer = input(f"remove {plural(len(old), 'entry')}, {size}, from {cache.directory()}? [y/N] ")
        if answer.strip().lower() not in ("y", "yes"):
            print("nothing removed")
            return 1
    removed = cache.clear(age)
    if options.json:
        print(json.dumps(
            {"directory": str(removed.directory), "removed": removed.entries, "bytes": removed.nbytes}
        ))  # fmt: skip
    else:
        print(f"removed {plural(removed.entries, 'entry')}, {amount(removed.nbytes)}, from {removed.directory}")
    return 0
