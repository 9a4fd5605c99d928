"""What holds of all instructions of an opcode: one row for each, which analysis, lowering and the checker read."""

from __future__ import annotations

from typing import NamedTuple


class Facts(NamedTuple):
    """A row of the table; the defaults are those of an opcode that is not known."""

    #: "move", "convert", "shift"; "arith" and "compare", which take floats as numbers; "memory".
    kind: str = ""
    #: The first operand is a destination.
    result: bool = True
    #: Changes registers only, and reads nothing else: done again with the same operands it does the same.
    pure: bool = False
    #: "r", "w" or "rw".
    memory: str = ""
    #: Tells what other threads have done, so a loop with it may wait for them; plain loads do not.
    observes: bool = False
    #: Who has to be there: threads of the "block", lanes that the last operand, a "mask", names, all lanes of the
    #: "warp".
    collective: str = ""
    #: Where the result is the same in all lanes: where the "operands" or the "mask" are; "always", "never".
    lanes: str = "operands"
    #: Execution may go on elsewhere.
    leaves: bool = False
    #: The result is one of so many first operands.
    moves: int = 0
    #: The result can be affine in the lane: a "sum" of multiples, or done once for each "segment" of lanes with one
    #: value.
    affine: str = ""
    #: Integer arithmetic that makes indices and addresses.
    index: bool = False
    #: Operands that give the result its address: the "first", the "last", "either" of two, a "sum", a "difference",
    #: "none", "any".
    address: str = ""
    #: Sources that are 32 bits wide, whatever the type.
    words: tuple[int, ...] = ()


_NOTHING = Facts(result=False)
_PURE = Facts(pure=True)
_ARITH, _COMPARE = Facts("arith", pure=True), Facts("compare", pure=True)
_LINEAR = _ARITH._replace(affine="sum", index=True)
_LOGIC = Facts(pure=True, affine="segment", index=True, address="sum")
_SHIFT = Facts("shift", pure=True, affine="segment", index=True, address="none", words=(1,))
_LOAD = Facts("memory", memory="r", address="any")
_STORE = Facts("memory", memory="w", result=False)
_UPDATE = Facts("memory", memory="rw", lanes="never")
_TILE = Facts("memory", memory="r", collective="warp", lanes="never")
_PRODUCT = Facts(collective="warp", lanes="never")
_COLLECTIVE = Facts(collective="mask", lanes="never")
_OBJECT = Facts(memory="rw", lanes="never")
_TEST = Facts(memory="r", observes=True, lanes="never")
_FENCE = Facts(result=False, pure=True, observes=True)
_LEAVING = Facts(result=False, leaves=True)

