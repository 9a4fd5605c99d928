"""What an operator is: parameters, outputs and what is saved, read from a function's type hints."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rawkern.base import generated
from rawkern.base.forking import cached_property

_KINDS = {"Tensor": "tensor", "Tensor?": "optional", "Tensor[]": "list"}
_RESERVED = ("saved_tensors", "needs_input_grad", "shapes")


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter of an operator.

    Attributes
    ----------
    kind : str
        "tensor", "optional" (a tensor or None), "list" (of tensors), or "value" for all other types.
    type : str
        As the schema spells it, without the mark of mutation.
    """

    name: str
    kind: str
    type: str
    mutated: bool
    keyword_only: bool

    @property
    def is_tensor(self) -> bool:
        """Whether it stands for tensors."""
        return self.kind != "value"


@dataclass(frozen=True)
class Declaration:
    """An operator without its code.

    Attributes
    ----------
    outputs : tuple of str
        Names of the visible outputs; for an in-place operator those of the arguments it changes.
    hidden : tuple of str
        Names of the outputs that the public callable drops.
    save : tuple of str
        Parameters and outputs that the backward gets.
    save_for : dict
        For some of them the parameters one of which has to require grad, or it is not saved.
    in_place : bool
        Whether the function returns nothing and its results are the arguments it changes.
    single : bool
        Whether there is one visible output, and it is not a tuple.
    boxed : bool
        Whether the function returns its one tensor in a tuple; the operator returns that alone.
    elementwise, strided, autocast
        As for `rawkern.op`.
    of_formula : bool
        Whether it was made from an elementwise expression.
    derived : bool
        Whether its backward is derived from the kernels that it launches.
    """

    namespace: str
    name: str
    schema: str
    signature: inspect.Signature
    params: tuple[Param, ...]
    outputs: tuple[str, ...]
    hidden: tuple[str, ...]
    save: tuple[str, ...]
    in_place: bool
    single: bool
    boxed: bool
    save_for: dict[str, tuple[str, ...]]
    elementwise: bool
    strided: bool
    autocast: torch.dtype | str | Mapping[str, torch.dtype | str] | None
    of_formula: bool = False
    derived: bool = False

    @property
    def qualified(self) -> str:
        """ "ns::name"."""
        return f"{self.namespace}::{self.name}"

    @property
    def finished(self) -> bool:
        """Whether its caller cannot extend it: it is built in, or made from an elementwise expression."""
        return self.of_formula or self.namespace == "rawkern"

    @property
    def keeps_launches(self) -> bool:
        """Whether what its function does is told by layouts and values alone, as of all that are built in."""
        other = self.of_formula or self.mutated or self.has_lists or self.boxed or self.derived
        return self.namespace == "rawkern" and not (other or any(p.keyword_only for p in self.params))

    @property
    def returned(self) -> tuple[str, ...]:
        """Names of what the operator returns by its schema."""
        return self.hidden if self.in_place else self.outputs + self.hidden

    @cached_property
    def tensors(self) -> tuple[Param, ...]:
        """The parameters that stand for tensors."""
        return tuple(p for p in self.params if p.is_tensor)

    @cached_property
    def values(self) -> tuple[Param, ...]:
        """The parameters that are not tensors."""
        return tuple(p for p in self.params if not p.is_tensor)

    @cached_property
    def plain_tensors(self) -> tuple[int, ...] | None:
        """The places of the tensors among the parameters; None if some are optional or lists."""
        if any(p.kind in ("optional", "list") for p in self.params):
            return None
        return tuple(i for i, p in enumerate(self.params) if p.is_tensor)

    @cached_property
    def described(self) -> tuple[Param, ...]:
        """The tensors whose shapes and dtypes autograd has to keep, since they are not saved."""
        return tuple(p for p in self.tensors if self.has_lists or not self.keeps(p))

    def keeps(self, param: Param) -> bool:
        """Whether a tensor is always saved."""
        return param.name in self.save and param.name not in self.save_for

    @cached_property
    def mutated(self) -> tuple[Param, ...]:
        """The parameters that are written to."""
        return tuple(p for p in self.params if p.mutated)

    @cached_property
    def has_lists(self) -> bool:
        """Whether a parameter is a list of tensors."""
        return any(p.kind == "list" for p in self.params)

    def param(self, name: str) -> Param | None:
        """The parameter of a name."""
        return next((p for p in self.params if p.name == name), None)

    @cached_property
    def parameters(self) -> str:
        """The parameters as Python code, with defaults ``dN``."""
        parts, star = [], False
        for i, p in enumerate(self.signature.parameters.values()):
            if p.kind is p.KEYWORD_ONLY and not star:
                parts.append("*")
                star = True
            parts.append(p.name if p.default is p.empty else f"{p.name}=d{i}")
        return ", ".join(parts)

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """What the names ``dN`` stand for."""
        return {f"d{i}": p.default for i, p in enumerate(self.signature.parameters.values())}

    @cached_property
    def arrange(self) -> Callable[..., tuple[Any, ...]]:
        """``f(*args, **kwargs)`` as the operator takes them, to all arguments in order, with the defaults."""
        names = ", ".join(p.name for p in self.params)
        text = f"def arrange({self.parameters}):\n    return ({names},)\n"
        return generated.run(text, f"<rawkern arguments {self.qualified}>", dict(self.defaults))["arrange"]

    def call(self, function: Callable[..., Any], args: Sequence[Any]) -> Any:
        """Call with all arguments in order, of which some go by name."""
        keyword = {p.name: a for p, a in zip(self.params, args, strict=True) if p.keyword_only}
        return function(*args[: len(args) - len(keyword)], **keyword)

    def flat(self, args: Sequence[Any]) -> list[Any]:
        """All tensors, and None for optional ones that are not given; items of lists among the others."""
        found: list[Any] = []
        for p, value in zip(self.params, args, strict=True):
            if p.is_tensor:
                found += value if p.kind == "list" else [value]
        return found


