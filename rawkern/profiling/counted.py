"""Counted launches: counters of a launch, of its CUDA lines and its PTX instructions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rawkern.base.forking import cached_property
from rawkern.compile.names import demangle
from rawkern.profiling.bounds import SECTOR, bounds_of, occupancy_of
from rawkern.profiling.counters import counters
from rawkern.profiling.devices import Gpu, found_gpu
from rawkern.profiling.timing import Timed, copy_rate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rawkern.compile.source import Source
    from rawkern.engines.cpu.profiler.launch import Counts
    from rawkern.launch.unit import State

Dim3 = tuple[int, int, int]
NO_LINE = "no line"  # for instructions that the compiler hoisted or generated


@dataclass
class Counted:
    """One launch: what each instruction did, and how many sectors of each memory it touched."""

    state: State = field(repr=False)
    grid: Dim3
    block: Dim3
    shared_mem: int
    counts: Counts = field(repr=False)
    touched: dict[str, int]
    device: str
    sample: int | None  # how many blocks were counted, None for all
    #: Of the time on GPUs, by name; or why there is none.
    estimates: Mapping[str, Any] = field(default_factory=dict, repr=False)
    time: Timed | None = field(default=None, repr=False)

    @property
    def instructions(self) -> list[dict[str, Any]]:
        """What each PTX instruction did; rebuilt at each access, as many launches may be kept."""
        return self.counts.instructions()

    @property
    def kernel(self) -> str:
        return self.state.entry.name

    def name_of(self, access: dict[str, Any]) -> str:
        """The parameter or variable whose memory is accessed, "" if it is not known."""
        kind, name = access["root"] or ("", "")
        if kind != "param":
            return demangle(str(name).partition("+")[0]).rpartition("::")[2]
        signature = self.state.signature
        at: dict[Any, str] = {
            offset: param.name for offset, param in zip(signature.offsets, signature.params, strict=True)
        }
        return at.get(name, "")

    @cached_property
    def total(self) -> dict[str, int | float]:
        """Counters of the launch."""
        return counters(self.instructions)

    @cached_property
    def lines(self) -> dict[int | str, dict[str, int | float]]:
        """The nonzero counters of each line.

        A line of the source by its number, one of a header as ``"header.cuh:12"``.
        """
        groups: dict[int | str, list[dict[str, Any]]] = {}
        for one in self.instructions:
            if one["warps"]:
                groups.setdefault(self.line_of(one), []).append(one)
        rows = sorted(groups.items(), key=lambda row: (isinstance(row[0], str), row[0]))
        return {line: {k: v for k, v in counters(group).items() if v} for line, group in rows}

    def line_of(self, instruction: dict[str, Any]) -> int | str:
        """The line that the user wrote."""
        return line_of(self.state.build.source, instruction)

    @cached_property
    def texts(self) -> dict[int | str, str]:
        """The text of each of `lines` if its file exists, and of the source's lines between them."""
        source, files = self.state.build.source, {}
        found: dict[int | str, str] = {}
        own = [line for line in self.lines if isinstance(line, int)]
        between = range(min(own), max(own) + 1) if own else ()
        for line in (*between, *(line for line in self.lines if not isinstance(line, int))):
            path, _, number = str(line).rpartition(":")
            if path not in files:
                files[path] = (_read(path) if path else source.text).splitlines()
            if number.isdigit() and 0 < int(number) <= len(files[path]):
                found[line] = files[path][int(number) - 1]
        return found

    def gpu(self, named: Gpu | None) -> Gpu | None:
        """The GPU to compare with: the one that was named, or the one with the tensors."""
        if named is None and self.device != "cpu":
            import torch

            named = found_gpu(torch.cuda.get_device_name(self.device))
        return named

    def as_dict(self, named: Gpu | None, began: Timed | None, instructions: bool = False) -> dict[str, Any]:
        """The launch as plain data; `began`: the first that was timed on its GPU."""
        found: dict[str, Any] = {
            "kernel": self.kernel, "grid": list(self.grid), "block": list(self.block), "shared_mem": self.shared_mem,
            "device": self.device, "counters": self.total, "distinct_sectors": self.touched,
            "lines": self.lines, "source": self.texts, "file": self.state.build.source.title,
        }  # fmt: skip
        if self.sample is not None:
            found["sampled_blocks"] = self.sample
        if self.time is not None and began is not None:
            found["milliseconds"] = self.time.milliseconds
            found["timing"] = self._timing(self.time, began)
        gpu = self.gpu(named)
        if gpu is not None:
            found["gpu"] = gpu.name
            if self.sample is None:  # a sample does not show how much of their memory blocks share
                found["bounds"] = bounds_of(gpu, self.total, sum(self.touched.values()))
            found["occupancy"] = occupancy_of(self.state, gpu.arch, self.block, self.shared_mem)
            estimate = self.estimates.get(gpu.name)
            if isinstance(estimate, str):
                found["no_estimate"] = estimate
            elif estimate is not None:
                found["estimate"] = estimate.as_dict()
        if instructions:
            found["instructions"] = [self._instruction(one) for one in self.instructions]
        return found

    def _timing(self, time: Timed, began: Timed) -> dict[str, Any]:
        found = {"start": time.since(began), "stream": time.stream, "first": time.first, "late": time.late}
        rate = copy_rate(self.device)
        if rate is not None:
            found["copy_rate"] = rate
            if self.sample is None and time.milliseconds:
                moved = SECTOR * sum(self.touched.values())
                found["share_of_copy_rate"] = moved / (time.milliseconds * 1e-3) / rate
        return found

    def _instruction(self, one: dict[str, Any]) -> dict[str, Any]:
        own = {k: v for k, v in counters([one]).items() if v}
        return {"ptx": one["ptx"], "function": one["function"], "line": self.line_of(one), "counters": own}


