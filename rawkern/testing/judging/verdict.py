"""The verdict of `judge` on a candidate, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"

#: The checks of `judge`, in the order in which they are reported.
CHECKS = (
    "compiles", "signature", "runs", "right", "sizes", "special", "deterministic", "output", "findings", "order",
    "honest",
)  # fmt: skip
#: Descriptions of tampering, by kind.
KINDS = {
    "no launch": "launches no kernel",
    "unused launches": "gives the same results when its kernels do not run",
    "returned input": "returns the memory of an input",
    "changed input": "changes an input",
    "cached output": "returns the results of an earlier call with other values in the same memory",
    "lazy result": "returns something that is not a plain tensor",
    "wrong device": "returns a tensor on another device",
    "wrong dtype": "returns a tensor with another dtype",
    "replaced function": "replaces functions that are used to measure it",
    "other stream": "works on a stream other than the current one",
    "timer": "takes longer by the judge's clock than it reports",
    "worker": "manipulates the process that runs it, or its messages",
}


@dataclass(frozen=True)
class Check:
    """The result of one check.

    Attributes
    ----------
    state : str
        "passed", "failed" or "not run".
    text : str
        What is wrong, or why the check was not run.
    """

    state: str
    text: str = ""


@dataclass(frozen=True)
class Tampering:
    """A way in which a candidate only pretends to do its work.

    Attributes
    ----------
    kind : str
        Such as "no launch", "cached output", "replaced function".
    text : str
        The evidence.
    """

    kind: str
    text: str


@dataclass
class Verdict:
    """The verdict of `judge` on a candidate.

    Attributes
    ----------
    entry, signature : str
        The kernel, function or class that was called, and its signature; empty if none was found.
    device : str
        Where it ran.
    checks : dict of str to Check
        By name: compiles, signature (it accepts the arguments), runs (it ends by itself within its limits), right
        (several seeds), sizes, special (zeros, NaN, infinities, large numbers), deterministic, output (it writes the
        whole output and does not read it before), findings (of `rawkern.check`), order (it does not depend on the
        order of threads), honest (no tampering).
    tampering : list of Tampering
        Evidence of tampering.
    findings : list of dict
        Findings of `rawkern.check`: error, message, file, line.
    launches : dict of str to int
        The kernels that one call launches through rawkern, with counts.
    gpu_seconds : float or None
        The median time of a call by the GPU's clock, as reported by the candidate's process; None without a GPU.
    call_seconds : float or None
        The time of a call by the judge's clock, including host time.
    seconds : float
        The total time of the judge.
    memory : int
        The peak memory of the candidate's process in bytes.
    left : int
        The number of processes that it left running; they were ended.
    printed : str
        The end of its output.
    """

    entry: str = ""
    signature: str = ""
    device: str = "cpu"
    checks: dict[str, Check] = field(default_factory=lambda: {name: Check(NOT_RUN) for name in CHECKS})
    tampering: list[Tampering] = field(default_factory=list)
    findings: list[Mapping[str, Any]] = field(default_factory=list)
    launches: dict[str, int] = field(default_factory=dict)
    gpu_seconds: float | None = None
    call_seconds: float | None = None
    seconds: float = 0.0
    memory: int = 0
    left: int = 0
    printed: str = ""

    @property
    def ok(self) -> bool:
        """Whether the candidate was called and no check failed."""
        return self.checks["right"].state == PASSED and not self.failed

    @property
    def failed(self) -> list[str]:
        """The names of the checks that failed."""
        return [name for name, check in self.checks.items() if check.state == FAILED]

    def as_dict(self) -> dict[str, Any]:
        """The verdict as plain data for JSON.

        Returns
        -------
        dict
            Attributes by name, as dicts, lists, text and numbers; and ``ok`` and ``failed``.
        """
        return {"ok": self.ok, "failed": self.failed, **asdict(self)}

    def __str__(self) -> str:
        name = self.signature or "the candidate"
        lines = [
            f"{name}: {'right' if self.ok else 'fails ' + ', '.join(self.failed) if self.failed else 'not judged'}"
        ]
        for check, found in self.checks.items():
            text = f": {found.text}" if found.text else ""
            lines.append(f"  {check:13} {found.state}{text}")
        return "\n".join(lines)

    # Construction ---------------------------------------------------------------------------------------------------

    def settle(self, name: str, problem: str | None) -> None:
        """Record the result of a check; the first problem is kept."""
        if self.checks[name].state != FAILED:
            self.checks[name] = Check(PASSED) if problem is None else Check(FAILED, problem)

    def leave_out(self, name: str, why: str) -> None:
        """Record why a check was not run, unless it already has a result."""
        if self.checks[name] == Check(NOT_RUN):
            self.checks[name] = Check(NOT_RUN, why)

    def accuse(self, kind: str, text: str = "") -> None:
        """Record tampering, once per kind."""
        assert kind in KINDS
        if all(each.kind != kind for each in self.tampering):
            self.tampering.append(Tampering(kind, text or KINDS[kind]))
