"""Reads plain mappings (from YAML, which power does not know) into checked values, and collects every error.

Called by board.py and policy.py. Invariant: nothing is guessed or coerced (a bool is not a number, text is not a
number), an unknown key is an error with the nearest known key, and all errors are reported at once.
"""

from __future__ import annotations

import difflib
import math
import reprlib
from collections.abc import Mapping, Sequence

from .errors import Problem, SettingsError

TEXT_MAX = 200
ENTRIES_MAX = 100  # of a list; what is read here goes to the steward in one message
_NAME = f"printable, at most {TEXT_MAX} characters"
_MISSING = object()
_SHORT = reprlib.Repr()
_SHORT.maxlevel = 2


class Fields:
    """One mapping being read. Take every known key through a method, then call `finish()`."""

    def __init__(self, source: object, what: str, where: tuple[str | int, ...] = (),
                 problems: list[Problem] | None = None) -> None:
        self._what = what
        self._where = where
        self._problems: list[Problem] = [] if problems is None else problems
        self._known: list[str] = []
        self._source: Mapping[object, object] = {}
        if isinstance(source, Mapping):
            self._source = source
        else:
            self._problems.append(Problem(where, f"must be a mapping of keys, not {type(source).__name__}"))

    def complain(self, key: str | None, text: str) -> None:
        """Record a problem that the caller found, at `key` or at this mapping itself."""
        self._problems.append(Problem(self._where if key is None else (*self._where, key), text))

    def complain_at(self, where: tuple[str | int, ...], text: str) -> None:
        """The same, at a place below this mapping."""
        self._problems.append(Problem((*self._where, *where), text))

    def _take(self, key: str, required: bool) -> object:
        self._known.append(key)
        value = self._source.get(key, _MISSING)
        if value is _MISSING and required and isinstance(self._source, Mapping):
            self.complain(key, "is required")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """Non-empty text."""
        value = self._take(key, default is None)
        if value is _MISSING:
            return default if default is not None else ""
        if not _is_name(value):
            self.complain(key, f"must be non-empty text, not {shown(value)}; {_NAME}")
            return ""
        return str(value)

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float:
        """A finite number in [low, high]."""
        value = self._take(key, default is None)
        if value is _MISSING:
            return default if default is not None else low
        # a whole number may have more digits than a float can hold
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value in (math.inf, -math.inf) \
                or value != value:
            self.complain(key, f"must be a number, not {shown(value)}")
            return low
        if not low <= value <= high:
            self.complain(key, f"must lie in {low:g} to {high:g}, not {shown(value)}")
            return low
        return float(value)

    def whole(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """A whole number in [low, high]."""
        value = self._take(key, default is None)
        if value is _MISSING:
            return default if default is not None else low
        if isinstance(value, bool) or not isinstance(value, int):
            self.complain(key, f"must be a whole number, not {shown(value)}")
            return low
        if not low <= value <= high:
            self.complain(key, f"must lie in {low} to {high}, not {shown(value)}")
            return low
        return value

    def maybe_whole(self, key: str, low: int, high: int) -> int | None:
        """As `whole`, or None where the key is absent or null."""
        if self._source.get(key) is None:
            self._known.append(key)
            return None
        return self.whole(key, low, high)

    def flag(self, key: str, default: bool) -> bool:
        """true or false."""
        value = self._take(key, False)
        if value is _MISSING:
            return default
        if not isinstance(value, bool):
            self.complain(key, f"must be true or false, not {shown(value)}")
            return default
        return value

    def numbers(self, key: str, low: float, high: float) -> dict[str, float]:
        """A mapping of names to numbers in [low, high]; empty where the key is absent."""
        if not self.has(key):
            return {}
        inner = self.child(key)
        if not inner.names():
            self.complain(key, "must be a mapping of names to numbers")
        found = {name: inner.number(name, low, high) for name in inner.names()}
        inner.finish()  # a key that is no text
        return found

    def raw(self, key: str) -> object:
        """A required value as it stands there, for the caller to check; None where it is absent."""
        value = self._take(key, True)
        return None if value is _MISSING else value

    def has(self, key: str) -> bool:
        """Whether the key is there; it counts as known from now on."""
        self._known.append(key)
        return key in self._source

    def names(self) -> tuple[str, ...]:
        """The keys of this mapping that are texts."""
        return tuple(key for key in self._source if isinstance(key, str))

    def leave(self, key: str) -> None:
        """`key` is known, and read by someone else."""
        self._known.append(key)

    def texts(self, key: str, default: Sequence[str] | None = None) -> tuple[str, ...]:
        """A non-empty list of non-empty texts without repetition (or the default)."""
        value = self._take(key, default is None)
        if value is _MISSING:
            return tuple(default or ())
        if not isinstance(value, Sequence) or isinstance(value, (str, bytes)) or not value:
            self.complain(key, f"must be a list of texts, not {shown(value)}")
            return ()
        if not self._few(key, value):
            return ()
        good = [str(item) for item in value if _is_name(item)]
        if len(good) != len(value):
            self.complain(key, f"must hold texts only, not {shown(list(value))}; {_NAME}")
        if len(set(good)) != len(good):
            self.complain(key, "names something twice")
        return tuple(good)

    def child(self, key: str) -> Fields:
        """The mapping at `key`; it reports into this one's problems, so `finish()` the child for unknown keys only."""
        value = self._take(key, True)
        return Fields({} if value is _MISSING else value, self._what, (*self._where, key), self._problems)

    def children(self, key: str) -> list[Fields]:
        """The non-empty list of mappings at `key`."""
        value = self._take(key, True)
        if value is _MISSING:
            return []
        if not isinstance(value, Sequence) or isinstance(value, (str, bytes)) or not value:
            self.complain(key, "must be a non-empty list of mappings")
            return []
        if not self._few(key, value):
            return []
        return [Fields(item, self._what, (*self._where, key, i), self._problems) for i, item in enumerate(value)]

    def _few(self, key: str, value: Sequence[object]) -> bool:
        if len(value) > ENTRIES_MAX:
            self.complain(key, f"has {len(value)} entries, at most {ENTRIES_MAX} are read")
        return len(value) <= ENTRIES_MAX

    def finish(self) -> None:
        """Report unknown keys; at the outermost mapping, raise SettingsError when anything at all was wrong."""
        for key in self._source:
            if key not in self._known:
                near = difflib.get_close_matches(str(key), self._known, 1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; known keys: {', '.join(sorted(self._known))}"
                self._problems.append(Problem((*self._where, str(key)), f"unknown key{hint}"))
        if not self._where and self._problems:
            raise SettingsError(self._what, tuple(self._problems))


def _is_name(value: object) -> bool:
    """Names reach terminals, the journal and the status as they are."""
    return isinstance(value, str) and bool(value.strip()) and value.isprintable() and len(value) <= TEXT_MAX


def shown(value: object) -> str:
    """A value of the file for a message: few words, whatever it holds (an alias within aliases has no end)."""
    return _SHORT.repr(value)
