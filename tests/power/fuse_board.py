"""A simulated board's tree as a file system that can say no, as the kernel's does: what plain files cannot.

`python fuse_board.py TREE MOUNT` mounts TREE at MOUNT until it is killed. Reading a cv zone's temperature gives EAGAIN;
that of the GPU EIO while TREE/.gpu-gated exists; a power-gating mask refuses another value with EBUSY; a cap takes
whole numbers only (EINVAL), and none while TREE/.caps-refused exists. Everything else is the tree's.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from pathlib import Path
from typing import Any

import mfusepy

CV = re.compile(r"cv[0-9]-(thermal|therm)")
GPU = re.compile(r"(gpu|GPU)-(thermal|therm)")


class Board(mfusepy.Operations):  # type: ignore[misc]
    """The rules of the module's docstring over the files below `tree`."""

    use_ns = True

    def __init__(self, tree: Path) -> None:
        self._tree = tree

    def _at(self, path: str) -> Path:
        return self._tree / path.lstrip("/")

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        seen = os.lstat(self._at(path))
        return {key: getattr(seen, key) for key in ("st_mode", "st_nlink", "st_uid", "st_gid", "st_size")}

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", *(entry.name for entry in self._at(path).iterdir())]

    def readlink(self, path: str) -> str:
        return str(self._at(path).readlink())

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        at = self._at(path)
        if at.name == "temp":
            kind = (at.parent / "type").read_text().strip()
            if CV.fullmatch(kind):
                raise mfusepy.FuseOSError(errno.EAGAIN)
            if GPU.fullmatch(kind) and (self._tree / ".gpu-gated").exists():
                raise mfusepy.FuseOSError(errno.EIO)
        return at.read_bytes()[offset : offset + size]

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        return 0  # of sysfs: a write replaces what was there

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        at, text = self._at(path), data.decode().strip()
        if at.name.endswith("_pg_mask") and text != at.read_text().strip():
            raise mfusepy.FuseOSError(errno.EBUSY)
        if at.name.endswith("max_freq") and (not text.isdecimal() or (self._tree / ".caps-refused").exists()):
            raise mfusepy.FuseOSError(errno.EINVAL)
        at.write_bytes(data)
        return len(data)


if __name__ == "__main__":
    mfusepy.FUSE(Board(Path(sys.argv[1])), sys.argv[2], foreground=True, nothreads=True, direct_io=True, attr_timeout=0,
                 entry_timeout=0, fsname="orind-board")
