"""The GEMM of examples/hopper_gemm.py: the CPU engine beside an interpreter of the same PTX.

    python -m benchmarks.interpreter [--size 512] [--rounds 5]

The interpreter decodes each instruction once, and runs it for a warp at a time as NumPy's operations on arrays of 32
lanes; diverged lanes run where the lowest of them is. It has what this kernel uses and raises ``NotImplementedError``
for the rest. Copies and products take effect when they are started. Products are added to the tensor cores' bits, as
the CPU engine does, or by NumPy's matrix product in float32.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

import rawkern
from benchmarks.harness import Report, Table, fresh, plain, python_environment, scaled, summary
from benchmarks.hopper_gemm import checked, example
from rawkern.engines.cpu.ptx.data import Imm, Instr, Label, Mem, Reg, Special, Sym, Vec
from rawkern.engines.cpu.ptx.parser import parse

Step = Callable[["Warp"], Any]
Sums = Callable[[np.ndarray, np.ndarray, np.ndarray | None], np.ndarray]
LANES = 32
WINDOW = 24  # bits of an address within a block's shared memory; above them the block's rank and 1, or 0 for one's own
END = sys.maxsize  # the place of lanes that have returned
PARAMETERS = 1 << 40  # where they lie
EVERY = np.True_
#: What a step may return: it is to run again when other warps have run; or the warp's place is set.
WAITING, JUMPED = object(), object()

BINARY: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul.lo": np.multiply, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "min": np.minimum, "max": np.maximum, "shl": np.left_shift, "shr": np.right_shift,
    "setp.eq": np.equal, "setp.ne": np.not_equal, "setp.lt": np.less, "setp.gt": np.greater,
}  # fmt: skip
NOTHING = re.compile(r"fence\.|setmaxnreg|wgmma\.(fence|commit|wait)|cp\.async\.bulk\.(commit|wait)|bar\.warp")


# Operands ----------------------------------------------------------------------------------------------------


def swizzled(address: np.ndarray) -> np.ndarray:
    """Where 16-byte units lie of which eight rows of 128 bytes are permuted."""
    return address ^ (address >> 3 & 0x70)


def bf16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def by_numpy(a: np.ndarray, b: np.ndarray, c: np.ndarray | None) -> np.ndarray:
    """``a b' + c`` of bfloat16 numbers as NumPy adds them in float32."""
    product = bf16(a) @ bf16(b).T
    return product if c is None else product + c


def as_hopper(a: np.ndarray, b: np.ndarray, c: np.ndarray | None) -> np.ndarray:
    """``a b' + c`` of finite bfloat16 numbers to the tensor cores' bits.

    All terms are cut to 25 bits below the largest one's exponent and added exactly; the sum is cut to float32.
    """
    c = np.zeros((len(a), len(b)), np.float32) if c is None else c
    factors, exponents = (bf16(a), bf16(b)), []
    for x in factors:
        exponents.append(np.where(x == 0, -(10**6), np.maximum(np.frexp(x)[1] - 1, -126)))
    least = np.where(c == 0, -(10**6), np.maximum(np.frexp(c)[1] - 1, -126))
    largest = np.maximum((exponents[0][:, None] + exponents[1]).max(axis=2), least)
    bit = np.maximum(largest - 25, -400)
    terms = factors[0].astype(np.float64)[:, None] * factors[1]
    scale = np.ldexp(1.0, -bit)
    total = np.trunc(terms * scale[..., None]).sum(axis=2) + np.trunc(c * scale)
    mantissa, exponent = np.frexp(total)
    return np.ldexp(np.trunc(np.ldexp(mantissa, 24)), exponent - 24 + bit).astype(np.float32)


# Machine -----------------------------------------------------------------------------------------------------


@dataclass
class Barrier:
    """An mbarrier."""

    count: int
    pending: int
    bytes: int = 0
    phase: int = 0

    def change(self, arrivals: int, expected: int) -> None:
        self.pending -= arrivals
        self.bytes += expected
        if not self.pending and not self.bytes:
            self.pending, self.phase = self.count, self.phase ^ 1


