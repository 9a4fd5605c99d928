"""Random host functions in C++, compared with what g++ makes of them.

``python -m tests.extensions.random_functions --count 1000`` runs more of them than the suite does. A function returns
the same value, or raises where C++ leaves open what happens. Where a number is narrowed, rawkern may raise instead of
wrapping.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.extensions.kit import load
from tests.extensions.programs import TYPES, Program, Writer

#: What g++'s checks call where C++ leaves open what happens.
_CHECKS = ("add", "sub", "mul", "negate", "divrem")
_PRELUDE = """
#include <algorithm>
#include <array>
#include <cmath>
#include <csetjmp>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <vector>
static jmp_buf undefined_;
extern "C" void end_() { longjmp(undefined_, 1); }
""" + "".join(
    f'extern "C" void __ubsan_handle_{one}() {{ end_(); }}\n'
    for one in (*(f"{each}_overflow" for each in _CHECKS), "shift_out_of_bounds", "float_cast_overflow")
)
FLAGS = (
    "-std=c++20", "-O0", "-w", "-fPIC", "-ffp-contract=off",
    "-fsanitize=signed-integer-overflow,shift,integer-divide-by-zero,float-cast-overflow",
)  # fmt: skip


class Reference:
    """Programs as g++ makes them."""

    def __init__(self, folder: Path, programs: list[Program]) -> None:
        wrapped = []
        for one in programs:
            parameters = ", ".join(f"{type_} a{k}" for k, type_ in enumerate(one.parameters))
            arguments = ", ".join(f"a{k}" for k in range(len(one.parameters)))
            wrapped.append(
                f'{one.text}extern "C" int run_{one.name}({parameters}{", " if parameters else ""}{one.returns}* out) '
                f"{{ if (setjmp(undefined_)) return 1; *out = {one.name}({arguments}); return 0; }}\n"
            )
        (folder / "reference.cpp").write_text(_PRELUDE + "".join(wrapped))
        subprocess.run(["g++", *FLAGS, "-c", "-o", "reference.o", "reference.cpp"], cwd=folder, check=True)
        subprocess.run(["g++", "-shared", "-o", "reference.so", "reference.o"], cwd=folder, check=True)
        self.library = ctypes.CDLL(str(folder / "reference.so"))

    def run(self, program: Program, arguments: list[Any]) -> Any:
        """The value; None where C++ leaves open what happens."""
        out = TYPES[program.returns]()
        function = self.library[f"run_{program.name}"]
        given = [TYPES[type_](value) for type_, value in zip(program.parameters, arguments, strict=True)]
        return None if function(*given, ctypes.byref(out)) else out.value


#: What may be raised where C++ leaves open what happens.
ERRORS = (OverflowError, ZeroDivisionError, ValueError)


@dataclass
class Outcome:
    """How the calls of programs ended."""

    same: int = 0
    undefined: int = 0  # in C++, and an error here
    narrowed: int = 0  # an error where C++ narrows
    untranslated: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


def compare(folder: Path, numbers: range) -> Outcome:
    """Run the programs of these numbers in both ways."""
    programs = [Writer(k).program() for k in numbers]
    reference = Reference(folder, programs)
    extension = load(folder, "#include <cmath>\n" + "".join(one.text for one in programs))
    found = Outcome(untranslated=extension.untranslated)
    for one in programs:
        if one.name in found.untranslated:
            continue
        for arguments in one.calls:
            right = reference.run(one, arguments)
            said = f"{one.name}({', '.join(map(repr, arguments))})"
            try:
                value = getattr(extension, one.name)(*arguments)
            except ERRORS as error:
                narrowed = isinstance(error, OverflowError) and "does not fit" in str(error)
                if right is None:
                    found.undefined += 1
                elif narrowed:
                    found.narrowed += 1
                else:
                    found.wrong.append(f"{said} raises {error!r}, not {right!r}\n{one.text}")
                continue
            except Exception as error:
                found.wrong.append(f"{said} raises {error!r}\n{one.text}")
                continue
            if right is None:
                found.wrong.append(f"{said} is {value!r}, where C++ leaves open what happens\n{one.text}")
            elif _same(value, right):
                found.same += 1
            else:
                found.wrong.append(f"{said} is {value!r}, not {right!r}\n{one.text}")
    return found


def _same(a: Any, b: Any) -> bool:
    if isinstance(b, float):
        alike = a == b and math.copysign(1, a) == math.copysign(1, b)
        return isinstance(a, float) and (alike or (math.isnan(a) and math.isnan(b)))
    return a == b and type(a) is type(b)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--show", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = compare(Path(folder), range(options.first, options.first + options.count))
    first = {one.partition("(")[0]: one for one in reversed(found.wrong)}
    for one in list(first.values())[: options.show]:
        print(one)
    for reason in found.untranslated.values():
        print(reason)
    print(
        f"{found.same} the same, {found.undefined} undefined, {found.narrowed} narrowed, {len(found.wrong)} wrong; "
        f"{len(found.untranslated)} of {options.count} programs not translated"
    )


if __name__ == "__main__":
    main()
