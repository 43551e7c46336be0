"""Fields of the program's dataclasses as they come out of JSON: of the declared type, and numbers that make sense.

Caller: `program.py`. Invariant: what passes has the types that the type hints say, so that nobody downstream meets a
text where a number should be, or a number that no array has.
"""

from __future__ import annotations

import math
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from .errors import ProgramError

LARGEST = 1 << 40
LARGEST_FLOAT = float.fromhex("0x1.fffffep+127")
Made = TypeVar("Made")


_hints: dict[type, dict[str, Any]] = {}


def hints_of(kind: type) -> dict[str, Any]:
    """Field name -> type; worked out once."""
    if kind not in _hints:
        _hints[kind] = get_type_hints(kind)
    return _hints[kind]


def tuples(value: Any) -> Any:
    return tuple(tuples(v) for v in value) if isinstance(value, list) else value


def made_of(kind: type[Made], entry: dict[str, Any], what: str) -> Made:
    """An object of the dataclass `kind`. Raises ProgramError naming `what` and the field."""
    hints = hints_of(kind)
    values = {key: tuples(value) for key, value in entry.items()}
    for key, value in values.items():
        if key not in hints:
            raise ProgramError(f"{what} has a field '{key}' that this orind does not know: rebuild the plan")
        if not fits(value, hints[key]):
            raise ProgramError(f"{what} has {_short(value)} as '{key}', which makes no sense there: the plan is "
                               "damaged, build it again")
    try:
        return kind(**values)
    except TypeError as error:                             # a field without a default is missing
        raise ProgramError(f"{what} is not complete ({error}): rebuild the plan") from error


def fits(value: Any, hint: Any) -> bool:
    """Whether a value that came out of JSON, lists made tuples, is one of `hint`. Whole numbers are below
    2^40, others within float32 or infinite."""
    if hint is int:
        return type(value) is int and abs(value) < LARGEST
    if hint is float:
        return (type(value) is float and (math.isinf(value) or abs(value) <= LARGEST_FLOAT)) or fits(value, int)
    if hint in (str, bool):
        return type(value) is hint
    if get_origin(hint) is UnionType:
        return any(value is None if part is NoneType else fits(value, part) for part in get_args(hint))
    inner = get_args(hint)
    if get_origin(hint) is dict:
        return type(value) is dict and not value           # filled in by the caller, entry by entry
    if type(value) is not tuple:
        return False
    if inner[-1] is Ellipsis:
        return all(fits(v, inner[0]) for v in value)
    return len(value) == len(inner) and all(fits(v, part) for v, part in zip(value, inner, strict=True))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
