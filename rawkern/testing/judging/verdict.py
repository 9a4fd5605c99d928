"""What `judge` says of a candidate, as data."""

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
#: Those that are named as tampering, by kind.
KINDS = {
    "no launch": "launches no kernel",
    "unused launches": "gives the same without what its kernels compute",
    "returned input": "returns the memory of an input",
    "changed input": "changes an input",
    "cached output": "gives what a call with other values in the same memory has given",
    "lazy result": "returns what is no plain tensor",
    "wrong device": "returns a tensor of another device",
    "wrong dtype": "returns a tensor of another dtype",
    "replaced function": "replaces functions that it is measured with",
    "other stream": "works on another stream than the current one",
    "timer": "takes longer by the judge's clock than it says",
    "worker": "breaks into the process that tries it, or what that says",
}


@dataclass(frozen=True)
class Check:
    """What came of one check.

    Attributes
    ----------
    state : str
        "passed", "failed" or "not run".
    text : str
        What is wrong, or why it was not run.
    """

    state: str
    text: str = ""


@dataclass(frozen=True)
class Tampering:
    """A way in which a candidate only seems to do its work.

    Attributes
    ----------
    kind : str
        Such as "no launch", "cached output", "replaced function".
    text : str
        What was seen.
    """

    kind: str
    text: str


@dataclass
class Verdict:
    """What `judge` found out about a candidate.

    Attributes
    ----------
    entry, signature : str
        The kernel, function or class that was called, and how; empty where none was found.
    device : str
        Where it ran.
    checks : dict of str to Check
        By name: compiles, signature (it can be called so), runs (it ends by itself, within its limits), right (several
        seeds), sizes, special (zeros, NaN, infinities, large numbers), deterministic, output (it writes all of it, and
        reads none of it before), findings (of checks in full), order (it does not depend on the order of threads),
        honest (there is no tampering).
    tampering : list of Tampering
        What is not honest.
    findings : list of dict
        Of `rawkern.check`: error, message, file, line.
    launches : dict of str to int
        Kernels that one call launches through rawkern, and how often.
    gpu_seconds : float or None
        The median time of a call by the GPU's clock, as the candidate's process says; None where there is no GPU.
    call_seconds : float or None
        The time of a call by the judge's clock, with the host's part.
    seconds : float
        What the judgement took.
    memory : int
        The most bytes that the candidate's process has used.
    left : int
        Processes that it had started and that still ran at its end; they were ended.
    printed : str
        The last that it has printed.
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
        """Whether the candidate was called, and no check has failed."""
        return self.checks["right"].state == PASSED and not self.failed

    @property
    def failed(self) -> list[str]:
        """The names of the checks that have failed."""
        return [name for name, check in self.checks.items() if check.state == FAILED]

    def as_dict(self) -> dict[str, Any]:
        """All of it as JSON has it.

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

    # How it is made ---------------------------------------------------------------------------------------------------

    def settle(self, name: str, problem: str | None) -> None:
        """Note what came of a check; the first problem of several stays."""
        if self.checks[name].state != FAILED:
            self.checks[name] = Check(PASSED) if problem is None else Check(FAILED, problem)

    def leave_out(self, name: str, why: str) -> None:
        """Note why a check was not run, unless something came of it already."""
        if self.checks[name] == Check(NOT_RUN):
            self.checks[name] = Check(NOT_RUN, why)

    def accuse(self, kind: str, text: str = "") -> None:
        """Note tampering of a kind, once."""
        assert kind in KINDS
        if all(each.kind != kind for each in self.tampering):
            self.tampering.append(Tampering(kind, text or KINDS[kind]))
