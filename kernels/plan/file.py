"""The plan's container: named tensors and texts in one file that can be mapped, and checked to the byte.

Written by the compiler; opened by engines, `orind verify` and `orind inspect`. Knows nothing of steps. The file is a
valid safetensors file (see plan/layout.py), but is read through our own read-only mapping, since the library copies.
Invariant: after `verify()` every byte is the one that `write_plan` wrote. Nothing is served before that.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import mmap
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType

import numpy as np
import numpy.typing as npt

from .layout import (
    DTYPES,
    FORMAT,
    HASH,
    HASH_BYTES,
    HEADER_CRC,
    MAX_HEADER_BYTES,
    MAX_TENSORS,
    OWN,
    PAD,
    Entry,
    LayoutError,
    PlanError,
    build_header,
    header_bytes,
    padding,
    parse_header,
)
from .replacement import replacing

Array = npt.NDArray[np.generic]


def write_plan(path: Path | str, tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> str:
    """Writes a plan whole or not at all (plan/replacement.py) and returns its SHA-256 as hex.

    Tensors keep their order and start at multiples of 256 bytes. The metadata keys `format` and `crc32` are ours.
    Raises PlanError for a name, type or size that a plan cannot hold, NotWritten if the disk refuses.
    """
    path = Path(path)
    arrays = [(name, _writable(path, name, array)) for name, array in tensors.items()]
    if len(arrays) > MAX_TENSORS // 2 - 2:
        raise PlanError(f"{path}: {len(arrays)} tensors are too many for one plan")
    for key, value in metadata.items():
        if key in ("format", "crc32") or not isinstance(value, str):
            raise PlanError(f"{path}: metadata key {key!r} is not free, or its value is not a text")
    sums = {name: zlib.crc32(_bytes(array)) for name, array in arrays}
    full = {"format": FORMAT, **metadata, "crc32": json.dumps(sums, separators=(",", ":"))}
    blank = [(HEADER_CRC, np.zeros(2, "<u4")), (HASH, np.zeros(HASH_BYTES, np.uint8))]
    header = build_header([*arrays, *blank], full)
    if len(header) > MAX_HEADER_BYTES:
        raise PlanError(f"{path}: metadata of {len(header)} bytes are more than {MAX_HEADER_BYTES}")
    crc = np.full(2, zlib.crc32(header), "<u4")
    digest = hashlib.sha256()
    with replacing(path) as file:
        for block in _blocks(header, [*arrays, (HEADER_CRC, crc)]):
            digest.update(block)
            file.write(block)
        file.write(digest.digest())
    return digest.hexdigest()


def _writable(path: Path, name: str, array: Array) -> Array:
    """The tensor as it is stored: C order, little endian."""
    if not name or name == "__metadata__" or name.startswith(OWN):
        raise PlanError(f"{path}: tensor name {name!r} is reserved")
    if array.dtype.name not in DTYPES:
        raise PlanError(f"{path}: tensor {name} is of type {array.dtype}, a plan holds {', '.join(DTYPES)}")
    # reshape: ascontiguousarray turns a scalar into one dimension
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).reshape(array.shape)


def _bytes(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _blocks(header: bytes, arrays: list[tuple[str, Array]]) -> Iterator[bytes | memoryview]:
    """Everything before the hash, pads included, in file order."""
    yield header
    offset = 0
    for _, array in arrays:
        gap = padding(offset)
        yield bytes(gap)
        yield _bytes(array)
        offset += gap + array.nbytes
    yield bytes(padding(offset))


class PlanFile:
    """A plan, mapped read-only. `open_path` and `open_fd` check the header; `verify` checks every byte.

    tensors: name -> read-only array on the mapping itself, 256-byte aligned, without pads and sums.
    metadata: name -> text. sha256: hex of the stored hash. size: bytes. path: for messages.
    The mapping ends when the plan is closed and no array of it lives any more: close executors first.
    """

    def __init__(self, mapping: mmap.mmap, path: str) -> None:
        self.path = path
        self.size = len(mapping)
        self._mapping = mapping
        try:
            self._header = header_bytes(mapping[:10], self.size)
            metadata, self._entries = parse_header(mapping[: self._header], self.size)
        except LayoutError as error:
            mapping.close()
            raise PlanError(f"{path}: {error}") from error
        self._whole: Array = np.frombuffer(mapping, dtype=np.uint8)
        self.metadata = metadata
        named = {entry.name: self._array(entry) for entry in self._entries}
        self.sha256 = named[HASH].tobytes().hex()
        self._header_crc = [int(number) for number in named[HEADER_CRC]]
        self.tensors: Mapping[str, Array] = MappingProxyType(
            {name: array for name, array in named.items() if not name.startswith(OWN)})

    @classmethod
    def open_path(cls, path: Path | str) -> PlanFile:
        """Maps the plan at `path`. Raises PlanError, also for a file that cannot be opened.

        A file that someone may truncate while it is mapped kills the reader (SIGBUS): what serves maps the sealed copy
        of plan/memfd.py instead.
        """
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise PlanError(f"{path}: cannot be opened: {error.strerror}") from error
        try:
            return cls.open_fd(fd, str(path))
        finally:
            os.close(fd)

    @classmethod
    def open_fd(cls, fd: int, path: str = "") -> PlanFile:
        """Maps the plan behind `fd`, which stays the caller's and may be closed at once. Raises PlanError."""
        path = path or str(Path(f"/proc/self/fd/{fd}").readlink())
        try:
            if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY:
                # before Linux 6.7 a write-sealed memfd cannot be mapped shared through a writable descriptor
                own = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
                try:
                    return cls.open_fd(own, path)
                finally:
                    os.close(own)
            mapping = mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ)
        except (OSError, ValueError) as error:  # ValueError: an empty file
            raise PlanError(f"{path}: cannot be mapped: {error}") from error
        return cls(mapping, path)

    def verify(self) -> None:
        """Hashes the file; on a difference PlanError names the first damaged part (`header`, a tensor, or the hash)."""
        digest = hashlib.sha256(self._whole[: self.size - HASH_BYTES].data)
        if digest.hexdigest() != self.sha256:
            raise PlanError(f"{self.path}: is damaged in {self._damaged()}: build or copy it again")

    def _damaged(self) -> str:
        first, second = self._header_crc
        if first != second:
            return f"tensor {HEADER_CRC}"
        if zlib.crc32(self._whole[: self._header].data) != first:
            return "header"
        try:
            sums = json.loads(self.metadata.get("crc32", ""))
        except (ValueError, RecursionError):
            return "header"  # its own sum is right, so whoever wrote it did not write a plan
        if not isinstance(sums, dict):
            return "header"
        for entry in self._entries:
            part = self._whole[entry.begin : entry.end]
            if entry.name.startswith(PAD):
                if part.any():
                    return f"tensor {entry.name}"
            elif entry.name in sums and zlib.crc32(part.data) != sums[entry.name]:
                return f"tensor {entry.name}"
        return f"tensor {HASH}"

    def _array(self, entry: Entry) -> Array:
        return self._whole[entry.begin : entry.end].view(entry.dtype).reshape(entry.shape)

    def close(self) -> None:
        """Lets go of the mapping. It ends now, or with the last array that a caller still holds."""
        self.tensors = MappingProxyType({})
        self._whole = np.empty(0, np.uint8)
        try:
            self._mapping.close()
        except BufferError:  # an array still looks into it: unmapping now would turn its next read into a crash
            return

    def __enter__(self) -> PlanFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
