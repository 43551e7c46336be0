"""Where each tensor of a plan lies: builds the safetensors header of a plan and reads one with suspicion.

Called by plan/file.py only. A plan is a safetensors file whose tensors start at multiples of 256 bytes of the file: the
header is padded with spaces, and the gaps, which the format refuses, are `.pad` tensors of zeros. Invariant: every
length is bounded before it is believed, and an entry that is returned lies inside the file.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FORMAT = "orind-plan-1"
FORMAT_PREFIX = "orind-plan-"
ALIGN = 256
HASH = "orind.sha256"
HASH_BYTES = 32
# CRC-32 of the header, twice: the header cannot hold its own, and two copies tell which of the two was hit
HEADER_CRC = "orind.crc32"
PAD = ".pad."
OWN = (".", "orind.")

MAX_HEADER_BYTES = 64 << 20  # the safetensors library refuses 100 MB
MAX_TENSORS = 100_000
DTYPES = {"int8": "I8", "uint8": "U8", "int16": "I16", "uint16": "U16", "int32": "I32", "uint32": "U32", "int64": "I64",
          "uint64": "U64", "float16": "F16", "float32": "F32", "float64": "F64", "bool": "BOOL"}
_NUMPY = {code: np.dtype(name) for name, code in DTYPES.items()}


class PlanError(ValueError):
    """The plan cannot be used: not a plan, of another version, truncated or damaged. The text names file and place."""


class LayoutError(ValueError):
    """The header is wrong; plan/file.py adds the file's name."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor: numbers of `dtype` and `shape` in bytes [begin, end) of the file."""

    name: str
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    begin: int
    end: int


def build_header(tensors: Sequence[tuple[str, npt.NDArray[np.generic]]], metadata: Mapping[str, str]) -> bytes:
    """Length word and header, a multiple of 256 bytes, for tensors in this order; the pads come from `padding`."""
    entries: dict[str, object] = {"__metadata__": dict(metadata)}
    offset = pads = 0
    for name, array in tensors:
        gap = padding(offset)
        if gap:
            entries[f"{PAD}{pads:05d}"] = {"dtype": "U8", "shape": [gap], "data_offsets": [offset, offset + gap]}
            offset, pads = offset + gap, pads + 1
        end = offset + array.nbytes
        entries[name] = {"dtype": DTYPES[array.dtype.name], "shape": list(array.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries, separators=(",", ":"), allow_nan=False).encode()
    text += b" " * padding(8 + len(text))
    return struct.pack("<Q", len(text)) + text


def padding(offset: int) -> int:
    """Bytes from `offset` to the next multiple of 256."""
    return -offset % ALIGN


def header_bytes(start: bytes, size: int) -> int:
    """Length of word and header of a file of `size` bytes that begins with `start` (>= 8 bytes of it, or all)."""
    if len(start) < 10 or size < 10:
        raise LayoutError("is not a plan: too short to have a header")
    length: int = struct.unpack("<Q", start[:8])[0]
    if start[8:9] != b"{":
        raise LayoutError("is not a plan: no safetensors header")
    if length > MAX_HEADER_BYTES:
        most = MAX_HEADER_BYTES
        raise LayoutError(f"is not a plan, or its header is damaged: header of {length} bytes, most is {most}")
    if 8 + length > size:
        raise LayoutError(f"is truncated: header of {length} bytes in a file of {size}")
    return 8 + length


def parse_header(block: bytes, size: int) -> tuple[dict[str, str], list[Entry]]:
    """Metadata and entries, in file order, of word and header `block` of a file of `size` bytes."""
    try:
        raw = json.loads(block[8:].decode(), object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise LayoutError(f"is not a plan, or its header is damaged: {error}") from error
    metadata = raw.pop("__metadata__", None)
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise LayoutError("is not a plan: a safetensors file without orind's metadata")
    made_by = metadata.get("format", "")
    if made_by != FORMAT:
        if made_by.startswith(FORMAT_PREFIX):
            raise LayoutError(f"was made by format {made_by!r}, this orind reads {FORMAT!r}: rebuild it")
        raise LayoutError("is not a plan: a safetensors file, but not made by `orind build`")
    if len(raw) > MAX_TENSORS:
        raise LayoutError(f"header is damaged: {len(raw)} tensors, most is {MAX_TENSORS}")
    entries = sorted((_entry(name, item, len(block)) for name, item in raw.items()), key=lambda item: item.begin)
    _check_layout(entries, len(block), size)
    return metadata, entries


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    read = dict(pairs)
    if len(read) != len(pairs):
        raise ValueError("a key is given twice")
    return read


def _entry(name: str, item: object, base: int) -> Entry:
    match item:
        case {"dtype": str(code), "shape": [*shape], "data_offsets": [int(begin), int(end)]} if code in _NUMPY:
            dtype = _NUMPY[code]
            if len(shape) <= 16 and all(type(n) is int and 0 <= n < 1 << 40 for n in shape) and 0 <= begin <= end:
                if math.prod(shape) * dtype.itemsize != end - begin:
                    raise LayoutError(f"header is damaged: tensor {name} has {end - begin} bytes, shape {shape} not so")
                return Entry(name, dtype, tuple(shape), base + begin, base + end)
    raise LayoutError(f"header is damaged: entry of tensor {name} makes no sense")


def _check_layout(entries: Sequence[Entry], base: int, size: int) -> None:
    if base % ALIGN:
        raise LayoutError(f"header is damaged: data start at {base}, not a multiple of {ALIGN}")
    end = base
    for entry in entries:
        if entry.begin != end:
            raise LayoutError(f"header is damaged: tensor {entry.name} starts at {entry.begin}, not at {end}")
        if entry.begin % ALIGN and not entry.name.startswith(PAD):
            raise LayoutError(f"header is damaged: tensor {entry.name} is not aligned to {ALIGN} bytes")
        end = entry.end
    names = {entry.name: entry for entry in entries}
    last = entries[-1] if entries else None
    if last is None or last.name != HASH or (last.dtype.name, last.shape) != ("uint8", (HASH_BYTES,)):
        raise LayoutError(f"header is damaged: the last tensor is not {HASH} of {HASH_BYTES} bytes")
    crc = names.get(HEADER_CRC)
    if crc is None or (crc.dtype.name, crc.shape) != ("uint32", (2,)):
        raise LayoutError(f"header is damaged: no tensor {HEADER_CRC}")
    if size < end:
        raise LayoutError(f"is truncated: {size} bytes, its header says {end}")
    if size > end:
        raise LayoutError(f"has {size - end} bytes after its end")