#: By opcode: the first word of a mnemonic, or the words that name the operation.
FACTS: dict[str, Facts] = {
    # registers
    "mov": Facts("move", pure=True, moves=1, index=True, address="first"),
    "cvta": Facts("move", pure=True, index=True, address="first"),
    "cvt": Facts("convert", pure=True, affine="sum", index=True, address="first"),
    "selp": Facts("move", pure=True, moves=2, address="either"),
    "add": _LINEAR._replace(address="sum"),
    "sub": _LINEAR._replace(address="difference"),
    "neg": _LINEAR._replace(address="none"),
    "mad": _LINEAR._replace(address="last"),
    "mul": _LINEAR._replace(affine="segment", address="none"),
    "div": _ARITH._replace(affine="segment", address="none"),
    "rem": _ARITH._replace(affine="segment", address="none"),
    "min": _ARITH._replace(affine="segment", address="either"),
    "max": _ARITH._replace(affine="segment", address="either"),
    "abs": _ARITH._replace(affine="segment"),
    **dict.fromkeys(("mad24", "sad", "fma", "rcp", "sqrt", "rsqrt", "sin", "cos", "lg2", "ex2", "tanh"), _ARITH),
    "mul24": _ARITH._replace(address="none"),
    **dict.fromkeys(("addc", "subc", "madc"), _ARITH),
    "setp": _COMPARE._replace(address="none"),
    **dict.fromkeys(("set", "testp"), _COMPARE),
    "not": Facts(pure=True, affine="sum", index=True),
    **dict.fromkeys(("and", "or", "xor"), _LOGIC),
    **dict.fromkeys(("shl", "shr"), _SHIFT),
    "bfe": _PURE._replace(address="none", words=(1, 2)),
    "bfi": _PURE._replace(words=(2, 3)),
    **dict.fromkeys(("szext", "bmsk"), _PURE._replace(words=(1,))),
    "slct": _PURE._replace(words=(2,)),
    "lop3": _PURE._replace(words=(3,)),
    **dict.fromkeys(("popc", "clz"), _PURE._replace(address="none")),
    **dict.fromkeys(("cnot", "shf", "bfind", "brev", "prmt", "fns", "copysign", "dp4a", "dp2a", "vmad"), _PURE),
    **{f"v{name}{n}": _PURE for name in ("add", "sub", "absdiff", "min", "max", "set", "avrg") for n in ("", 2, 4)},
    **dict.fromkeys(("vshl", "vshr", "isspacep", "createpolicy"), _PURE),
    "activemask": Facts(lanes="always"),
    # memory
    "ld": _LOAD,
    "ldu": _LOAD,
    "st": _STORE,
    "atom": _UPDATE._replace(observes=True, address="any"),
    "red": _UPDATE._replace(result=False),
    **dict.fromkeys(("st.async", "red.async"), _UPDATE._replace(result=False)),
    **dict.fromkeys(("membar", "fence", "nanosleep"), _FENCE),
    **dict.fromkeys(("prefetch", "prefetchu", "discard", "applypriority", "pmevent", "setmaxnreg"), _NOTHING),
    "griddepcontrol": _FENCE,
    **dict.fromkeys(("cp", "cp.async.mbarrier"), _NOTHING),
    **dict.fromkeys(("cp.async.ca", "cp.async.cg"), Facts(result=False, memory="rw")),
    **dict.fromkeys(("cp.async.commit_group", "cp.async.wait_group", "cp.async.wait_all"), _NOTHING),
    **dict.fromkeys(("cp.async.bulk", "cp.reduce.async.bulk"), Facts(result=False, memory="rw")),
    **dict.fromkeys(
        ("cp.async.bulk.tensor", "cp.reduce.async.bulk.tensor"),
        Facts(result=False, memory="rw"),
    ),
    **dict.fromkeys(
        ("cp.async.bulk.commit_group", "cp.async.bulk.prefetch", "cp.async.bulk.prefetch.tensor"), _NOTHING
    ),
    "cp.async.bulk.wait_group": _FENCE,
    **dict.fromkeys(("mbarrier.init", "mbarrier.inval"), Facts(memory="w")),
    **dict.fromkeys(("mbarrier.arrive", "mbarrier.arrive_drop"), _OBJECT),
    **dict.fromkeys(("mbarrier.expect_tx", "mbarrier.complete_tx"), _OBJECT._replace(result=False)),
    **dict.fromkeys(("mbarrier.test_wait", "mbarrier.try_wait"), _TEST),
    "mbarrier.pending_count": _PURE,
    "mapa": _PURE._replace(address="any", words=(1,)),
    "getctarank": _PURE._replace(address="none"),
    **dict.fromkeys(("ldmatrix", "wmma.load"), _TILE),
    "stmatrix": _TILE._replace(memory="w", result=False),
    "wmma.store": _TILE._replace(memory="w", result=False),
    # lanes
    **dict.fromkeys(("mma", "wmma.mma", "wgmma.mma_async", "movmatrix"), _PRODUCT),
    **dict.fromkeys(("wgmma.fence", "wgmma.commit_group", "wgmma.wait_group"), Facts(result=False, collective="warp")),
    "shfl": _COLLECTIVE._replace(moves=1, address="any"),
    "vote": _COLLECTIVE._replace(lanes="mask", address="none"),
    **dict.fromkeys(("redux", "match.all"), _COLLECTIVE._replace(lanes="mask")),
    **dict.fromkeys(("match.any", "elect"), _COLLECTIVE),
    "bar.warp": _COLLECTIVE._replace(result=False),
    **dict.fromkeys(("bar", "barrier", "barrier.cluster"), Facts(result=False, collective="block", lanes="always")),
    # control
    **dict.fromkeys(("bra", "brx", "ret", "exit"), _LEAVING),
    "call": _LEAVING._replace(lanes="never", address="any"),
    **dict.fromkeys(("trap", "brkpt"), _NOTHING),
    # not supported
    **dict.fromkeys(("sust", "wgmma.mma_async.sp", "tcgen05", "clusterlaunchcontrol"), _NOTHING),
}
UNKNOWN = Facts()
