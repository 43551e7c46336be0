"""How a coded program is measured against FP32 on the same pictures, by task (CONTRACT.md, the accuracy gate).

Callers: `reference.py` for a set of pictures, `choice.py` and `ranking.py` picture by picture. D(p || q) in nats with p
of FP32, probabilities clipped to [1e-7, 1 - 1e-7]. Invariant: an output that is not finite never becomes a figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..cpu.executor import ProgramRunner
from ..pre.decode_blazeface import BlazefaceDecoder
from ..pre.decode_yolo import YoloDecoder
from ..pre.decoder import NonFinite, make_decoder
from ..pre.geometry import Mapping as Place
from ..pre.heat_map import MapDecoder
from ..pre.topk import TopkDecoder
from ..spec import ModelSpec
from .divergence import Levels, bernoulli_kl, box_iou, categorical_kl, same_detections

Array = npt.NDArray[Any]
Outputs = Sequence[Array]

LEAST_IOU = 0.97
LEAST_SQNR_DB = 25.0
OVERFLOWED = 1e9
"""`excess` of a program with a float16 step that overflows, or without a finite figure."""
SCORE = 0.25
MAP_SCORE = 0.1


@dataclass
class Tally:
    """What pictures so far have shown; one number an anchor (detect), picture (classify) or output; sums of pixels."""

    kl: list[float] = field(default_factory=list)
    pixel_kl: Levels = field(default_factory=Levels)
    iou: list[float] = field(default_factory=list)
    signal: dict[int, float] = field(default_factory=dict)
    noise: dict[int, float] = field(default_factory=dict)
    pictures: int = 0
    agree: int = 0                                           # pictures (map: pixels in both masks)
    either: int = 0                                          # pixels in one mask or both
    alarms: int = 0                                          # anchors or pixels that count in the coded program alone
    alarm_kl: float = 0.0                                    # the sum of their divergences
    overflow: str = ""                                       # why there is no answer: float16 overflowed, NaN, ...

    def compare(self, output: int, want: Array, got: Array) -> None:
        """Adds to the signal and noise of an output."""
        self.signal[output] = self.signal.get(output, 0.0) + float((want.astype(np.float64) ** 2).sum())
        self.noise[output] = self.noise.get(output, 0.0) + float(((want.astype(np.float64) - got) ** 2).sum())

    def lost(self) -> float:
        """Grows with every picture by what it cost; to compare pictures of one task by."""
        seen = sum(self.kl) + self.pixel_kl.total + self.alarm_kl
        return seen + sum(1 - iou for iou in self.iou) + sum(self.noise.values())

    def completed(self, perfect: Tally) -> Tally:
        """As if all other pictures were without loss; `perfect` is FP32 compared with itself on all of them."""
        return replace(perfect, kl=self.kl + [0.0] * (len(perfect.kl) - len(self.kl)),
                       pixel_kl=replace(self.pixel_kl, count=perfect.pixel_kl.count), alarm_kl=self.alarm_kl,
                       iou=self.iou + [1.0] * (len(perfect.iou) - len(self.iou)), noise=self.noise)

    def least_sqnr_db(self) -> float:
        """Of the output that lost most."""
        return min(10 * float(np.log10(max(self.signal[i], 1e-30) / max(self.noise[i], 1e-30))) for i in self.signal)


class Task(Protocol):
    """How a task is measured: `add` one frame's outputs of FP32 and of the coded program, `figures` at the end.

    Figures hold `excess`: how far from the limits, 1.0 being just met, and where a coded program can see what FP32 does
    not, `strict`: the same with the divergence of those false alarms, which the gate leaves out and which layers are
    chosen by. `cost` is smooth, to compare two programs by: each figure as a part of its limit, added up.
    """

    def add(self, tally: Tally, want: Outputs, got: Outputs) -> None: ...
    def figures(self, tally: Tally) -> dict[str, Any]: ...
    def cost(self, tally: Tally) -> float: ...


class Classify:
    def __init__(self, decoder: TopkDecoder, max_kl: float) -> None:
        self.decoder, self.max_kl = decoder, max_kl

    def add(self, tally: Tally, want: Outputs, got: Outputs) -> None:
        p, q = self.decoder.probabilities(want), self.decoder.probabilities(got)
        tally.kl.append(categorical_kl(p, q))
        tally.pictures += 1
        tally.agree += int(p.argmax() == q.argmax())

    def figures(self, tally: Tally) -> dict[str, Any]:
        mean = float(np.mean(tally.kl))
        return {"kl_mean": mean, "kl_p99": float(np.percentile(tally.kl, 99)), "limit_kl": self.max_kl,
                "excess": mean / self.max_kl, "agreement": tally.agree / tally.pictures}

    def cost(self, tally: Tally) -> float:
        return float(np.mean(tally.kl)) / self.max_kl


class Detect:
    def __init__(self, decoder: YoloDecoder | BlazefaceDecoder, width: int, height: int, max_kl: float) -> None:
        self.decoder, self.width, self.height, self.max_kl = decoder, width, height, max_kl

    def add(self, tally: Tally, want: Outputs, got: Outputs) -> None:
        (boxes, p), (other, q) = self.decoder.anchors(want), self.decoder.anchors(got)
        counted = p.max(1) >= SCORE
        alarm = (q.max(1) >= SCORE) & ~counted
        tally.alarms += int(alarm.sum())
        tally.alarm_kl += float(bernoulli_kl(p[alarm], q[alarm]).sum())
        tally.kl += bernoulli_kl(p[counted], q[counted]).sum(1).tolist()
        tally.iou += box_iou(boxes[counted], other[counted]).tolist()
        tally.pictures += 1
        tally.agree += self._agree(want, got)

    def _agree(self, want: Outputs, got: Outputs) -> bool:
        """False where FP32 has no answer. Raises NonFinite where `got` alone has none: that is not "no objects"."""
        try:
            rows = self._rows(want)
        except NonFinite:
            return False
        return same_detections(rows, self._rows(got))

    def _rows(self, outputs: Outputs) -> Array:
        out = np.zeros((self.decoder.rows_max, 6), dtype=np.float32)
        return out[:self.decoder.decode(outputs, Place(1.0, 1.0, 0, 0), self.width, self.height, out)]

    def figures(self, tally: Tally) -> dict[str, Any]:
        if not tally.kl:
            return {"anchors": 0, "false_alarms": tally.alarms, "excess": 0.0}
        mean, iou = float(np.mean(tally.kl)), float(np.mean(tally.iou))
        return {"anchors": len(tally.kl), "kl_mean": mean, "kl_p99": float(np.percentile(tally.kl, 99)),
                "limit_kl": self.max_kl, "iou_mean": iou, "least_iou": LEAST_IOU,
                "agreement": tally.agree / tally.pictures, "false_alarms": tally.alarms,
                "excess": max(mean / self.max_kl, (1 - iou) / (1 - LEAST_IOU)),
                "strict": max(self._kl(tally) / self.max_kl, (1 - iou) / (1 - LEAST_IOU))}

    def _kl(self, tally: Tally) -> float:
        """Mean divergence with the false alarms."""
        return (sum(tally.kl) + tally.alarm_kl) / len(tally.kl)

    def cost(self, tally: Tally) -> float:
        if not tally.kl:
            return 0.0
        return float(self._kl(tally) / self.max_kl + (1 - np.mean(tally.iou)) / (1 - LEAST_IOU))


class HeatMap:
    """Every pixel of the map where FP32 has at least MAP_SCORE; the other outputs' SQNR is told, without a limit."""

    def __init__(self, decoder: MapDecoder, max_kl: float) -> None:
        self.decoder, self.max_kl = decoder, max_kl

    def add(self, tally: Tally, want: Outputs, got: Outputs) -> None:
        p, q = self.decoder.probabilities(want), self.decoder.probabilities(got, checked=False)
        counted = p >= MAP_SCORE
        tally.pixel_kl.add(bernoulli_kl(p[counted], q[counted]))
        alarm = (q >= MAP_SCORE) & ~counted
        tally.alarms += int(alarm.sum())
        tally.alarm_kl += float(bernoulli_kl(p[alarm], q[alarm]).sum())
        mask, other = p >= self.decoder.score_threshold, q >= self.decoder.score_threshold
        tally.pictures += 1
        tally.agree += int((mask & other).sum())
        tally.either += int((mask | other).sum())
        for i, (a, b) in enumerate(zip(want, got, strict=True)):
            if i != self.decoder.output:
                tally.compare(i, a, b)

    def figures(self, tally: Tally) -> dict[str, Any]:
        seen = tally.pixel_kl
        if not seen.count:
            return {"pixels": 0, "false_alarms": tally.alarms, "excess": 0.0}
        mean = seen.total / seen.count
        figures = {"pixels": seen.count, "kl_mean": mean, "kl_p99": seen.above(0.01),
                   "limit_kl": self.max_kl, "excess": mean / self.max_kl, "mask_score": self.decoder.score_threshold,
                   "false_alarms": tally.alarms, "strict": self.cost(tally),
                   "agreement": tally.agree / tally.either if tally.either else 1.0}
        return figures | ({"others_sqnr_db": tally.least_sqnr_db()} if tally.signal else {})

    def cost(self, tally: Tally) -> float:
        return (tally.pixel_kl.total + tally.alarm_kl) / max(tally.pixel_kl.count, 1) / self.max_kl


