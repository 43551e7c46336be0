"""Looks at the file that a command is to write, before any work: never one of its inputs, never something that cannot
be written.

Callers: `orind build -o`, `orind inspect --html`, `orind status --memory-map`. Invariant: the messages and exit codes
of all are the same.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from ..ipc.exit_codes import Exit
from ..kernels.plan.replacement import check_writable, place_of


def refused(said: str, output: Path, inputs: Iterable[tuple[str, Path]]) -> Exit | None:
    """The exit code, the reason being on stderr, where `output` must not or cannot be written; None where it can.

    said: the command and its option, for the message. inputs: (what it is, where), each of which exists.
    """
    try:
        place = place_of(output)
        for what, given in inputs:
            if place.exists() and given.exists() and place.samefile(given):
                print(f"{said} {output}: that is the {what} itself; name another file", file=sys.stderr)
                return Exit.USAGE
        check_writable(output)
    except OSError as error:
        return failed(said, output, error)
    except ValueError:
        print(f"{said}: a path cannot hold a zero byte", file=sys.stderr)
        return Exit.USAGE
    return None


def written(output: Path, to: TextIO) -> None:
    """Says that it was."""
    print(f"{output}  {output.stat().st_size} bytes", file=to)


def failed(said: str, output: Path, error: OSError) -> Exit:
    """Says that `output` cannot be written."""
    print(f"{said} {output}: {error.strerror}; name a file that can be written", file=sys.stderr)
    return Exit.FAILED
