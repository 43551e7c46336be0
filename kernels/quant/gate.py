"""The accuracy gate of CONTRACT.md: INT8 against FP32 on the held-back pictures, by task. Caller: `build.py`.

D(p || q) in nats with p of FP32, probabilities clipped to [1e-7, 1 - 1e-7]. Only measures: who builds decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..cpu.executor import ProgramRunner
from ..pre.decode_blazeface import BlazefaceDecoder
from ..pre.decode_yolo import YoloDecoder
from ..pre.decoder import make_decoder
from ..pre.geometry import Mapping
from ..pre.topk import TopkDecoder
from ..spec import ModelSpec
from .pictures import Source

Array = npt.NDArray[Any]
Pair = tuple[list[Array], list[Array]]

LIMIT_KL = 0.03
LEAST_IOU = 0.97
SCORE = 0.25
LEAST_ANCHORS = 50
WARN_BELOW, NO_GATE_BELOW = 64, 16
CLIP = 1e-7


def clipped(p: Array) -> npt.NDArray[np.float64]:
    return np.clip(p.astype(np.float64), CLIP, 1 - CLIP)


def bernoulli_kl(p: Array, q: Array) -> npt.NDArray[np.float64]:
    """Element by element, nats."""
    a, b = clipped(p), clipped(q)
    return np.asarray(a * np.log(a / b) + (1 - a) * np.log((1 - a) / (1 - b)))


def categorical_kl(p: Array, q: Array) -> float:
    a, b = clipped(p), clipped(q)
    return float((a * np.log(a / b)).sum())


def box_iou(a: Array, b: Array) -> npt.NDArray[np.float64]:
    """Row by row, of corners (n, 4)."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    side = np.maximum(np.minimum(x[:, 2:], y[:, 2:]) - np.maximum(x[:, :2], y[:, :2]), 0)
    inner = side[:, 0] * side[:, 1]
    area_x, area_y = ((v[:, 2:] - v[:, :2]).clip(0).prod(1) for v in (x, y))
    return np.asarray(inner / np.maximum(area_x + area_y - inner, 1e-12))


def same_detections(a: Array, b: Array) -> bool:
    """Same count, and every row of `a` has its own row of `b` with the same class and IoU >= 0.9."""
    if len(a) != len(b):
        return False
    free = list(range(len(b)))
    for row in a:
        fits = [i for i in free if b[i, 5] == row[5] and box_iou(row[None, :4], b[i][None, :4])[0] >= 0.9]
        if not fits:
            return False
        free.remove(fits[0])
    return True


def measure_gate(spec: ModelSpec, floats: ProgramRunner, integers: ProgramRunner, float_source: Source,
                 integer_source: Source, held: Sequence[Path], warnings: list[str]) -> dict[str, Any]:
    """Figures for tasks detect and classify, {} for tensor. Adds to `warnings` what a person must know."""
    if spec.task == "tensor" or not held:
        if spec.task != "tensor":
            warnings.append("no pictures are held back: the accuracy of INT8 was not measured; give at least 64")
        return {}
    shapes = [o.shape[1:] for o in floats.outputs]
    chosen = replace(spec, decoder=replace(spec.decoder, score_threshold=SCORE))
    decoder = make_decoder(chosen, shapes, floats.program.tensors[floats.program.inputs[0]].shape)

    def pairs() -> Iterator[Pair]:
        for path in held:
            float_source.writer(path)(floats.input[0])
            integer_source.writer(path)(integers.input[0])
            yield [o[0].copy() for o in floats.run()], [o[0].copy() for o in integers.run()]
    if isinstance(decoder, TopkDecoder):
        figures = _classify(decoder.probabilities, pairs())
    elif isinstance(decoder, YoloDecoder | BlazefaceDecoder):
        height, width, _ = floats.program.tensors[floats.program.inputs[0]].shape
        figures = _detect(decoder, pairs(), width, height)
    else:
        return {}
    if "error" in figures:
        warnings.append(f"the accuracy of INT8 was not measured: {figures['error']}")
    figures |= {"task": spec.task, "pictures": len(held), "limit_kl": LIMIT_KL, "is_gate": len(held) >= NO_GATE_BELOW}
    if len(held) < NO_GATE_BELOW:
        warnings.append(f"only {len(held)} pictures are held back: the figures are not a gate (16 are needed, 64 are "
                        "better)")
    elif len(held) < WARN_BELOW:
        warnings.append(f"only {len(held)} pictures are held back: the gate is weak below {WARN_BELOW}")
    if figures.get("met") is False:
        warnings.append("INT8 does not meet the accuracy gate: look at the SQNR by layer, or build with "
                        "--precision fp32")
    return figures


def _classify(probabilities: Callable[[Sequence[Array]], Array], pairs: Iterator[Pair]) -> dict[str, Any]:
    divergence, agree = [], 0
    for want, got in pairs:
        p, q = probabilities(want), probabilities(got)
        divergence.append(categorical_kl(p, q))
        agree += int(p.argmax() == q.argmax())
    mean = float(np.mean(divergence))
    return {"kl_mean": mean, "kl_p99": float(np.percentile(divergence, 99)), "agreement": agree / len(divergence),
            "met": mean <= LIMIT_KL}


def _detect(decoder: YoloDecoder | BlazefaceDecoder, pairs: Iterator[Pair], width: int,
            height: int) -> dict[str, Any]:
    divergence: list[Array] = []
    overlap: list[Array] = []
    agree, count = 0, 0
    plain = Mapping(1.0, 1.0, 0, 0)
    for want, got in pairs:
        (boxes, p), (other, q) = decoder.anchors(want), decoder.anchors(got)
        counted = p.max(1) >= SCORE
        divergence.append(bernoulli_kl(p[counted], q[counted]).sum(1))
        overlap.append(box_iou(boxes[counted], other[counted]))
        rows = []
        for outputs in (want, got):
            out = np.zeros((decoder.rows_max, 6), dtype=np.float32)
            rows.append(out[:decoder.decode(outputs, plain, width, height, out)])
        agree += same_detections(*rows)
        count += 1
    kl, iou = np.concatenate(divergence), np.concatenate(overlap)
    if len(kl) < LEAST_ANCHORS:
        return {"error": f"not enough objects: {len(kl)} anchors above score {SCORE}, {LEAST_ANCHORS} are needed",
                "anchors": len(kl), "agreement": agree / count}
    mean, mean_iou = float(kl.mean()), float(iou.mean())
    return {"anchors": len(kl), "kl_mean": mean, "kl_p99": float(np.percentile(kl, 99)), "iou_mean": mean_iou,
            "least_iou": LEAST_IOU, "agreement": agree / count, "met": mean <= LIMIT_KL and mean_iou >= LEAST_IOU}
