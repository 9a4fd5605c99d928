"""Values whose derivative is not known: an operator that passes them on, and raises where they are differentiated.

It is an operator and no function of autograd's, so that each level of torch.func sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch

from rawkern.base import torch_private as private
from rawkern.operators.batching import run_formerly_batched


def unknown(t: torch.Tensor, anchors: Sequence[torch.Tensor], message: str) -> torch.Tensor:
    """Return a copy of `t` that depends on the anchors in an unknown way: its derivative raises `message`."""
    return _operator()[1](t, list(anchors), message)


@cache
def _operator() -> tuple[torch.library.Library, Any]:
    library = torch.library.Library("rawkern_operators", "FRAGMENT")
    library.define("unknown(Tensor t, Tensor[] anchors, str message) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
    overload = torch.ops.rawkern_operators.unknown.default

    def autograd(keyset: Any, t: torch.Tensor, anchors: list[torch.Tensor], message: str) -> Any:
        modes = private.Below()

        def below() -> Any:
            with modes:
                return overload.redispatch(keyset & private.after_autograd, t, anchors, message)

        recorded = torch.is_grad_enabled() and any(each.requires_grad for each in (t, *anchors))
        if not recorded and not private.forward_mode():
            return below()
        with private.single_level():
            return raising(message).apply(below, t, *anchors)

    def rule(info: Any, dims: Any, t: torch.Tensor, anchors: list[torch.Tensor], message: str) -> Any:
        return overload(t, anchors, message), dims[0]

    for key in ("CPU", "CUDA"):
        library.impl("unknown", lambda t, anchors, message: t.clone(), key)
    library.impl("unknown", autograd, "Autograd", with_keyset=True)
    library.impl("unknown", partial(run_formerly_batched, "unknown", rule), "Batched")
    torch.library.register_fake("rawkern_operators::unknown", lambda t, anchors, message: t.clone(), lib=library)
    torch.library.register_vmap("rawkern_operators::unknown", rule, lib=library)
    return library, overload


def raising(on_backward: str, on_jvp: str | None = None) -> Any:
    """An autograd function ``apply(run, *tensors)`` that returns run(), and cannot be differentiated."""

    def forward(ctx: Any, below: Callable[[], Any], *given: torch.Tensor) -> Any:
        return below()

    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(on_backward)

    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise NotImplementedError(on_jvp or on_backward)

    members: dict[str, Any] = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("Opaque", (private.SingleLevelFunction,), members | {"jvp": staticmethod(jvp)})