@dataclass
class TensorMap:
    """A matrix of 16-bit elements and the box that one copy moves."""

    matrix: np.ndarray
    box: tuple[int, int]

    def units(self, address: int) -> np.ndarray:
        """Where the box's units of 16 bytes lie in shared memory."""
        rows, columns = self.box
        return swizzled(address + np.arange(rows * columns // 8) * 16) >> 4

    def read(self, row: int, column: int) -> np.ndarray:
        tile = np.zeros(self.box, np.uint16)
        part = self.matrix[row : row + self.box[0], column : column + self.box[1]]
        tile[: part.shape[0], : part.shape[1]] = part
        return tile.view(np.uint64).reshape(-1, 2)

    def write(self, row: int, column: int, units: np.ndarray) -> None:
        part = self.matrix[row : row + self.box[0], column : column + self.box[1]]
        part[...] = units.view(np.uint16).reshape(self.box)[: part.shape[0], : part.shape[1]]


class Block:
    """Its shared memory and barriers."""

    def __init__(self, cluster: list[Block], shared: int) -> None:
        self.cluster = cluster
        self.shared = np.zeros((shared + 15 >> 4, 2), np.uint64)
        self.mbarriers: dict[int, Barrier] = {}
        self.arrived: dict[int, int] = {}
        self.passed: dict[int, int] = {}

    def at(self, address: int) -> tuple[Block, int]:
        """The block of an address, and the place in its memory."""
        rank = address >> WINDOW
        return (self.cluster[rank - 1] if rank else self), address & (1 << WINDOW) - 1


@dataclass
class Warp:
    """Its registers, a row of 32 lanes each, and where its lanes are."""

    block: Block
    number: int
    words: np.ndarray
    longs: np.ndarray
    predicates: np.ndarray
    pc: int = 0
    lanes: Any = EVERY  # that run at `pc`
    others: list[tuple[int, np.ndarray]] = field(default_factory=list)  # lanes further on, the next ones last
    waits_for: dict[object, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.files = {
            "u32": self.words, "s32": self.words.view(np.int32), "f32": self.words.view(np.float32),
            "u64": self.longs, "s64": self.longs.view(np.int64), "pred": self.predicates,
        }  # fmt: skip

    def running(self) -> list[int]:
        return list(range(LANES)) if self.lanes is EVERY else np.flatnonzero(self.lanes).tolist()

    def branch(self, target: int, taken: np.ndarray | None, negated: bool) -> object:
        """Go on at the lowest place of any lane; those that are at the same one join."""
        mask = np.ones(LANES, bool) if self.lanes is EVERY else self.lanes
        goes = mask if taken is None else mask & (taken ^ negated)
        places = dict(self.others)
        for place, part in ((target, goes), (self.pc + 1, mask & ~goes)):
            if part.any():
                places[place] = places[place] | part if place in places else part
        self.settle(places)
        return JUMPED

    def settle(self, places: dict[int, np.ndarray]) -> None:
        self.others = sorted(places.items(), key=lambda item: -item[0])
        self.pc, lanes = self.others.pop()
        self.lanes = EVERY if lanes.all() else lanes

    def join(self) -> None:
        self.settle({self.pc: self.lanes | self.others.pop()[1], **dict(self.others)})


# Program -----------------------------------------------------------------------------------------------------


class Program:
    """A kernel's instructions as functions of a warp."""

    def __init__(self, ptx: str, name: str, parameters: list[int | TensorMap], shared: int, sums: Sums) -> None:
        module = parse(ptx)
        function = module.functions[name]
        self.sums, self.warps = sums, 0  # warps of a block
        self.maps = {PARAMETERS + 128 * i: value for i, value in enumerate(parameters) if isinstance(value, TensorMap)}
        self.cluster = (function.cluster or (1, 1, 1))[0]
        self.symbols = {p.name: PARAMETERS + 128 * i for i, p in enumerate(function.params)}
        self.numbers = {p.name: value for p, value in zip(function.params, parameters, strict=True)}
        self.shared = 0
        for var in (*function.local_vars.values(), *(v for v in module.variables.values() if v.space == "shared")):
            self.shared = -(-self.shared // var.align) * var.align
            self.symbols[var.name] = self.shared
            self.shared += shared if var.extern else var.size
        self.rows: dict[str, dict[object, int]] = {"words": {}, "longs": {}, "predicates": {}}
        self.labels: dict[str, int] = {}
        instructions: list[Instr] = []
        for item in function.body:
            if isinstance(item, Label):
                self.labels[item.name] = len(instructions)
            else:
                instructions.append(item)
        self.steps: list[Step | None] = [self.decoded(i, instr) for i, instr in enumerate(instructions)]

    # -- operands ------------------------------------------------------------------------------------------
    def row(self, operand: Any, file: str) -> int:
        """The row of a register, or of a constant or special register, which have rows of their own."""
        if isinstance(operand, Mem):
            if operand.offset:
                raise NotImplementedError(f"an address with an offset: {operand}")
            operand = operand.base
        if isinstance(operand, Imm):
            operand = operand.bits(64 if file == "longs" else 32)
        elif isinstance(operand, Sym):
            operand = self.symbols[operand.name] + operand.offset
        elif isinstance(operand, (Reg, Special)):
            operand = operand.name
        else:
            raise NotImplementedError(f"operand {operand}")
        return self.rows[file].setdefault(operand, len(self.rows[file]))

    def warp(self, block: Block, rank: int, index: int, number: int) -> Warp:
        files = {}
        for file, kind in (("words", np.uint32), ("longs", np.uint64), ("predicates", bool)):
            files[file] = np.zeros((len(self.rows[file]), LANES), kind)
            for key, row in self.rows[file].items():
                if isinstance(key, int):
                    files[file][row] = key
        known = {"%tid.x": number * LANES + np.arange(LANES), "%ctaid.x": index, "%cluster_ctarank": rank}
        for key, row in self.rows["words"].items():
            if isinstance(key, str) and key in known:
                files["words"][row] = known[key]
        return Warp(block, number, **files)

    # -- instructions --------------------------------------------------------------------------------------
    def decoded(self, place: int, instr: Instr) -> Step | None:
        """What an instruction does; None for those that do nothing here."""
        text, args = instr.op.text, instr.args
        if text in ("bra", "bra.uni"):
            return self.branch(instr)
        if instr.guard is not None:
            raise NotImplementedError(f"a guard of {text}")
        if NOTHING.match(text):
            return None
        base, _, kind = text.rpartition(".")
        for prefix, build in (
            ("mbarrier.", self.mbarrier), ("bar.sync", self.barrier), ("barrier.cluster.", self.cluster_barrier),
            ("cp.async.bulk.tensor.2d.", self.copy), ("wgmma.mma_async.", self.product), ("stmatrix.", self.matrices),
        ):  # fmt: skip
            if text.startswith(prefix):
                return build(text, args)
        if base in BINARY:
            return self.binary(base, kind, args)
        return self.other(text, args)

    def branch(self, instr: Instr) -> Step:
        target = self.labels[instr.args[0].name]
        if instr.guard is None:
            return lambda w: w.branch(target, None, False)
        guard, negated = self.row(instr.guard, "predicates"), instr.negated
        return lambda w: w.branch(target, w.predicates[guard], negated)

    def binary(self, base: str, kind: str, args: list) -> Step:
        run = BINARY[base]
        view = kind if kind in ("s32", "s64", "pred") else {"b32": "u32", "b64": "u64"}.get(kind, kind)
        file = "predicates" if view == "pred" else "longs" if view.endswith("64") else "words"
        sets = base.startswith("setp")
        if base in ("shl", "shr") and not (isinstance(args[2], Imm) and 0 <= args[2].value < int(kind[1:])):
            raise NotImplementedError(f"{base} by other than a constant")
        dest = self.row(args[0], "predicates" if sets else file)
        first, second = self.row(args[1], file), self.row(args[2], file)
        into = "pred" if sets else view

        def step(w: Warp) -> None:
            rows = w.files[view]
            run(rows[first], rows[second], out=w.files[into][dest], where=w.lanes)

        return step

    def other(self, text: str, args: list) -> Step:
        """Moves and arithmetic without a function of NumPy."""
        if text == "ld.param.u32":
            value = self.numbers[args[1].base.name]
            assert isinstance(value, int)
            args, text = [args[0], Imm(value, "i")], "mov.u32"
        if text in ("mov.u32", "mov.u16"):
            return self.computed("words", args, lambda x: x)
        if text in ("mov.b64", "mov.u64", "cvta.param.u64"):
            return self.computed("longs", args, lambda x: x)
        if text == "not.b32":
            return self.computed("words", args, lambda x: ~x)
        if text == "mad.lo.s32":
            return self.computed("words", args, lambda x, y, z: x * y + z)
        if text == "div.s32":
            return self.computed("words", args, quotient)
        if text == "bfi.b32":
            if not (isinstance(args[3], Imm) and isinstance(args[4], Imm)):
                raise NotImplementedError("bfi with other than constants")
            at, mask = np.uint32(args[3].value), np.uint32(((1 << args[4].value) - 1 << args[3].value) & 0xFFFFFFFF)
            return self.computed("words", args[:3], lambda x, y: y & ~mask | x << at & mask)
        if text == "cvt.rn.bf16x2.f32":
            return self.computed("words", args, lambda x, y: rounded(x) << 16 | rounded(y))
        if text in ("cvt.u32.u64", "cvt.u64.u32"):
            names = ("words", "longs") if text.startswith("cvt.u32") else ("longs", "words")
            dest, source = (self.row(arg, file) for arg, file in zip(args, names, strict=True))

            def convert(w: Warp) -> None:
                np.copyto(getattr(w, names[0])[dest], getattr(w, names[1])[source], casting="unsafe", where=w.lanes)

            return convert
        if text.startswith("mapa.shared::cluster.u32"):
            local = np.uint32((1 << WINDOW) - 1)
            return self.computed("words", args, lambda x, rank: x & local | rank + 1 << WINDOW)
        if text == "ret":
            return lambda w: w.branch(END, None, False)
        raise NotImplementedError(text)

    def computed(self, file: str, args: list, run: Callable[..., np.ndarray]) -> Step:
        dest, *sources = (self.row(arg, file) for arg in args)

        def step(w: Warp) -> None:
            rows = getattr(w, file)
            np.copyto(rows[dest], run(*(rows[s] for s in sources)), where=w.lanes)

        return step

    def mbarrier(self, text: str, args: list) -> Step:
        if text.startswith("mbarrier.init."):
            address, count = (self.row(arg, "words") for arg in args)

            def init(w: Warp) -> None:
                for lane in w.running():
                    number = int(w.words[count, lane])
                    w.block.mbarriers[int(w.words[address, lane])] = Barrier(number, number)

            return init
        if text.startswith("mbarrier.try_wait.parity."):
            dest = self.row(args[0], "predicates")
            address, parity = (self.row(arg, "words") for arg in args[1:])

            def wait(w: Warp) -> object:
                done = True
                for lane in w.running():
                    ended = w.block.mbarriers[int(w.words[address, lane])].phase != w.words[parity, lane]
                    w.predicates[dest, lane] = ended
                    done &= bool(ended)
                return None if done else WAITING

            return wait
        if text.startswith("mbarrier.arrive.") and args[0] is None:
            address = self.row(args[1], "words")
            expected = self.row(args[2], "words") if "expect_tx" in text else None

            def arrive(w: Warp) -> None:
                for lane in w.running():
                    block, at = w.block.at(int(w.words[address, lane]))
                    block.mbarriers[at].change(1, 0 if expected is None else int(w.words[expected, lane]))

            return arrive
        raise NotImplementedError(text)

    def barrier(self, text: str, args: list) -> Step:
        number, threads = (self.row(arg, "words") for arg in args)

        def step(w: Warp) -> object:
            block, which = w.block, int(w.words[number, 0])
            if which not in w.waits_for:
                w.waits_for[which] = block.passed.get(which, 0)
                block.arrived[which] = block.arrived.get(which, 0) + LANES
                if block.arrived[which] == w.words[threads, 0]:
                    block.arrived[which] = 0
                    block.passed[which] = w.waits_for[which] + 1
            if block.passed.get(which, 0) == w.waits_for[which]:
                return WAITING
            del w.waits_for[which]
            return None

        return step

    def cluster_barrier(self, text: str, args: list) -> Step:
        """Kept by the first block of a cluster, by the number -1."""
        if text.startswith("barrier.cluster.arrive."):

            def arrive(w: Warp) -> None:
                first = w.block.cluster[0]
                w.waits_for["cluster"] = first.passed.setdefault(-1, 0)
                first.arrived[-1] = first.arrived.get(-1, 0) + 1
                if first.arrived[-1] == self.warps * len(w.block.cluster):
                    first.arrived[-1] = 0
                    first.passed[-1] += 1

            return arrive
        return lambda w: WAITING if w.block.cluster[0].passed[-1] == w.waits_for["cluster"] else None

    def copy(self, text: str, args: list) -> Step:
        """Copies of boxes between tensors and shared memory."""
        stores = ".global.shared" in text
        (pointer, vector), other = args[:2] if stores else args[1::-1]
        tensor = self.row(pointer, "longs")
        x, y = (self.row(item, "words") for item in vector.items)
        address = self.row(other, "words")
        bar = None if stores else self.row(args[2], "words")
        several = self.row(args[3], "words") if "multicast" in text else None

        def step(w: Warp) -> None:
            for lane in w.running():
                found = self.maps[int(w.longs[tensor, lane])]
                row, column = (int(w.words[r, lane].view(np.int32)) for r in (y, x))
                at = int(w.words[address, lane])
                if bar is None:
                    found.write(row, column, w.block.shared[found.units(at)])
                    continue
                units, data = found.units(at), found.read(row, column)
                blocks = [w.block]
                if several is not None:
                    blocks = [b for i, b in enumerate(w.block.cluster) if int(w.words[several, lane]) >> i & 1]
                for block in blocks:
                    block.shared[units] = data
                    block.mbarriers[int(w.words[bar, lane])].change(0, -data.nbytes)

        return step

    def product(self, text: str, args: list) -> Step:
        """A warp's 16 rows of a product, both operands in shared memory, major in K and swizzled by 128 bytes."""
        dest, before, a, b, keep, *flags = args
        shape = re.match(r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k16\.f32\.bf16\.bf16$", text)
        if shape is None or dest != before or [x.value for x in flags] != [1, 1, 0, 0] or isinstance(a, Vec):
            raise NotImplementedError(text)
        columns = int(shape[1])
        registers = np.array([self.row(item, "words") for item in dest.items])
        left, right, added = self.row(a, "longs"), self.row(b, "longs"), self.row(keep, "predicates")
        unit = np.arange(2) * 16

        def operand(w: Warp, descriptor: int, rows: np.ndarray) -> np.ndarray:
            if descriptor >> 62 != 1:
                raise NotImplementedError("another layout than rows of 128 swizzled bytes")
            start, stride = (descriptor & 0x3FFF) << 4, (descriptor >> 32 & 0x3FFF) << 4
            at = start + (rows // 8 * stride + rows % 8 * 128)[:, None] + unit
            return w.block.shared[swizzled(at) >> 4].view(np.uint16).reshape(len(rows), 16)

        def step(w: Warp) -> None:
            rows = w.number % 4 * 16 + np.arange(16)
            x = operand(w, int(w.longs[left, 0]), rows)
            y = operand(w, int(w.longs[right, 0]), np.arange(columns))
            sums = w.files["f32"]
            c = None  # 8 columns, 2 halves of the rows, 2 neighbors; 8 rows, 4 pairs of columns
            if w.predicates[added, 0]:
                held = sums[registers].reshape(columns // 8, 2, 2, 8, 4)
                c = held.transpose(1, 3, 0, 4, 2).reshape(16, columns)
            d = self.sums(x, y, c).reshape(2, 8, columns // 8, 4, 2)
            sums[registers] = d.transpose(2, 0, 4, 1, 3).reshape(-1, LANES)

        return step

    def matrices(self, text: str, args: list) -> Step:
        if text != "stmatrix.sync.aligned.m8n8.x4.shared.b16":
            raise NotImplementedError(text)
        address = self.row(args[0], "words")
        registers = np.array([self.row(item, "words") for item in args[1].items])

        def step(w: Warp) -> None:
            w.block.shared[w.words[address] >> 4] = w.words[registers].reshape(LANES, 4).view(np.uint64)

        return step

    # -- launches ------------------------------------------------------------------------------------------
    def run(self, blocks: int, threads: int) -> int:
        """Run a grid, a cluster at a time; returns how many instructions warps have run."""
        self.warps = threads // LANES
        done = 0
        for start in range(0, blocks, self.cluster):
            cluster: list[Block] = []
            cluster += (Block(cluster, self.shared) for _ in range(self.cluster))
            warps = [
                self.warp(block, rank, start + rank, number)
                for rank, block in enumerate(cluster)
                for number in range(self.warps)
            ]
            while warps:
                before = done
                for warp in warps:
                    done += self.advance(warp)
                if done == before:
                    raise RuntimeError("all warps wait")
                warps = [warp for warp in warps if warp.pc < len(self.steps)]
        return done

    def advance(self, w: Warp) -> int:
        """Run a warp until it waits or ends; returns the number of its instructions."""
        steps, done = self.steps, 0
        while w.pc < len(steps):
            step = steps[w.pc]
            went = None if step is None else step(w)
            if went is WAITING:
                return done
            done += 1
            if went is None:
                w.pc += 1
            if w.others and w.others[-1][0] == w.pc:
                w.join()
        return done


def quotient(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Of signed numbers, towards zero; lanes that divide by zero get what the manual leaves open."""
    a, b = x.view(np.int32).astype(np.int64), y.view(np.int32).astype(np.int64)
    return (np.sign(a) * np.sign(b) * (abs(a) // np.maximum(abs(b), 1))).astype(np.uint32)


def rounded(bits: np.ndarray) -> np.ndarray:
    """Finite float32 numbers to bfloat16, to nearest even."""
    return bits + (bits >> 16 & 1) + np.uint32(0x7FFF) >> 16


# Comparison --------------------------------------------------------------------------------------------------

SUMS: dict[str, Sums | None] = {
    "CPU engine": None,
    "interpreter, sums to the tensor cores' bits": as_hopper,
    "interpreter, sums by numpy.matmul in float32": by_numpy,
}
OWN, EXACT, _ = SUMS


def program(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, sums: Sums) -> tuple[Program, int]:
    """The GEMM's program for these tensors, and its number of blocks."""
    config = {"STAGES": 4, "BAND": 8}  # of `example().fixed`
    options = tuple(f"-D{name}={value}" for name, value in config.items())
    kernel = rawkern.RawKernel(example().SOURCE, "gemm", options=options)
    bm, bn, bk, pair = (getattr(example(), name) for name in ("BM", "BN", "BK", "PAIR"))
    boxes = ((bm, bk), (bn // pair, bk), (64, 64))
    maps = [
        TensorMap(x.view(torch.int16).numpy().view(np.uint16), box) for x, box in zip((a, b, c), boxes, strict=True)
    ]
    (m, k), n = a.shape, b.shape[0]
    made = Program(kernel.ptx(), "gemm", [*maps, m, n, k], example().memory(config), sums)
    return made, pair * -(-m // (pair * bm)) * -(-n // bn)


def interpreted(a: torch.Tensor, b: torch.Tensor, sums: Sums) -> torch.Tensor:
    """Return ``a @ b.T`` as the example's kernel computes it, interpreted."""
    c = a.new_empty(a.shape[0], b.shape[0])
    made, blocks = program(a, b, c, sums)
    made.run(blocks, 384)
    return c


def measured(name: str, size: int) -> dict[str, Any]:
    """CPU seconds of each call, the results compared; and how many instructions warps run."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    a, b = (torch.randn(size, size).bfloat16() for _ in range(2))
    expected = example().matmul(a, b, example().fixed)
    checked(a, b, expected)
    sums, count = SUMS[name], 0
    if sums is None:

        def run() -> object:
            return example().matmul(a, b, example().fixed)
    else:
        c = torch.full_like(expected, float("nan"))
        made, blocks = program(a, b, c, sums)

        def run() -> object:
            return made.run(blocks, 384)

        count = made.run(blocks, 384)
        checked(a, b, c)
        if name == EXACT and not c.equal(expected):
            raise AssertionError("the interpreter's result has other bits than the CPU engine's")
    times: list[float] = []
    while len(times) < 3 or (sum(times) < 1.0 and len(times) < 25):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return {"times": times, "instructions": count}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5, help="processes of each, in turns")
    options = parser.parse_args()
    report = Report("interpreter", "A GEMM for Hopper without a GPU, compiled and interpreted")
    report.settle()
    environment = python_environment() | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    code = "import json; from benchmarks.interpreter import measured; print(json.dumps(measured({!r}, {})))"
    times: dict[str, list[float]] = {name: [] for name in SUMS}
    count = 0
    for _ in range(options.rounds):
        for name, taken in times.items():
            found = fresh(code.format(name, options.size), environment, limit=600)
            taken.append(summary(found["times"]).median)
            count = max(count, found["instructions"])
    table = Table(
        f"bfloat16, m = n = k = {options.size}", ("", "CPU time of a call", "quartiles", "times the CPU engine's"),
        note="CPU time (user and system) of one thread, without compilation or decoding. Medians over processes of the "
        f"median in each. Warps run {count:,} instructions of PTX. The first two results are equal bit for bit.",
    )  # fmt: skip
    timings = {name: summary(taken, base=times[OWN]) for name, taken in times.items()}
    for name, timing in timings.items():
        quartiles = f"{scaled(timing.low)} to {scaled(timing.high)}"
        table.rows.append((name, scaled(timing.median), quartiles, f"{timing.ratio:.3g}"))
    report.add(table, plain(timings))
    if options.size == 512:
        report.write()


if __name__ == "__main__":
    main()
