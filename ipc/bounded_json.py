"""JSON from strangers: one object, bounded, without duplicate keys, NaN, Infinity or a tail; and its encoder.

Called by wire.py and answer.py for everything that crosses a socket as JSON. Invariant: only WireError leaves
parse_object.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from .errors import WireError


class _Refused(ValueError):
    """Raised by the JSON hooks: a second key of the same name, NaN, Infinity. ValueError so that json lets it pass."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _Refused(f"header names {twice[:40]!r} twice: send each field once")
    return fields


def _no_constant(name: str) -> NoReturn:
    raise _Refused(f"header holds {name}, which is not JSON: leave the field out instead")


_DECODE = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant).raw_decode
_ENCODE = json.JSONEncoder(separators=(",", ":"), allow_nan=False, check_circular=False).encode


def parse_object(raw: bytes, what: str, limit: int) -> dict[str, Any]:
    """Bounded bytes -> JSON object without duplicate keys, NaN or anything after it. Raises WireError."""
    if len(raw) > limit:
        raise WireError("header_too_large", f"{what} is {len(raw)} bytes or more: at most {limit} are read")
    try:
        text = raw.decode()
        fields, end = _DECODE(text)
    except _Refused as error:
        raise WireError("header_not_json", str(error)) from None
    except UnicodeDecodeError:
        raise WireError("header_not_json", f"{what} is not UTF-8: send JSON as UTF-8") from None
    except RecursionError:
        raise WireError("header_not_json", f"{what} is nested too deeply: send a flat JSON object") from None
    except ValueError as error:
        raise WireError("header_not_json", f"{what} is not JSON ({error}): send one JSON object") from None
    if end != len(text) and text[end:].strip():
        raise WireError("header_not_json", f"{what} goes on after its JSON object: send one object")
    if type(fields) is not dict:
        raise WireError("header_not_json", f"{what} is a JSON {type(fields).__name__}: send an object {{...}}")
    return fields


def encode_object(fields: dict[str, Any]) -> bytes:
    """JSON without spaces, ASCII only. Raises ValueError for NaN or Infinity, TypeError for foreign types."""
    return _ENCODE(fields).encode()
