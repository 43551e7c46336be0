"""How a coded program is measured against FP32 on the same pictures, by task (CONTRACT.md, the accuracy gate).

Callers: `verdict.py` on the held-back pictures, `choice.py` and `mixed.py` on calibration pictures. D(p || q) in nats
with p of FP32, probabilities clipped to [1e-7, 1 - 1e-7].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..cpu.executor import ProgramRunner
from ..ir.errors import ModelError
from ..pre.decode_blazeface import BlazefaceDecoder
from ..pre.decode_yolo import YoloDecoder
from ..pre.decoder import NonFinite, make_decoder
from ..pre.geometry import Mapping as Place
from ..pre.heat_map import MapDecoder
from ..pre.topk import TopkDecoder
from ..spec import ModelSpec
from .divergence import Levels, bernoulli_kl, box_iou, categorical_kl, same_detections
from .pictures import Source

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
    overflow: str = ""                                       # a float16 step that overflowed

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
        tally.agree += same_detections(self._rows(want), self._rows(got))

    def _rows(self, outputs: Outputs) -> Array:
        out = np.zeros((self.decoder.rows_max, 6), dtype=np.float32)
        try:
            return out[:self.decoder.decode(outputs, Place(1.0, 1.0, 0, 0), self.width, self.height, out)]
        except NonFinite:
            return out[:0]

    def figures(self, tally: Tally) -> dict[str, Any]:
        if not tally.kl:
            return {"anchors": 0, "excess": 0.0}
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
            return {"pixels": 0, "excess": 0.0}
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
    """`task.add`; outputs of the coded program that are not finite are noted as an overflow."""
    try:
        task.add(tally, want, got)
    except NonFinite as error:
        tally.overflow = tally.overflow or str(error)


def cost_of(task: Task, tally: Tally) -> float:
    """`task.cost`, OVERFLOWED where the program has no answer."""
    return OVERFLOWED if tally.overflow else task.cost(tally)


def strict(figures: Mapping[str, Any]) -> float:
    """`excess` with false alarms."""
    return float(figures.get("strict", figures["excess"]))


class Reference:
    """FP32's outputs on some pictures, kept, so that each further program costs its own runs only.

    `source` writes a picture into the input of FP32.
    """

    def __init__(self, task: Task, floats: ProgramRunner, source: Source, pictures: Sequence[Path]) -> None:
        """Raises ModelError naming the picture on which FP32 itself has no finite answer."""
        self.task = task
        self.source = source
        self.pictures = list(pictures)
        self.wanted: list[list[Array]] = []
        self._order = list(range(len(self.pictures)))
        self._perfect: Tally | None = None
        for path in pictures:
            source.writer(path)(floats.input[0])
            self.wanted.append([o[0].copy() for o in floats.run()])
            if not all(np.isfinite(output).all() for output in self.wanted[-1]):
                raise ModelError(f"{path}: the model gives NaN or infinity on this picture in FP32: train or export it "
                                 "again, or leave the picture out")

    def tally(self, coded: ProgramRunner, source: Source, give_up: bool = False) -> Tally:
        """Of all pictures, those that cost most in the last whole run first; with `give_up` only of so many until the
        limits cannot be kept any more."""
        tally = Tally()
        lost: list[tuple[float, int]] = []
        for index in self._order:
            source.writer(self.pictures[index])(coded.input[0])
            before = tally.lost()
            got = [o[0] for o in coded.run()]
            tally.overflow = tally.overflow or coded.binding.overflows.get(0, "")
            compare(self.task, tally, self.wanted[index], got)
            lost.append((before - tally.lost(), index))
            if give_up and (tally.overflow or strict(self.least(tally)) > 1):
                return tally
        self._order = [index for _, index in sorted(lost)]
        return tally

    def least(self, tally: Tally) -> dict[str, Any]:
        """Figures of all pictures if those still to come were without loss."""
        if self._perfect is None:
            self._perfect = Tally()
            for want in self.wanted:
                self.task.add(self._perfect, want, want)
        return self.task.figures(tally.completed(self._perfect))

    def cost(self, coded: ProgramRunner, source: Source) -> float:
        """`cost_of` a program of batch 1."""
        return cost_of(self.task, self.tally(coded, source))

    def measure(self, coded: ProgramRunner, source: Source, give_up: bool = False) -> dict[str, Any]:
        """Figures of the task for a program of batch 1; `excess` <= 1 is within the limits.

        `give_up`: where `strict` must be above 1, what it is at least, and `given_up`, the pictures looked at.
        """
        tally = self.tally(coded, source, give_up)
        if not tally.overflow and tally.pictures < len(self.pictures):
            least = self.least(tally)
            return {"excess": least["excess"], "strict": strict(least), "given_up": tally.pictures}
        if tally.overflow:
            return {"overflow": tally.overflow, "excess": OVERFLOWED}
        figures = self.task.figures(tally)
        return figures if np.isfinite(figures["excess"]) else figures | {"overflow": "", "excess": OVERFLOWED}
