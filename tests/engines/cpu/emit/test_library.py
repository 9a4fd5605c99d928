"""Helpers that kernels share are compiled once, and found again or made again where the disk cache has lost them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import rawkern
from rawkern.base.llvm import LoadedObject
from rawkern.engines.cpu.emit.library import split
from rawkern.engines.cpu.ir import Module
from rawkern.engines.cpu.runtime import jit

SCATTERED = """extern "C" __global__ void k(float* y, const float* x, const int* at, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[at[i]] = %s * x[at[i]];
}"""


def launched(factor: str) -> None:
    x, at = torch.rand(50), torch.randperm(50).int()
    y = torch.full((50,), -1.0)
    rawkern.RawKernel(SCATTERED % factor, "k")[2, 32](y, x, at, 41)
    expected = torch.full((50,), -1.0)
    expected[at[:41].long()] = float(factor[:-1]) * x[at[:41].long()]
    assert torch.equal(y, expected)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The functions of each module that LLVM is given from now on, in a process that has loaded none of the library."""
    made: list[str] = []
    plain = jit.object_file

    def object_file(text: str, *more, **options) -> bytes:
        made.append(" ".join(re.findall(r"^define [^@]*@(\w+)", text, re.M)))
        return plain(text, *more, **options)

    monkeypatch.setattr(jit, "object_file", object_file)
    monkeypatch.setattr(jit, "_linked", {})
    tmp_path.chmod(0o700)
    monkeypatch.setenv("RAWKERN_CACHE_DIR", str(tmp_path))
    return made


def test_kernels_share_helpers(compiled: list[str], tmp_path: Path) -> None:
    launched("2.5f")
    shared = [text for text in compiled if re.fullmatch(r"rk_(load|store)_\w+", text)]
    assert shared and len(set(shared)) == len(shared)
    compiled.clear()
    launched("3.5f")
    assert len(compiled) == 1 and "rk_load" not in compiled[0] and "rk_store" not in compiled[0]
    jit._linked.clear()  # as another process has it
    compiled.clear()
    launched("2.5f")
    assert not compiled
    jit._linked.clear()
    for file in tmp_path.glob("**/function-*"):
        file.unlink()
    launched("2.5f")  # the kernel is there, what it calls is not: all is made again
    assert set(shared) <= set(compiled)


def test_callers_are_loaded_before_what_they_call(compiled: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM ends the process at a call of what it has loaded already and 2 GB away."""
    loaded: list[tuple[bytes, ...]] = []
    plain = jit.LoadedObject
    monkeypatch.setattr(jit, "LoadedObject", lambda *bodies: loaded.append(bodies) or plain(*bodies))
    launched("4.5f")
    bodies = next(bodies for bodies in loaded if len(bodies) > 1)
    places = {symbol: bodies.index(jit.function_object(symbol, None, jit.host())) for symbol in jit._linked}
    calls = [
        (caller, callee)
        for symbol, callee in places.items()
        for caller, body in enumerate(bodies)
        if f"{symbol}\0".encode() in body
    ]
    assert any(caller != callee for caller, callee in calls)
    assert all(caller <= callee for caller, callee in calls)


def test_what_kernels_share_is_loaded_at_once(compiled: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine of LLVM's takes as long as a kernel: there is one for all that is missing, and one for the kernel."""
    loaded: list[int] = []
    plain = LoadedObject.__init__
    monkeypatch.setattr(jit, "_schedulers", {})
    monkeypatch.setattr(jit, "_instruments", set())
    monkeypatch.setattr(
        LoadedObject, "__init__", lambda self, *bodies: loaded.append(len(bodies)) or plain(self, *bodies)
    )
    launched("5.5f")
    shared, kernel = loaded
    assert shared == 2 + len(jit._linked) > 2 and kernel == 1  # a scheduler, the code of the checks, the library
    launched("6.5f")
    assert loaded == [shared, 1, 1]


def helper(name: str, body: str, how: str = "noinline") -> str:
    return f"define internal i32 @{name}(i32 %a) {how} {{\n{body}\n}}"


def test_what_is_taken_out() -> None:
    module = Module()
    module.declare("llvm.ctpop.i32", "declare i32 @llvm.ctpop.i32(i32)")
    module.declare("outside", "declare i32 @outside(i32)")
    module.helper("inner", lambda m: helper("inner", "%r = call i32 @llvm.ctpop.i32(i32 %a)\nret i32 %r"))
    module.helper("outer", lambda m: helper("outer", "%r = call i32 @inner(i32 %a)\nret i32 %r"))
    module.helper("own", lambda m: helper("own", "%r = call i32 @outside(i32 %a)\nret i32 %r"))
    module.helper("small", lambda m: helper("small", "ret i32 %a", "alwaysinline"))
    for one, other in (("ping", "pong"), ("pong", "ping")):
        module.helper(one, lambda m, a=one, b=other: helper(a, f"%r = call i32 @{b}(i32 %a)\nret i32 %r"))
    module.functions.append("define i32 @main(i32 %a) {\n%r = call i32 @outer(i32 %a)\nret i32 %r\n}")
    library = split(module)
    inner, outer = library.functions
    assert inner.startswith("inner_") and outer.startswith("outer_")
    assert f"declare i32 @{inner}(i32) memory(none) nounwind willreturn" in library.functions[outer]
    assert f"call i32 @{outer}(i32 %a)" in library.text and f"declare i32 @{outer}(i32)" in library.text
    assert re.findall(r"^define [^@]*@(\w+)", library.text, re.M) == ["own", "small", "ping", "pong", "main"]
    changed = Module(dict(module.declarations), {"inner": module.helpers["inner"].replace("%r", "%q")})
    changed.helper("outer", lambda m: module.helpers["outer"])
    assert not set(split(module, "another CPU").functions) & {inner, outer}  # where vectors are passed in another way
    assert not set(split(changed).functions) & {inner, outer}  # what calls another text is another function
