"""The slot ring: serials catch reuse, children cannot write what they may only read, nothing leaks."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from orind.ipc import shared_memory
from orind.ipc.errors import IpcError, SlotError
from orind.ipc.slots import Slot, SlotReader, SlotRing

pytestmark = pytest.mark.usefixtures("no_fd_leak")


def test_take_until_empty_then_give() -> None:
    with SlotRing(3, 100) as ring:
        slots = [ring.take() for _ in range(3)]
        assert sorted(slot.index for slot in slots if slot) == [0, 1, 2]
        assert ring.take() is None and ring.free == 0
        assert slots[1] is not None
        ring.give(slots[1])
        again = ring.take()
        assert again == Slot(slots[1].index, slots[1].serial + 1)


def test_main_has_every_page_before_the_first_frame_a_child_what_it_has_read() -> None:
    """Else main seems to leak with every slot that is first used, and a killed child takes longer to go."""
    count, size = 16, 3 * shared_memory.PAGE
    with SlotRing(count, size) as ring:
        inode = os.fstat(ring.fd).st_ino
        assert resident_kib(inode) == [count * size // 1024]
        child = SlotReader(ring.readonly_fd(), count, size)
        assert sorted(resident_kib(inode)) == [0, count * size // 1024]
        assert bytes(child.view(3)) == bytes(size)
        assert sorted(resident_kib(inode))[0] >= size // 1024
        child.close()


def resident_kib(inode: int) -> list[int]:
    """Of each mapping of that file in this process."""
    found, ours = [], False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            ours = line.split()[4] == str(inode)
        elif ours and line.startswith("Rss:"):
            found.append(int(line.split()[1]))
    return found


def test_use_after_give_is_an_error() -> None:
    with SlotRing(2, 100) as ring:
        old = ring.take()
        assert old is not None
        ring.give(old)
        with pytest.raises(SlotError, match="given back"):
            ring.give(old)
        with pytest.raises(SlotError):
            ring.view(old)
        new = ring.take()
        assert new is not None and new.index == old.index
        with pytest.raises(SlotError):
            ring.give(old)
        for foreign in (Slot(-1, 1), Slot(2, 1)):
            with pytest.raises(SlotError):
                ring.view(foreign)


def test_readers_see_what_main_writes_and_cannot_write() -> None:
    with SlotRing(4, 5000) as ring:
        slot = ring.take()
        assert slot is not None
        reader = SlotReader(ring.readonly_fd(), 4, 5000)
        pixels = np.arange(5000, dtype=np.uint8)
        ring.view(slot)[:] = pixels.tobytes()
        seen = reader.view(slot.index)
        assert seen.readonly and len(seen) == 5000
        np.testing.assert_array_equal(np.frombuffer(seen, np.uint8), pixels)
        for index in (-1, 4):
            with pytest.raises(SlotError):
                reader.view(index)
        reader.close()


def test_a_decode_worker_writes_what_a_reader_sees() -> None:
    with SlotRing(2, 64) as ring:
        writer = SlotReader(ring.writable_fd(), 2, 64, writable=True)
        reader = SlotReader(ring.readonly_fd(), 2, 64)
        writer.view(1)[:3] = b"abc"
        assert bytes(reader.view(1)[:3]) == b"abc" and bytes(reader.view(0)[:3]) == bytes(3)
        writer.close()
        reader.close()


def test_a_read_only_descriptor_cannot_be_mapped_writable() -> None:
    with SlotRing(1, 4096) as ring:
        with pytest.raises(PermissionError):
            SlotReader(ring.readonly_fd(), 1, 4096, writable=True)
        fd = ring.readonly_fd()
        with pytest.raises(OSError):
            os.pwrite(fd, b"x", 0)
        mapping = mmap.mmap(fd, 4096, mmap.MAP_SHARED, mmap.PROT_READ)
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
        address = libc.mmap(None, 4096, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        assert libc.mprotect(ctypes.c_void_p(address), 4096, mmap.PROT_READ | mmap.PROT_WRITE) == -1
        assert ctypes.get_errno() == errno.EACCES
        libc.munmap(ctypes.c_void_p(address), 4096)
        mapping.close()
        os.close(fd)


def test_seal_writes_binds_even_the_owner_of_a_writable_descriptor() -> None:
    with SlotRing(1, 4096, sealed=True) as ring:
        slot = ring.take()
        assert slot is not None
        with pytest.raises(PermissionError):
            SlotReader(ring.writable_fd(), 1, 4096, writable=True)
        ring.view(slot)[:2] = b"ok"  # main's own mapping is older than the seal
        reader = SlotReader(ring.readonly_fd(), 1, 4096)
        assert bytes(reader.view(0)[:2]) == b"ok"
        reader.close()


def test_nobody_without_root_can_reopen_it_for_writing() -> None:
    with SlotRing(1, 4096) as ring:
        assert os.fstat(ring.fd).st_mode & 0o777 == 0o400
        fd = ring.readonly_fd()
        code = (
            "import os, sys\n"
            "if os.getuid() == 0: os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)\n"
            "try: os.open(f'/proc/self/fd/{sys.argv[1]}', os.O_RDWR)\n"
            "except PermissionError: sys.exit(7)\n"
        )
        done = subprocess.run([sys.executable, "-S", "-c", code, str(fd)], pass_fds=[fd], check=False)
        os.close(fd)
        assert done.returncode == 7


def test_size_is_sealed() -> None:
    with SlotRing(2, 100) as ring:
        for size in (0, 1 << 20):
            with pytest.raises(OSError):
                os.ftruncate(ring.fd, size)


def test_refusals() -> None:
    with pytest.raises(SlotError, match="at least 1"):
        SlotRing(0, 100)
    with pytest.raises(IpcError, match="cannot be allocated"):
        shared_memory.create("orind-test", 1 << 60)
    with SlotRing(1, 100) as ring, pytest.raises(IpcError, match="announced"):
        SlotReader(ring.readonly_fd(), 2, 100)


def test_close_while_a_view_is_borrowed_keeps_the_borrower_alive() -> None:
    ring = SlotRing(1, 4096)
    slot = ring.take()
    assert slot is not None
    array = np.frombuffer(ring.view(slot), np.uint8)
    ring.close()
    ring.close()
    assert int(array.sum()) == 0
