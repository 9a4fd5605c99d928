"""What goes between a judge and a candidate's process: everything arrives, and invalid messages raise."""

from __future__ import annotations

import json
import math
import socket
import struct
import threading
import time

import pytest
import torch

from rawkern.testing.judging import wire

TENSORS = [
    torch.tensor([1.5, -0.0, math.inf]), torch.zeros(2, 0, 3), torch.tensor(7, dtype=torch.int8),
    torch.tensor([True, False]), torch.randn(3, 4).half().T, torch.randn(2).to(torch.bfloat16),
    torch.randn(2, dtype=torch.complex64), torch.arange(9, dtype=torch.int64)[::2], torch.ones(3).to(torch.float8_e5m2),
]  # fmt: skip


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair()


def test_round_trip() -> None:
    value = (1, -(2**70), 2.5, math.inf, "text", None, True, 1 - 2j, torch.float16, [TENSORS[0], {"a": (TENSORS[1],)}])
    tensors: list[torch.Tensor] = []
    text = json.dumps(wire.encoded(value, tensors))
    again = wire.decoded(json.loads(text), tensors)
    assert again[:9] == value[:9] and again[9][0] is TENSORS[0] and again[9][1]["a"][0] is TENSORS[1]
    here, there = pair()
    with here, there:
        wire.send(here, {"do": "call", "nan": math.nan}, TENSORS)
        head, found = wire.receive(there, 1 << 20)
    assert head["do"] == "call" and math.isnan(head["nan"])
    for a, b in zip(TENSORS, found, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert a.contiguous().reshape(-1).view(torch.uint8).tolist() == b.reshape(-1).view(torch.uint8).tolist()


def test_what_has_no_form() -> None:
    for value in (object(), {1, 2}, lambda: 1, b"bytes", [torch.nn.Linear(1, 1)]):
        with pytest.raises(TypeError, match=r"the argument is of type .*; a candidate's process takes tensors"):
            wire.encoded(value, [])


def packed(head: str, data: bytes = b"", length: int | None = None, nbytes: int | None = None) -> bytes:
    text = head.encode()
    lengths = (len(text) if length is None else length, len(data) if nbytes is None else nbytes)
    return struct.pack("<QQ", *lengths) + text + data


@pytest.mark.parametrize(
    "message, says",
    [
        (packed("", length=1 << 40), "a message of 1099511627776 bytes"),
        (packed("{}", nbytes=1 << 40), "1099511627776 bytes of tensors"),
        (packed("no JSON"), "an invalid message"),
        (packed("[" * 100_000), "an invalid message"),
        (packed("{}"), "an invalid message: 'tensors'"),
        (packed("[]"), "an invalid message"),
        (packed('{"tensors": [["Tensor", [1]]]}'), "there is no dtype 'Tensor'"),
        (packed('{"tensors": [["float32", [-1]]]}'), "an impossible shape"),
        (packed('{"tensors": [["float32", [1e999]]]}'), "an invalid message"),
        (packed(json.dumps({"tensors": [["int8", [1] * 99]]}), b"1"), "an impossible shape"),
        (packed('{"tensors": [["float32", [2]]]}', b"1234"), "size differs from the message's"),
        (packed('{"tensors": [["float32", [1099511627776, 0]]]}', b"1234"), "size differs from the message's"),
    ],
)
def test_no_messages(message: bytes, says: str) -> None:
    here, there = pair()
    with here, there:
        threading.Thread(target=here.sendall, args=(message,)).start()
        with pytest.raises(wire.Broken, match=says):
            wire.receive(there, 1 << 20, time.monotonic() + 20)


def test_ends_and_limits_of_time() -> None:
    here, there = pair()
    with here, there:
        here.sendall(packed('{"tensors": [["float32", [2]]]}', b"12345678")[:-1])
        with pytest.raises(wire.Late):
            wire.receive(there, 1 << 20, time.monotonic() + 0.05)
        with pytest.raises(wire.Late):
            wire.receive(there, 1 << 20, time.monotonic() - 1)
        with pytest.raises(wire.Late):  # no process reads
            wire.send(here, {}, [torch.zeros(1 << 24)], time.monotonic() + 0.05)
    here, there = pair()
    with there:
        here.close()
        with pytest.raises(EOFError):
            wire.receive(there, 1 << 20)