def declare(
    function: Callable[..., Any],
    qualified: str,
    save: Sequence[str] | Mapping[str, Sequence[str]] | None,
    mutates_args: Sequence[str],
    hidden: Sequence[str],
    **kind: Any,
) -> Declaration:
    """Read the declaration off a function's type hints; `kind` is the rest of what `rawkern.op` is told.

    Raises
    ------
    TypeError, ValueError
        The name, the type hints or the names given do not make an operator.
    """
    namespace, _, name = qualified.partition("::")
    if not (namespace.isidentifier() and name.isidentifier()):
        raise ValueError(f"{qualified!r} is not an operator name; write 'namespace::name'")
    mutates_args, hidden = _names(qualified, "mutates_args", mutates_args), _names(qualified, "hidden", hidden)
    try:
        schema = torch.library.infer_schema(function, mutates_args=mutates_args, op_name=name)
    except (ValueError, AssertionError) as error:
        raise TypeError(f"{qualified}: its type hints do not form a schema: {error}") from None
    signature = inspect.signature(function)
    params = _params(schema, signature)
    for p in params:
        if p.name in _RESERVED:
            raise ValueError(f"{qualified}: a parameter cannot be called {p.name}, which means something else on ctx")
        if "Tensor" in p.type and p.kind == "value":
            raise TypeError(f"{qualified}: parameter {p.name} is {p.type}; use Tensor, Tensor | None or list[Tensor]")
    boxed = schema.endswith(" -> ((Tensor))")
    schema = schema.replace(" -> ((Tensor))", " -> Tensor") if boxed else schema
    returns = _returns(qualified, schema)
    if not any(p.is_tensor for p in params) or any(p.is_tensor and p.keyword_only for p in params):
        raise TypeError(f"{qualified}: an operator needs a tensor parameter, and its tensors must not be keyword-only")
    in_place = returns == len(hidden) and bool(mutates_args)
    visible = returns - len(hidden)
    if visible < 0 or not (visible or in_place):
        raise ValueError(
            f"{qualified} returns {returns} tensors, {len(hidden)} of them hidden; at least one is visible"
        )
    single = visible == 1 and not boxed if not in_place else len(mutates_args) == 1
    taken = {p.name for p in params}.union(hidden)
    outputs = tuple(p.name for p in params if p.mutated) if in_place else output_names(visible, taken)
    new = hidden if in_place else outputs + hidden
    if both := {p.name for p in params}.intersection(hidden):
        raise ValueError(f"{qualified}: a parameter and a hidden output are called {both.pop()}; rename one of them")
    known = {p.name for p in params if p.is_tensor} | set(new)
    names = tuple(p.name for p in params if p.is_tensor) if save is None else save
    saved = _names(qualified, "save", names)  # type: ignore[arg-type]
    for each in saved:
        if each not in known:
            raise ValueError(
                f"{qualified}: save names {each!r}, which is not one of the tensors {', '.join(sorted(known))}"
            )
    save_for = {}
    if isinstance(save, Mapping):
        plain = {p.name for p in params if p.kind in ("tensor", "optional")}
        save_for = {name: _names(qualified, f"save[{name!r}]", needed) for name, needed in save.items()}
        for each, needed in save_for.items():
            if any(p.kind == "list" and p.name == each for p in params) or not needed or not plain.issuperset(needed):
                raise ValueError(f"{qualified}: save[{each!r}] is {needed}; it names one or more tensor parameters")
    return Declaration(
        namespace,
        name,
        schema,
        signature,
        params,
        outputs,
        hidden,
        saved,
        in_place,
        single,
        boxed,
        save_for,
        of_formula=getattr(function, "of_formula", False),
        **kind,
    )


def output_names(count: int, taken: Collection[str]) -> tuple[str, ...]:
    """What an operator's outputs are called: out, or out0, out1 ...; with underscores where those are taken."""
    names = ["out"] if count == 1 else [f"out{i}" for i in range(count)]
    while not set(names).isdisjoint(taken):
        names = [f"{name}_" for name in names]
    return tuple(names)


def _names(qualified: str, what: str, names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, str):
        raise TypeError(f"{qualified}: {what} is the string {names!r}; pass a tuple of names")
    if len(set(names)) != len(tuple(names)):
        raise ValueError(f"{qualified}: {what} has a name twice: {', '.join(names)}")
    return tuple(names)


def _params(schema: str, signature: inspect.Signature) -> tuple[Param, ...]:
    """The parameters, with their types as the schema spells them."""
    text, at, params = re.sub(r'"[^"]*"', '""', schema), schema.index("("), []
    for name, param in signature.parameters.items():
        found = re.compile(rf"[( ](\S+) {name}(?=[=,)])").search(text, at)
        assert found is not None
        at = found.end()
        spelled = re.sub(r"\(\w+!\)", "", found[1])
        keyword_only = param.kind is inspect.Parameter.KEYWORD_ONLY
        params.append(Param(name, _KINDS.get(spelled, "value"), spelled, spelled != found[1], keyword_only))
    return tuple(params)


def _returns(qualified: str, schema: str) -> int:
    text = schema.rpartition(" -> ")[2].strip("()")
    parts = text.split(", ") if text else []
    for part in parts:
        if part != "Tensor":
            raise TypeError(
                f"{qualified} returns {part}; an operator returns tensors: Tensor, tuple[Tensor, ...] or None"
            )
    return len(parts)
