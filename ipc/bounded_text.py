"""Texts that came from elsewhere, made fit for a log line, a status, a reply or a message to systemd.

Used wherever main passes on a text that it did not write: a checker's findings, an engine's last words, a path from a
configuration. Invariant: what comes out is one line without control characters and has a bound, as JSON too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

TEXT_CHARS_MAX = 500
TEXTS_MAX = 50
LIST_BYTES_MAX = 32_768  # as JSON; what a text takes there depends on its letters


def bound_text(text: str, limit: int = TEXT_CHARS_MAX) -> str:
    """One line: control characters and what else cannot be printed become spaces; cut, with "..." where it was."""
    # cut before it is looked at: a text may have megabytes
    head = text[: limit + 1]
    line = "".join(c if c.isprintable() else " " for c in head)
    return line if len(head) <= limit else line[: limit - 3] + "..."


def bound_texts(texts: Iterable[str], limit: int = TEXTS_MAX) -> list[str]:
    """At most `limit` texts, each bounded, LIST_BYTES_MAX in all; the last line says how many were left out."""
    every = list(texts)
    kept: list[str] = []
    left = LIST_BYTES_MAX
    for text in every[:limit]:
        line = bound_text(text)
        left -= len(json.dumps(line)) + 1
        if left < 0 and kept:
            break
        kept.append(line)
    more = len(every) - len(kept)
    return [*kept, f"and {more} more"] if more else kept


def bound_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A flat table with its texts and lists of texts bounded; numbers and None as they are."""
    return {name: _bound(value) for name, value in fields.items()}


def _bound(value: Any) -> Any:
    if isinstance(value, str):
        return bound_text(value)
    if isinstance(value, list | tuple):
        return bound_texts(map(str, value))
    return value
