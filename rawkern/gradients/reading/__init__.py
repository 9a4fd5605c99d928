"""CUDA C to the IR of gradients, for one shape of launches.

`reader` reads a kernel, again where that turns out to be needed; `lower` is one reading. It goes through the tree of
syntax with a `Context` (`context`): the scopes, the types, the block of the IR that is under construction, and what is
known there. What stands where is read by handlers, each a function with a decorator that says for which construct it
is (`handlers` has the tables): statements, expressions and places by the kind of their node, calls by the kind of what
is called, CUDA's own functions by their name, declarations by the kind of the declarator, types by that of their node.

To support one more construct, write one function, in the module of its kin, for example::

    @expressions("comma_expression")
    def comma_expression(ctx: Context, node: Any) -> Any:
        *before, last = named(node)
        for each in before:
            effect(ctx, each)
        return ctx.expression(last)

or for a function of CUDA, whose arguments are read already with `of_values`::

    @of_values("__saturatef", arguments=1)
    def saturate(ctx: Context, node: Any, name: str, value: Any) -> Value: ...

A handler reads the parts of its node through the context (`ctx.expression`, `ctx.scalar`, `ctx.place`, `ctx.statement`,
`ctx.type_of`), so that it need not know who reads them; what it makes are values (`ctx.value`, `values.binary`), reads
and stores (`memory.read`, `memory.write`), branches (`branching.branch`). What it cannot be certain of it rejects:
``raise ctx.refuse(node, reason, way_out)``.
"""
