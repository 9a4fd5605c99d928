"""What the CPU engine takes of PTX: the share of what public kernels use, and the page of all it supports.

``python -m benchmarks.coverage`` prints the share; ``--write`` rebuilds docs/ptx-support.md from the lowering tables.
The data counts, for each mnemonic, how many of 1,680 kernels of public repositories use it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from itertools import product
from pathlib import Path

from rawkern.engines.cpu.arith.rows import Form
from rawkern.engines.cpu.arith.table import TABLE
from rawkern.engines.cpu.emit.opcodes import FORMS, UNSUPPORTED, unsupported_reason
from rawkern.engines.cpu.ptx.decode import DTYPES, decode

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests" / "data" / "ptx_opcode_usage.json"
PAGE = ROOT / "docs" / "ptx-support.md"
COMMAND = "python -m benchmarks.coverage --write"
HEAD = """# PTX on the CPU engine

Generated from the engine's tables by `@COMMAND`; do not edit.

`{.a\\|.b}` is one of the names, `[.a\\|.b]` one of them or none; modifiers follow PTX's order, regardless of their
order here. Anything else raises `UnsupportedError` before anything runs, with the instruction and its line of CUDA.

Of the mnemonics in 1,680 kernels of public repositories @TAKEN are supported, @SHARE of their uses.

## Notes

- Matrix products (`mma`, `wmma`, `wgmma`): products are exact, and sums are those of tensor cores: terms are truncated
  relative to the largest and added at once. In code for compute capability 9.0 all terms of an instruction are, with an
  H200's bits; in other code 16 bytes of K at a time, with 24 bits after the point, as the model MMA-Sim (arXiv
  2511.10909) says of Ampere, or of Ada for fp8 (13 bits, also of the sum). tf32 operands are truncated to their upper
  19 bits. Sums in f64, and those of `mma.m8n8k4` of f16, run over k in ascending order from C, each step one fused
  multiply-add rounded to nearest even in f64 or f32. Integers are exact, modulo 2^32 or saturated once. A NaN is the
  hardware's.
- Each warp computes its rows of a `wgmma` when it executes it, but until `wait_group`, which waits for all four warps,
  an instruction that reads its sums gets NaNs, and a launch that has overwritten an operand in shared memory ends with
  an error. Checks find both at the line, and operands that have not arrived.
- Matrix instructions need all 32 lanes of a warp, as in PTX; otherwise the launch fails with the line.
- Fragments of `wmma` have the layout that `mma.sync` documents. Elements that the hardware holds twice are held twice.
- `cp.async` copies at once; waiting for it then costs nothing.
- `cp.async.bulk`, `cp.reduce.async.bulk`, `st.async` and `red.async` take effect as late as the program allows: where a
  thread waits for the barrier that counts its bytes, at `wait_group`, or at the end of the warp
  ([or earlier in another order](checking.md#another-order)). A program that does not wait sees the old values. A copy
  to several blocks of a cluster (`.multicast::cluster`) happens in each where a thread there waits.
- Tensor copies take a map of `rawkern.tensor_map`. They move units of 16 bytes, as an H200 does it: rows of a swizzled
  box are a swizzle's span apart, `tf32` types are rounded as `cvt.rna` does it, `ftz` types are not flushed, NaN fill
  is 0x7ff7 in all halves, and a unit that is partly outside the tensor is zero or NaN there when it is read, and is
  written as a whole.
- Cache hints, prefetches, scopes and proxies of fences, `setmaxnreg` and `griddepcontrol` are accepted and change no
  result.
"""


def used() -> dict[str, int]:
    """Kernels that use each mnemonic."""
    return json.loads(DATA.read_text())["exact"]


def missing() -> dict[str, str]:
    """Mnemonics of the data that are not taken, with the reason; the most used first."""
    return {op: why for op in used() if (why := unsupported_reason(decode(op)))}


def shares() -> tuple[float, float]:
    """Share of the data's mnemonics that are taken, and the same weighted by the kernels that use them."""
    counts, lacking = used(), missing()
    weight = sum(counts[op] for op in lacking) / sum(counts.values())
    return 1 - len(lacking) / len(counts), 1 - weight


def report() -> str:
    lacking, counts = missing(), used()
    plain, weighted = shares()
    lines = [f"{len(counts) - len(lacking)} of {len(counts)} mnemonics ({plain:.1%}), {weighted:.2%} by kernels"]
    lines += [f"{counts[op]:5}  {op}: {why}" for op, why in lacking.items()]
    return "\n".join(lines)


def page() -> str:
    """The text of docs/ptx-support.md."""
    count = len(used())
    names = {"@COMMAND": COMMAND, "@TAKEN": f"{count - len(missing())} of {count}", "@SHARE": f"{shares()[1]:.1%}"}
    head = HEAD
    for name, value in names.items():
        head = head.replace(name, value)
    text = [head]
    text += ["## Memory, warps, control", "", *_table(FORMS)]
    rows = {id(r): r for rows in TABLE.values() for r in rows}.values()
    text += ["", "## Registers", "", *_table(r for r in rows if r.base != "mov")]
    text += ["", "## Not supported", "", "| what | instructions that begin with |", "| --- | --- |"]
    reasons: dict[str, list[str]] = {}
    for start, why in UNSUPPORTED.items():
        reasons.setdefault(why, []).append(f"`{start}`")
    text += [f"| {why} | {' '.join(starts)} |" for why, starts in reasons.items()]
    return "\n".join(text) + "\n"


def _table(forms: Iterable[Form]) -> list[str]:
    together: dict[tuple[str, tuple], list[str]] = {}
    for f in forms:
        together.setdefault((f.base, f.mods), []).extend(f.types)
    lines = sorted(f"| `{base}{''.join(map(_slot, mods))}` | {_types(t)} |" for (base, mods), t in together.items())
    return ["| instruction | types |", "| --- | --- |", *lines]


def _slot(slot: tuple[int, tuple[str, ...]]) -> str:
    needed, names = slot
    text = "\\|".join(f".{n}" for n in names)
    if not needed:
        return f"[{text}]"
    return text if len(names) == 1 else f"{{{text}}}" * needed


def _types(types: list[str]) -> str:
    """Types in the order of the type table; combinations of all with all as such."""
    order = {name: k for k, name in enumerate(DTYPES)}
    parts = sorted({tuple(t.split(".")) for t in types}, key=lambda p: [order.get(x, -1) for x in p])
    if len({len(p) for p in parts}) == 1 < len(parts[0]) and len(parts) > 2:
        columns = [list(dict.fromkeys(p[k] for p in parts)) for k in range(len(parts[0]))]
        if set(product(*columns)) == set(parts):
            return " x ".join(f"({' '.join(f'`.{n}`' for n in c)})" for c in columns)
    return " ".join(f"`.{'.'.join(p)}`" for p in parts if p != ("",))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    if parser.parse_args().write:
        PAGE.write_text(page())
    else:
        print(report())


if __name__ == "__main__":
    main()
