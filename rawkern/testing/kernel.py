"""`check_kernel`: tests an operator made of kernels in all the ways in which it can fail, in one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from rawkern.base.api_boundary import api_boundary
from rawkern.base.nearest import did_you_mean
from rawkern.base.progress import progress
from rawkern.testing.reporting import Failure, KernelCheckError, KernelReport
from rawkern.testing.running import Run
from rawkern.testing.samples import make_sample
from rawkern.testing.trials import Target, Trial, exact, judge, problem_of

__all__ = ["CHECKS", "Failure", "KernelCheckError", "KernelReport", "check_kernel"]

#: The names of the checks, in failures and in `skip`.
CHECKS = (
    "reference", "unwritten", "guard", "input", "gradient", "dtype", "layout", "size", "empty", "default_device",
    "repeat", "gradcheck", "opcheck", "compile", "stream", "graph", "devices", "order",
)  # fmt: skip


@api_boundary
def check_kernel(
    op: Callable[..., Any],
    *sample_inputs: Any,
    reference: Callable[..., Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    mutates: Sequence[str | int] | None = None,
    dtypes: Sequence[torch.dtype] | None = None,
    devices: Sequence[str | torch.device] | None = None,
    differentiable: bool | None = None,
    deterministic: bool = False,
    backend: str = "aot_eager",
    tolerance: float | None = None,
    skip: Sequence[str] = (),
) -> KernelReport:
    """Run an operator made of kernels in all the ways that programs use it, and raise if a result is wrong.

    It accepts operators of `rawkern.op`, `rawkern.elementwise` and `rawkern.reduction`, torch operators, and plain
    functions that launch kernels. It cannot find bugs that need other values than the samples have;
    samples may contain NaN and infinities.

    Parameters
    ----------
    op : callable
        The function under test.
    *sample_inputs
        Its arguments: tensors on any device, numbers, lists. Sizes, dtypes and layouts are varied from there;
        dimensions of equal size change together, so use different sizes for independent dimensions.
    reference : callable, optional
        Computes the same in torch, or in place. It is called with the same arguments in float64 on the CPU, and
        determines the expected gradients. Inputs that it rejects are not tested. Without a reference,
        the operator is compared with itself on plain inputs in float64.
    kwargs : mapping, optional
        Keyword arguments for both.
    mutates : sequence of str or int, optional
        Names or positions of the arguments that the operator writes; by default those of its schema.
    dtypes : sequence of torch.dtype, optional
        Dtypes that it must support. By default it may reject any but the samples'; for others, results must be right.
    devices : sequence of str or torch.device, optional
        By default the CPU, and the GPU if available.
    differentiable : bool, optional
        Whether gradients are required (True) or ignored (False). By default they are checked if
        results require grad.
    deterministic : bool
        Whether repeated calls must also give the same bits.
    backend : str
        The backend of torch.compile: "aot_eager" is quick, "inductor" complete.
    tolerance : float, optional
        The allowed error, relative to the largest element. By default 1e-10 for float64, 1e-5 for float32, 2e-3
        for float16 and 1.6e-2 for bfloat16; four times that for gradients, and more where the reference in float32
        shows that the result is ill-conditioned.
    skip : sequence of str
        Checks (`CHECKS`) to skip.

    Returns
    -------
    KernelReport
        What was run, what the operator rejects, and what could not be checked, with the reason.

    Raises
    ------
    KernelCheckError
        An `AssertionError` with all failures: check, device, dtype, layout, the smallest shapes that show it.
    TypeError, ValueError
        No argument is a tensor, an option is invalid, or the reference gives random results.

    Notes
    -----
    An operator may reject dtypes, layouts and sizes with TypeError, ValueError, OverflowError, NotImplementedError or
    an error of rawkern; CompileError, LaunchError and others are failures, and so is any error on an empty input
    that the reference accepts.

    Examples
    --------
    >>> check_kernel(rawkern.square, torch.randn(37, 65), reference=torch.square)
    """
    if unknown := set(skip).difference(CHECKS):
        wrong = min(unknown, key=str)
        raise ValueError(
            f"check_kernel: skip names {wrong!r}; the checks are {', '.join(CHECKS)}{did_you_mean(wrong, CHECKS)}"
        )
    name = getattr(op, "__name__", None) or getattr(op, "name", None) or getattr(op, "_opoverload", op)
    target = Target(op, reference, str(name), tolerance)
    sample = make_sample(op, sample_inputs, kwargs or {}, mutates)
    places = _devices(devices)
    first = Trial("the sample", sample, torch.device("cpu"))
    try:
        expected = exact(target, first)
        random = reference is not None and bool(judge(target, first, exact(target, first), expected))
    except Exception as error:
        random = False
        if reference is not None:
            raise ValueError(
                f"check_kernel: the reference rejects the sample inputs: {problem_of(error).text}"
            ) from error
    if random:
        raise ValueError(
            "check_kernel: two calls of the reference with the same inputs differ, so the operator cannot be compared "
            "with it; pass the random numbers or a seed to both as an argument"
        )
    report, wanted = KernelReport(target.name), tuple(dtypes or ())
    if reference is None:
        report.left_out["reference"] = "not given; results are compared with those on plain inputs"
    with progress(f"check_kernel {target.name}", None, "check") as step:
        run = Run(target, report, wanted, differentiable, deterministic, backend, frozenset(skip), step)
        for place in places:
            run.device(replace(first, device=place))
    if report.failures:
        raise KernelCheckError(report)
    return report


def _devices(given: Sequence[str | torch.device] | None) -> list[torch.device]:
    if given is None:
        given = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    found = [torch.device(each) for each in ([given] if isinstance(given, (str, torch.device)) else given)]
    for each in found:
        if each.type not in ("cpu", "cuda"):
            raise ValueError(f"check_kernel: rawkern runs on cpu and cuda, not on {each}")
        if each.type == "cuda" and not torch.cuda.is_available():
            raise ValueError(f"check_kernel: devices names {each}, but torch finds no GPU")
    return [torch.device("cuda", torch.cuda.current_device()) if str(d) == "cuda" else d for d in found]
