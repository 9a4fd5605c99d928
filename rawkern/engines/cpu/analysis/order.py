"""The order in which waiting lanes are served: blocks numbered topologically, each loop's next to each other.

A graph is given by the successors of each block; block 0 is the entry.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from rawkern.engines.cpu.analysis.graph import closure

Targets = list[list[int]]


def running_order(targets: Targets) -> tuple[list[int], list[tuple[int, set[int]]]]:
    """The reachable blocks in running order, and their loops, outermost first, as (header, members)."""
    reachable = closure([0], lambda n: targets[n])
    order: list[int] = []
    loops: list[tuple[int, set[int]]] = []
    # an explicit stack of blocks and of loops as (members, header), which are laid out where the loop stands
    layout: list[int | tuple[set[int], int]] = [(reachable, 0)]
    while layout:
        item = layout.pop()
        if isinstance(item, int):
            order.append(item)
            continue
        nodes, entry = item
        parts: list[int | tuple[set[int], int]] = []
        for component in _in_order(targets, nodes, entry):
            if len(component) == 1 and (component == {entry} or not _self_loop(targets, component)):
                parts += component
                continue
            header = _header(targets, nodes, component)
            loops.append((header, component))
            parts += [(component, header)] if len(component) > 1 else list(component)
        layout += reversed(parts)
    return order, loops


def _self_loop(targets: Targets, component: set[int]) -> bool:
    (only,) = component
    return only in targets[only]


def _header(targets: Targets, nodes: set[int], component: set[int]) -> int:
    entered = [t for n in nodes - component for t in targets[n] if t in component]
    return min(entered) if entered else min(component)


def _in_order(targets: Targets, nodes: set[int], entry: int) -> list[set[int]]:
    """Strongly connected components of `nodes` without edges back to `entry`: in topological, then text order."""
    edges = {n: [t for t in targets[n] if t in nodes and t != entry] for n in nodes}
    components = _components(edges)
    component_of = {n: i for i, members in enumerate(components) for n in members}
    waiting = [0] * len(components)
    followers: list[set[int]] = [set() for _ in components]
    for n in nodes:
        for t in edges[n]:
            a, b = component_of[n], component_of[t]
            if a != b and b not in followers[a]:
                followers[a].add(b)
                waiting[b] += 1
    ready = [(min(c), i) for i, c in enumerate(components) if waiting[i] == 0 and i != component_of[entry]]
    heapq.heapify(ready)
    result: list[set[int]] = []
    current = component_of[entry]
    while True:
        result.append(components[current])
        for f in followers[current]:
            waiting[f] -= 1
            if waiting[f] == 0:
                heapq.heappush(ready, (min(components[f]), f))
        if not ready:
            return result
        current = heapq.heappop(ready)[1]


def _components(edges: dict[int, list[int]]) -> list[set[int]]:
    """Strongly connected components (Tarjan's algorithm with a stack of its own, as kernels may be long)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    on_stack: set[int] = set()
    stack: list[int] = []
    components: list[set[int]] = []
    for root in sorted(edges):
        if root in index:
            continue
        calls: list[tuple[int, Iterator[int]]] = [(root, iter(edges[root]))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while calls:
            node, successors = calls[-1]
            for t in successors:
                if t not in index:
                    index[t] = low[t] = len(index)
                    stack.append(t)
                    on_stack.add(t)
                    calls.append((t, iter(edges[t])))
                    break
                if t in on_stack:
                    low[node] = min(low[node], index[t])
            else:
                calls.pop()
                if calls:
                    low[calls[-1][0]] = min(low[calls[-1][0]], low[node])
                if low[node] == index[node]:
                    members: set[int] = set()
                    while node not in members:
                        members.add(stack.pop())
                    on_stack -= members
                    components.append(members)
    return components
