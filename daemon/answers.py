"""An engine's float32 rows as what a result says: objects, classes or a tensor. Main's hot path, once a frame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

UNNAMED = "class {}"


@dataclass(frozen=True, slots=True)
class Labels:
    """How a model's rows are to be read: its task, label by class index, shape of its tensor (task `tensor` only)."""

    task: str
    names: tuple[str, ...]
    tensor_shape: tuple[int, ...] = ()

    def name(self, index: int) -> str:
        return self.names[index] if 0 <= index < len(self.names) else UNNAMED.format(index)


def describe(labels: Labels, rows: NDArray[np.float32]) -> dict[str, Any]:
    """Keyword arguments for `build_result`.

    rows: detect (N, 6) x1, y1, x2, y2, score, class; classify (K, 2) class, score; tensor: flat. Raises ValueError for
    rows that are not finite (the engine checks too; this is what `ok` stands on) or do not make up the tensor.
    """
    if not np.isfinite(rows).all():
        raise ValueError("a number in it is not finite")
    if labels.task == "detect":
        objects = [
            {
                "label": labels.name(int(r[5])),
                "score": round(r[4], 4),
                "box": [round(r[0], 2), round(r[1], 2), round(r[2], 2), round(r[3], 2)],
            }
            for r in rows.tolist()
        ]
        return {"objects": objects, "boxes": rows}
    if labels.task == "classify":
        return {"classes": [{"label": labels.name(int(r[0])), "score": round(r[1], 4)} for r in rows.tolist()]}
    return {"tensor": rows.reshape(labels.tensor_shape)}
