"""What a line of the log looks like, whichever process writes it.

Used by `serve.py`, whose lines go through a thread (log_writer.py), and by engines on a GPU. Others log nothing.
"""

from __future__ import annotations

import logging

from ..ipc.bounded_text import bound_text

LINE_CHARS_MAX = 2000
FORMAT = "%(levelname)s %(message)s"


class LineFormatter(logging.Formatter):
    """One event, one bounded line: a camera's or a model's text can neither forge lines nor flood the journal."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = bound_text(record.message, LINE_CHARS_MAX)
        return super().formatMessage(record)


def log_through(handler: logging.Handler) -> None:
    """From INFO on, for the whole process."""
    handler.setFormatter(LineFormatter(FORMAT))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def log_to_stderr() -> None:
    log_through(logging.StreamHandler())