class Regress:
    """Tasks `regress` and `tensor`: the SQNR of each output, the least of which counts."""

    def add(self, tally: Tally, want: Outputs, got: Outputs) -> None:
        tally.pictures += 1
        for i, (a, b) in enumerate(zip(want, got, strict=True)):
            tally.compare(i, a, b)

    def figures(self, tally: Tally) -> dict[str, Any]:
        least = tally.least_sqnr_db()
        return {"sqnr_db": least, "least_sqnr_db": LEAST_SQNR_DB, "excess": 10 ** ((LEAST_SQNR_DB - least) / 10)}

    def cost(self, tally: Tally) -> float:
        return float(self.figures(tally)["excess"])


def make_task(spec: ModelSpec, floats: ProgramRunner, max_kl: float) -> Task:
    """The measure of the spec's task, for outputs as `floats` gives them. Raises DecoderError where they do not fit."""
    chosen = replace(spec, decoder=replace(spec.decoder, score_threshold=SCORE)) if spec.task == "detect" else spec
    shape = floats.program.tensors[floats.program.inputs[0]].shape
    decoder = make_decoder(chosen, [o.shape[1:] for o in floats.outputs], shape)
    if isinstance(decoder, TopkDecoder):
        return Classify(decoder, max_kl)
    if isinstance(decoder, YoloDecoder | BlazefaceDecoder):
        return Detect(decoder, shape[1], shape[0], max_kl)
    if isinstance(decoder, MapDecoder):
        return HeatMap(decoder, max_kl)
    return Regress()


def compare(task: Task, tally: Tally, want: Outputs, got: Outputs) -> None:
    """`task.add`; where an output of the coded program is not finite, or no answer, that is noted as an overflow."""
    for number, output in enumerate(got):
        if not np.isfinite(output).all():
            tally.overflow = tally.overflow or f"output {number} is not finite"
            return
    try:
        task.add(tally, want, got)
    except NonFinite as error:
        tally.overflow = tally.overflow or str(error)


def cost_of(task: Task, tally: Tally) -> float:
    """`task.cost`, OVERFLOWED where the program has no answer."""
    return OVERFLOWED if tally.overflow else task.cost(tally)


def excess(figures: Mapping[str, Any]) -> float:
    """How far from the limits of CONTRACT.md: 1.0 is just met."""
    return float(figures["excess"])


def strict(figures: Mapping[str, Any]) -> float:
    """`excess` with false alarms."""
    return float(figures.get("strict", figures["excess"]))
