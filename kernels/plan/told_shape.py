"""What kind of value each key of a plan's report and provenance has, wherever in them it stands.

Caller: `told.py`. A plan may come from other hands: a text where a number belongs is the plan's fault and is said with
its place. Keys that are not listed are shown as they are, and computed with by nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

Kind = tuple[Callable[[Any], bool], str]
LARGEST = 1e18
"""What is counted or measured stays below; far above, arithmetic on it would overflow."""


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= LARGEST


def _number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= LARGEST


def _decibel(value: Any) -> bool:
    return _number(value) and abs(value) <= 1e4


def _measure(value: Any) -> bool:
    return _number(value) and value >= 0


def _above_zero(value: Any) -> bool:
    return _number(value) and value > 0


def _object(value: Any) -> bool:
    return isinstance(value, dict)


def _list_of(one: Callable[[Any], bool], least: int = 0) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and len(value) >= least and all(map(one, value))


def _by_name(one: Callable[[Any], bool], name: Callable[[str], bool] = _text,
             least: int = 0) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and len(value) >= least and all(
        name(key) and one(each) for key, each in value.items())


def _or_null(one: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or one(value)


def _keys(names: str, kind: Callable[[Any], bool], words: str) -> Iterable[tuple[str, Kind]]:
    return ((name, (kind, words)) for name in names.split())


KINDS: Mapping[str, Kind] = dict([
    *_keys("precision name step op bound tile task what why board mode model model_sha256 orind method dtype error",
           _text, "a text"),
    *_keys("exact measured changed is_gate quantised_by_file critical loss_accepted", _flag, "true or false"),
    *_keys("met", _or_null(_flag), "true, false or null"),
    *_keys("nodes_before nodes_after nodes steps weight_bytes macs bytes bins pictures pictures_given "
           "looks anchors false_alarms sms batch stream streams golden_seed missed", _count, "a whole number"),
    *_keys("kernels peak_bytes", _or_null(_count), "a whole number or null"),
    *_keys("sqnr_db", _or_null(_decibel), "a number of decibel or null"),
    *_keys("least_sqnr_db", _decibel, "a number of decibel"),
    *_keys("cost share", _or_null(_number), "a number or null"),              # below 0: nearer to FP32 by its rounding
    *_keys("kl_share", _or_null(_measure), "a number from 0 on or null"),
    *_keys("kl_mean kl_p99 excess strict us low_us high_us makespan_us launch_us start_us earliest_us latest_finish_us "
           "macs_fp16 gpu_mhz dram_gb_s", _measure, "a number from 0 on"),
    *_keys("limit_kl scale", _above_zero, "a number above 0"),
    *_keys("iou_mean agreement", _measure, "a number from 0 on"),
    *_keys("least_iou", lambda value: _measure(value) and value < 1, "a number from 0 to below 1"),
    *_keys("calibration mixed gate ranking passes band input int8 fp16", _object, "an object"),
    *_keys("device", _or_null(_object), "an object or null"),
    *_keys("layers predicted", _list_of(_object), "a list of objects"),
    *_keys("rows", _list_of(_object, 1), "a list of objects, not empty"),
    *_keys("warnings", _list_of(_text), "a list of texts"),
    *_keys("shape waits", _list_of(_count), "a list of whole numbers"),
    *_keys("l2_bytes_per_clock dram_share", _list_of(_measure, 2), "two numbers"),
    *_keys("arena_bytes", _by_name(_count, str.isdecimal, 1), "bytes by batch size"),
    *_keys("shapes", _by_name(_list_of(_count, 1)), "sizes by input"),
    *_keys("tensors_that_left", _by_name(_text), "texts by tensor"),
])


def first_fault(value: Any, place: str) -> str | None:
    """`place.key must be ...` for the first value below `value` that is of another kind; None where there is none."""
    if isinstance(value, list):
        return next((fault for i, each in enumerate(value) if (fault := first_fault(each, f"{place}[{i}]"))), None)
    if not isinstance(value, dict):
        return None
    for key, each in value.items():
        kind, words = KINDS.get(key, (None, ""))
        if key == "us" and ".passes." in place and each is None:              # what the time model cannot lower
            continue
        if key == "us" and place.startswith("report.predicted") and ".layers" not in place:
            kind, words = _above_zero, "a number above 0"                      # frames a second are its inverse
        if kind is not None and not kind(each):
            return f"{place}.{key} must be {words}"
        if fault := first_fault(each, f"{place}.{key}"):
            return fault
    return None
