"""What a command's exit code says; the numbers of 64 and above are those of sysexits.h.

Used by every command of `orind`, by the unit (RestartPreventExitStatus) and by the table in README.md, which a test
holds against this one.
"""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """`meaning` is the text of the table."""

    meaning: str

    def __new__(cls, number: int, meaning: str) -> Exit:
        member = int.__new__(cls, number)
        member._value_ = number
        member.meaning = meaning
        return member

    DONE = 0, "done"
    FAILED = 1, (
        "could not be done: verification failed, a frame not answered `ok` or `degraded`, reload refused; memory, "
        "descriptors or a disk short at a start (systemd starts it again)"
    )
    USAGE = 2, "wrong usage"
    DATA = 65, "bad data: a plan, model, image or answer that cannot be used"
    NO_INPUT = 66, "a file that was named does not exist or cannot be read"
    UNAVAILABLE = 69, "the daemon is not running, or something it needs is missing"
    BUSY = 75, "busy: a second instance, a port or endpoint in use"
    CONFIGURATION = 78, "bad configuration"
    INTERRUPTED = 130, "ended by Ctrl-C"


def table() -> str:
    """The codes as lines of text, for `orind --help`."""
    return "\n".join(f"  {int(code):<4}{code.meaning}" for code in Exit)
