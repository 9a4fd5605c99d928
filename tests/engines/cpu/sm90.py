"""What an H200 gave for kernels of compute capability 9.0, and how to run the same on the CPU engine."""

from __future__ import annotations

import collections
import functools
import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

import rawkern
from rawkern.errors import RawkernError

CASES = Path(__file__).parents[2] / "data" / "h200_sm90.npz"
#: Types of tensor maps by the driver's numbers: dtypes, and what `rawkern.tensor_map` calls those that have none.
_MAPPED: tuple[tuple[torch.dtype, str | None], ...] = (
    (torch.uint8, None), (torch.uint16, None), (torch.uint32, None), (torch.int32, None), (torch.uint64, None),
    (torch.int64, None), (torch.float16, None), (torch.float32, None), (torch.float64, None), (torch.bfloat16, None),
    (torch.float32, "float32_ftz"), (torch.float32, "tf32"), (torch.float32, "tf32_ftz"),
)  # fmt: skip
#: What the sources' kernels call types of memory.
_TYPES = {
    "u8": torch.uint8, "u16": torch.uint16, "u32": torch.uint32, "u64": torch.uint64, "int": torch.int32,
    "float": torch.float32, "double": torch.float64, "uint4": torch.uint8,
}  # fmt: skip


@functools.cache
def load(path: Path = CASES) -> dict[str, dict[str, Any]]:
    """The recorded cases by name.

    A case has its source, its launches, and arguments: numbers, maps and arrays. An array's final content is
    "out", or its digest in "digest"; "opaque" ones are the hardware's own bits.
    """
    with np.load(path) as file:
        index = json.loads(bytes(file["index"]).decode())
        arrays = {key: file[key] for key in file.files if key != "index"}
    for case in index["cases"]:
        case["source"] = index["sources"][case["source"]]
        for argument in case["args"]:
            if argument["kind"] == "array":
                known = "data" in argument
                argument["data"] = arrays[argument["data"]] if known else np.zeros(argument["shape"], argument["dtype"])
                if "out" in argument:
                    argument["out"] = arrays[argument["out"]]
    cases: dict[str, dict[str, Any]] = {}
    for case in index["cases"]:
        name, times = case["name"], 1
        while name in cases:  # the same form with other operands
            times += 1
            name = f"{case['name']} {times}"
        cases[name] = case
    return cases


def digest(array: np.ndarray) -> str:
    """A few bytes that tell arrays apart."""
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]


@functools.lru_cache(maxsize=8)
def _module(source: str) -> rawkern.RawModule:
    return rawkern.RawModule(code=source)


def run(case: dict[str, Any]) -> list[str]:
    """Run a case's launches; returns what differs from the recorded results."""
    memory = {k: torch.from_numpy(a["data"].copy()) for k, a in enumerate(case["args"]) if a["kind"] == "array"}
    module = _module(case["source"])
    for launch in case["launches"]:
        numbers = launch["args"] if launch["args"] is not None else range(len(case["args"]))
        kinds = _parameters(case["source"], launch["kernel"])
        values = [_value(case["args"][k], memory, k, kind) for k, kind in zip(numbers, kinds, strict=True)]
        kernel = module.get_function(launch["kernel"]).configured(
            cluster=launch["cluster"] and tuple(launch["cluster"]), programmatic=launch["pdl"] or None,
            cooperative=launch["cooperative"] or None,
        )  # fmt: skip
        memory_given = -(-launch["smem"] // 128) * 128  # as a GPU gives it: some copies need all of it
        kernel[tuple(launch["grid"]), tuple(launch["block"]), memory_given](*values)
    return [f"argument {k}" for k, argument in enumerate(case["args"]) if not _same(argument, memory.get(k))]


def _parameters(source: str, kernel: str) -> list[str]:
    """What each parameter of a kernel points to, or is."""
    found = re.search(rf"\b{kernel}\(([^)]*)\)", source)
    assert found is not None
    return [part.replace("const", "").split()[0].rstrip("*") for part in found[1].split(",")]


def _value(argument: dict[str, Any], memory: dict[int, torch.Tensor], k: int, kind: str) -> Any:
    if argument["kind"] == "array":
        return memory[k].view(-1).view(_TYPES[kind])
    if argument["kind"] == "map":
        return _map(argument["spec"], memory[argument["buffer"]])
    return argument["value"]


def _map(spec: dict[str, Any], memory: torch.Tensor) -> Any:
    """A tensor map of a tensor in some memory; the record has the innermost dimension first."""
    dtype, name = _MAPPED[spec["dtype"]]
    strides = [1, *(stride // dtype.itemsize for stride in spec["strides"])]
    tensor = memory.view(-1).view(dtype).as_strided(spec["dims"][::-1], strides[::-1])
    return rawkern.tensor_map(
        tensor, spec["box"][::-1], element_strides=spec["estr"][::-1], swizzle=(0, 32, 64, 128)[spec["swizzle"]],
        fill=("zero", "nan")[spec["oob"]], dtype=name,
    )  # fmt: skip


def _same(argument: dict[str, Any], tensor: torch.Tensor | None) -> bool:
    if tensor is None or argument.get("opaque") or not ("out" in argument or "digest" in argument):
        return True
    found = tensor.numpy()
    if "digest" in argument:
        return digest(found) == argument["digest"]
    return found.tobytes() == argument["out"].tobytes()


def main() -> None:
    """Compare all cases, or those whose names match the patterns in the command line."""
    patterns, counts = sys.argv[1:] or [""], collections.Counter()
    for name, case in load().items():
        if any(re.match(pattern, name) for pattern in patterns):
            try:
                wrong = run(case)
            except (RawkernError, ValueError, KeyError) as error:
                wrong = [str(error).splitlines()[0]]
            counts[name.partition("/")[0], bool(wrong)] += 1
            if wrong:
                print(name, *wrong)
    for (group, wrong), count in sorted(counts.items()):
        print(f"{group}: {count} {'differ' if wrong else 'the same'}")


if __name__ == "__main__":
    main()
