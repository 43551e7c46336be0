"""HTML and SVG elements as text. Callers: the other modules of this package.

Invariant: whatever is not Markup is escaped, in text and in attributes, and characters that a page cannot hold (control
characters, halves of surrogate pairs) are replaced; so no name in a model becomes a part of the page.
"""

from __future__ import annotations

import html
import re

UNFIT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u202a-\u202e\u2066-\u2069]")
"""Beside those, marks that turn the direction of text: a name with one would reorder what stands after it."""

EMPTY = frozenset({"meta", "br", "rect", "path", "circle", "line", "wbr"})


class Markup(str):
    """Text that is an element already."""

    __slots__ = ()


def clean(text: object) -> str:
    """The text without characters that a page or a terminal cannot hold."""
    return UNFIT.sub("\ufffd", str(text))


def escaped(value: object) -> Markup:
    return value if isinstance(value, Markup) else Markup(html.escape(clean(value)))


def tag(name: str, *children: object, **attributes: object) -> Markup:
    """An element. `class_` is class, `aria_label` is aria-label; an attribute that is None or False is left out, True
    stands without a value, a float is written with at most two decimals. Children that are None are left out."""
    parts = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        plain = key.rstrip("_").replace("_", "-")
        if isinstance(value, float):
            value = f"{value:.2f}".rstrip("0").rstrip(".")
        parts.append(plain if value is True else f'{plain}="{escaped(value)}"')
    opening = " ".join(parts)
    if name in EMPTY and not children:
        return Markup(f"<{opening}/>")
    return Markup(f"<{opening}>{joined(*children)}</{name}>")


def breakable(text: object) -> Markup:
    """A name that may go on in a new line after each slash."""
    return Markup(escaped(text).replace("/", "/<wbr>"))


def joined(*children: object) -> Markup:
    return Markup("".join(escaped(child) for child in children if child is not None))
