"""The report of a run of `check_kernel`, and the error that it raises."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Failure:
    """One check that failed.

    Attributes
    ----------
    check : str
        Its name, one of `rawkern.testing.CHECKS`.
    kind : str
        "values", "unwritten" (elements that no kernel wrote), "guard" (memory around a tensor overwritten), "input" (an
        input changed), "raises", or "rejected" (an input that must be supported).
    device : str
        Where it failed: "cpu", "cuda:0".
    case : str
        The smallest inputs that show it: dtype, layout and shapes.
    text : str
        What is wrong, with index and values.
    also : tuple of str
        Other cases of the check that fail.
    """

    check: str
    kind: str
    device: str
    case: str
    text: str
    also: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.check}: {self.text}", f"  {self.case}"]
        if self.also:
            lines.append(f"  and with: {', '.join(self.also)}")
        return "\n".join(lines)


@dataclass
class KernelReport:
    """The results of `check_kernel`.

    Attributes
    ----------
    name : str
        The operator's name.
    passed : list of str
        Checks without a failure, such as ``"layout (cpu)"``.
    rejected : list of str
        Dtypes, layouts and sizes that the operator rejects with an error.
    left_out : dict of str to str
        Checks that were not run, with the reason.
    failures : list of Failure
        What is wrong; empty in the report that `check_kernel` returns.
    """

    name: str
    passed: list[str] = field(default_factory=list)
    rejected: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)

    def __str__(self) -> str:
        lines = []
        if self.failures:
            checks = sorted({f.check for f in self.failures})
            lines.append(f"{self.name} fails {len(checks)} of check_kernel's checks: {', '.join(checks)}")
            for i, failure in enumerate(self.failures, 1):
                lines += ["", f"{i}. " + str(failure).replace("\n", "\n   ")]
            lines.append("")
        lines.append(f"passed: {', '.join(self.passed) or 'nothing'}")
        lines += [f"rejected: {each}" for each in self.rejected]
        lines += [f"not run: {name}: {why}" for name, why in self.left_out.items()]
        return "\n".join(lines)


class KernelCheckError(AssertionError):
    """`check_kernel` found errors in an operator.

    Attributes
    ----------
    report : KernelReport
        The whole report; `failures` says what is wrong.
    """

    def __init__(self, report: KernelReport) -> None:
        super().__init__(str(report))
        self.report = report

    @property
    def failures(self) -> list[Failure]:
        """The failures, one for each check and device."""
        return self.report.failures

    def __reduce__(self) -> tuple[type[KernelCheckError], tuple[KernelReport]]:
        return type(self), (self.report,)
