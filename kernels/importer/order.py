"""Nodes of an ONNX file in an order in which each reads only what is made before it. Caller: `onnx_model.py`.

ONNX asks for such an order, but editors append nodes where they like and ONNX Runtime sorts. A cycle has no order.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from ..ir.errors import ModelError

NAMED = 4
"""So many nodes of a cycle are named."""


def in_order(nodes: Sequence[onnx.NodeProto], file: str) -> list[tuple[int, onnx.NodeProto]]:
    """(place in the file, node); the file's own order wherever that is one. Raises ModelError for a cycle.

    A tensor that no node makes, or that two make, is left to the builder, which names who reads or makes it.
    """
    maker = {name: i for i, node in reversed(list(enumerate(nodes))) for name in node.output if name}
    needs = [{maker[name] for name in node.input if name in maker} for node in nodes]
    if all(max(need, default=-1) < i for i, need in enumerate(needs)):
        return list(enumerate(nodes))
    placed: list[int] = []
    done: set[int] = set()
    for start in range(len(nodes)):
        waiting = [start]
        entered: dict[int, None] = {}
        while waiting:
            index = waiting[-1]
            missing = sorted(needs[index] - done)
            if index in done or not missing:
                waiting.pop()
                entered.pop(index, None)
                if index not in done:
                    done.add(index)
                    placed.append(index)
                continue
            entered[index] = None
            again = next((i for i in missing if i in entered), None)
            if again is not None:
                path = list(entered)
                path = path[path.index(again):][::-1]                # from maker to reader
                first = path.index(min(path))
                raise _cycle([nodes[i] for i in path[first:] + path[:first]], file)
            waiting.append(missing[0])
    return [(i, nodes[i]) for i in placed]


def _cycle(nodes: Sequence[onnx.NodeProto], file: str) -> ModelError:
    names = ", ".join(f"'{node.name or node.output[0]}' ({node.op_type})" for node in nodes[:NAMED])
    rest = f" and {len(nodes) - NAMED} more" if len(nodes) > NAMED else ""
    return ModelError(f"{file}: the nodes {names}{rest} feed each other in a cycle; export the model again")
