"""Handlers: which function reads which construct of CUDA C, by the kind of its node in the tree of syntax or by a name.

Each table is a decorator, too. A handler takes the `Context` first, then the node; what else is said at each table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Handlers:
    """A table of handlers by kinds or names; `arguments`: for calls with so many alone."""

    def __init__(self) -> None:
        self.known: dict[Any, Callable[..., Any]] = {}

    def __call__(self, *kinds: str, arguments: int | None = None) -> Callable[[Any], Any]:
        """Register the function below for these kinds."""

        def register(function: Any) -> Any:
            for kind in kinds:
                key = kind, arguments
                assert key not in self.known, f"{kind} has two handlers"
                self.known[key] = function
            return function

        return register

    def of(self, kind: str, arguments: int | None = None) -> Any:
        """The handler of a kind; None where there is none."""
        return (arguments is not None and self.known.get((kind, arguments))) or self.known.get((kind, None))


declarations = Handlers()  # (file, node, path) -> False where it is not followed: what a source declares at its top
statements = Handlers()  # (ctx, node)
#: (ctx, node, rest, then) -> bool: statements after which some paths do not go on. A handler reads the `rest` of the
#: block for those that do, and what comes `then`; or returns False, and the statement is read as any other.
leaving = Handlers()
expressions = Handlers()  # (ctx, node) -> Value, Pointer, or Var for an aggregate
places = Handlers()  # (ctx, node) -> Var or Cell: what can be assigned to
type_nodes = Handlers()  # (ctx, node) -> Type
callees = Handlers()  # (ctx, node, callee, arguments): calls, by the kind of what is called
#: (ctx, node, name, arguments): calls of CUDA's own functions, by name; arguments are nodes that are not read yet.
cuda_functions = Handlers()
declarators = Handlers()  # (ctx, node, `Declared`): variables, by the kind of declarator
bodies = Handlers()  # (ctx, node, name, function, arguments, ...): calls of the source's functions and lambdas
globals_ = Handlers()  # (ctx, name) -> Var: what is declared outside of functions: "dynamic" shared memory, "variable"
