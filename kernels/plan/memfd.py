"""Copies a plan into memory that nobody can change any more, under a name that /proc/PID/maps shows.

Called once a generation, before the engines start; both engines map the one descriptor. Invariant: what is returned was
hashed after the copy and after the seals, so overwriting or truncating the file later cannot reach a serving engine.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from .file import PlanFile
from .layout import HASH_BYTES, PlanError

MAX_PLAN_BYTES = 4 << 30
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


def seal_into_memfd(path: Path | str) -> tuple[int, PlanFile]:
    """A read-only descriptor of the sealed memfd `orind-plan-<first 12 digits of the hash>`, and the plan on it.

    Both are the caller's to close. Raises PlanError if the file cannot be read, is not a plan, or is damaged.
    """
    try:
        source = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise PlanError(f"{path}: cannot be opened: {error.strerror}") from error
    try:
        size = os.fstat(source).st_size
        if not HASH_BYTES <= size <= MAX_PLAN_BYTES:
            raise PlanError(f"{path}: is not a plan: {size} bytes")
        tail = os.pread(source, HASH_BYTES, size - HASH_BYTES).hex()
        target = os.memfd_create(f"orind-plan-{tail[:12]}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            _copy(source, target, size, path)
            fcntl.fcntl(target, fcntl.F_ADD_SEALS, _SEALS)
            sealed = os.open(f"/proc/self/fd/{target}", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.close(target)
    except OSError as error:
        raise PlanError(f"{path}: cannot be copied into memory: {error.strerror}") from error
    finally:
        os.close(source)
    plan: PlanFile | None = None
    try:
        plan = PlanFile.open_fd(sealed, str(path))
        plan.verify()
        if plan.sha256 != tail:
            raise PlanError(f"{path}: was changed while it was read")
    except PlanError:
        if plan is not None:
            plan.close()
        os.close(sealed)
        raise
    return sealed, plan


def _copy(source: int, target: int, size: int, path: Path | str) -> None:
    os.ftruncate(target, size)
    done = 0
    while done < size:
        count = os.sendfile(target, source, done, size - done)
        if count == 0:
            raise PlanError(f"{path}: was truncated while it was read")
        done += count
