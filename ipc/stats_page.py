"""The stats page: what main counted, readable by steward, HTTP process and `status` without asking main anything.

A memfd with two parts, each behind its own sequence lock: three counters that main writes every turn, and a JSON blob
that it writes a few times a second. Invariant: a reader never sees half of a write. The sequence number alone would not
give that on Arm, where stores may pass each other (Python has no barrier), so a CRC-32 over the part must agree too.
"""

from __future__ import annotations

import json
import os
import struct
import time
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from . import shared_memory
from .errors import StatsPageError

MAGIC = 0x31504E49524F  # "ORINP1"
BLOB_BYTES_MAX = 262_144
# Main may lose its CPU in the middle of a write: over 40 ms of that were seen on a busy machine. 0.3 s in all.
PAUSES_S = (*(0.000_05 * 2**n for n in range(7)), *(0.005 for _ in range(60)))

_COUNTERS = struct.Struct("=QQQ")
_MAGIC_AT, _SEQ_AT, _CRC_AT, _COUNTERS_AT = 0, 8, 16, 24
_BLOB_SEQ_AT, _BLOB_CRC_AT, _BLOB_LENGTH_AT, _BLOB_AT = 64, 72, 80, 128
SIZE = shared_memory.round_to_page(_BLOB_AT + BLOB_BYTES_MAX)


class Counters(NamedTuple):
    """busy_ns: CLOCK_MONOTONIC ns that engines spent working, ever; now_ns: when that was true; loops: main's turns."""

    busy_ns: int
    now_ns: int
    loops: int


class StatsWriter:
    """Main's end: makes the page."""

    def __init__(self) -> None:
        self.fd = shared_memory.create("orind-stats", SIZE)
        self._map = shared_memory.map_fd(self.fd, SIZE, writable=True)
        self._bytes = memoryview(self._map)
        self._words = self._bytes.cast("Q")  # one aligned 8-byte store per assignment
        self._seq = 0
        self._blob_seq = 0
        self.write_counters(0, 0, 0)
        self.write_blob({})
        self._words[_MAGIC_AT // 8] = MAGIC

    def readonly_fd(self) -> int:
        """A new descriptor for a reader. The caller closes it."""
        return shared_memory.reopen_readonly(self.fd)

    def write_counters(self, busy_ns: int, now_ns: int, loops: int) -> None:
        """Every few milliseconds, about a microsecond."""
        words = self._words
        packed = _COUNTERS.pack(busy_ns, now_ns, loops)
        words[_SEQ_AT // 8] = self._seq + 1  # odd: being written
        self._bytes[_COUNTERS_AT : _COUNTERS_AT + _COUNTERS.size] = packed
        words[_CRC_AT // 8] = zlib.crc32(packed)
        self._seq += 2
        words[_SEQ_AT // 8] = self._seq

    def write_blob(self, fields: Mapping[str, Any]) -> None:
        """Raises StatsPageError when it does not fit; the page then keeps what it had."""
        data = json.dumps(fields, separators=(",", ":")).encode()
        if len(data) > BLOB_BYTES_MAX:
            raise StatsPageError(f"statistics of {len(data)} bytes: the page holds {BLOB_BYTES_MAX}")
        words = self._words
        words[_BLOB_SEQ_AT // 8] = self._blob_seq + 1
        words[_BLOB_LENGTH_AT // 8] = len(data)
        self._bytes[_BLOB_AT : _BLOB_AT + len(data)] = data
        words[_BLOB_CRC_AT // 8] = zlib.crc32(data)
        self._blob_seq += 2
        words[_BLOB_SEQ_AT // 8] = self._blob_seq

    def close(self) -> None:
        if self.fd >= 0:
            shared_memory.release(self._map, [self._words, self._bytes])
            os.close(self.fd)
            self.fd = -1


class StatsReader:
    """A child's end. Takes ownership of fd."""

    def __init__(self, fd: int) -> None:
        try:
            self._map = shared_memory.map_fd(fd, SIZE, writable=False)
        finally:
            os.close(fd)
        self._bytes = memoryview(self._map)
        self._words = self._bytes.cast("Q")
        if self._words[_MAGIC_AT // 8] != MAGIC:
            self.close()
            raise StatsPageError("shared memory is not a stats page of this orind: the processes disagree")

    def read_counters(self) -> Counters:
        """Raises StatsPageError when main is always in the middle of a write, which means that it died in one."""
        words = self._words
        for pause_s in PAUSES_S:
            seq = words[_SEQ_AT // 8]
            packed = bytes(self._bytes[_COUNTERS_AT : _COUNTERS_AT + _COUNTERS.size])
            crc = words[_CRC_AT // 8]
            if not seq & 1 and words[_SEQ_AT // 8] == seq and zlib.crc32(packed) == crc:
                return Counters(*_COUNTERS.unpack(packed))
            time.sleep(pause_s)
        raise StatsPageError(f"counters not readable in {len(PAUSES_S)} tries: did main die while writing them?")

    def read_blob(self) -> dict[str, Any]:
        """Raises StatsPageError as read_counters does."""
        words = self._words
        for pause_s in PAUSES_S:
            seq, length = words[_BLOB_SEQ_AT // 8], words[_BLOB_LENGTH_AT // 8]
            if not seq & 1 and length <= BLOB_BYTES_MAX:
                data = bytes(self._bytes[_BLOB_AT : _BLOB_AT + length])
                if words[_BLOB_SEQ_AT // 8] == seq and zlib.crc32(data) == words[_BLOB_CRC_AT // 8]:
                    fields: dict[str, Any] = json.loads(data)
                    return fields
            time.sleep(pause_s)
        raise StatsPageError(f"statistics not readable in {len(PAUSES_S)} tries: did main die while writing them?")

    def close(self) -> None:
        shared_memory.release(self._map, [self._words, self._bytes])