def line_of(source: Source, instruction: dict[str, Any]) -> int | str:
    """The line that the user wrote: for inlined code, the innermost in the user's files."""
    own = {source.name, *(path for path, _ in source.headers)}
    lines = instruction["lines"]
    found = next(((file, line) for file, line in lines if file in own), lines[-1] if lines else None)
    if found is None:
        return NO_LINE
    return found[1] if found[0] == source.name else f"{found[0]}:{found[1]}"


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


class Launches:
    """All launches of one kernel.

    Attributes
    ----------
    name : str
        The kernel's.
    launches : int
        How many.
    counters : dict
        Sums under Nsight Compute's names.
    """

    def __init__(self, name: str, found: list[Counted]) -> None:
        self.name, self.launches, self.found = name, len(found), found
        self.counters = counters(one for launch in found for one in launch.instructions)

    def __repr__(self) -> str:
        return f"<{self.name}: {self.launches} launches, {self.sectors:,} sectors, {self.requests:,} requests>"

    def _sum(self, beginning: str, end: str = "") -> int:
        return int(sum(v for k, v in self.counters.items() if k.startswith(beginning) and k.endswith(end)))

    @property
    def requests(self) -> int:
        """Requests to global memory."""
        return self._sum("l1tex__t_requests_pipe_lsu_mem_global")

    @property
    def sectors(self) -> int:
        """Sectors of 32 bytes that requests to global memory touched."""
        return self._sum("l1tex__t_sectors_pipe_lsu_mem_global")

    @property
    def sectors_ideal(self) -> int:
        """The number of sectors if each request's bytes were contiguous."""
        return int(self.counters["memory_l2_theoretical_sectors_global_ideal"])

    @property
    def sectors_per_request(self) -> float:
        return self.sectors / self.requests if self.requests else 0.0

    @property
    def shared_wavefronts(self) -> int:
        return int(self.counters["memory_l1_wavefronts_shared"])

    @property
    def shared_excessive(self) -> int:
        """Additional wavefronts of shared memory caused by bank conflicts."""
        return self.shared_wavefronts - int(self.counters["memory_l1_wavefronts_shared_ideal"])

    @property
    def local_requests(self) -> int:
        return self._sum("l1tex__t_requests_pipe_lsu_mem_local")

    @property
    def divergent_branches(self) -> int:
        return int(self.counters["smsp__sass_branch_targets_threads_divergent.sum"])

    @property
    def lanes_per_warp(self) -> float:
        """Active lanes per instruction, at most 32."""
        return float(self.counters["smsp__thread_inst_executed_per_inst_executed.ratio"])
