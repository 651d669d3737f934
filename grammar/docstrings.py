"""What a docstring says of a function and of its parameters, in whatever style it is written."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final, NamedTuple

from docstring_parser import Docstring, ParseError, epydoc, google, numpydoc, rest

_MORE_SECTIONS: Final = (
    ("Params", "param", google.SectionType.MULTIPLE),
    ("Other Parameters", "param", google.SectionType.MULTIPLE),
    ("Keyword Args", "param", google.SectionType.MULTIPLE),
    ("Keyword Arguments", "param", google.SectionType.MULTIPLE),
    *(
        (title, "notes", google.SectionType.SINGULAR)
        for title in ("Note", "Notes", "Warning", "Warnings", "See Also", "References", "Todo", "Usage", "Return")
    ),
)
_GOOGLE: Final = google.GoogleParser(
    [*google.DEFAULT_SECTIONS, *(google.Section(*section) for section in _MORE_SECTIONS)]
)
_TITLES: Final = {title.lower(): title for title in _GOOGLE.sections}


class DescribedFunction(NamedTuple):
    """``summary``: the docstring without its sections; ``parameters``: a text for each name described."""

    summary: str
    parameters: dict[str, str]


def read_docstring(text: str, names: Collection[str]) -> DescribedFunction:
    """A docstring of Google's, NumPy's, Sphinx's or Epytext's style; ``names`` are the function's parameters.

    The style is the one that describes most of ``names``; a docstring of no known style is all summary.
    """
    best = DescribedFunction(text.strip(), {})
    best_rank = (0, 0)
    for parse in (_GOOGLE.parse, numpydoc.parse, rest.parse, epydoc.parse):
        try:
            parsed = parse(_as_google(text, names) if parse == _GOOGLE.parse else text)
        except (ParseError, ValueError, IndexError):
            continue
        found = _described(parsed)
        rank = (len(found.keys() & set(names)), len(parsed.meta))
        if rank > best_rank:
            best, best_rank = DescribedFunction(_summary(parsed), found), rank
    return best


def _as_google(text: str, names: Collection[str]) -> str:
    """Titles and entries as the parser spells them; people write ``a - text`` and ``a (int) -- text`` too."""

    def spelled(line: re.Match[str]) -> str:
        return f"{line[1]}{line[2]}{line[3] or ''}: " if line[2].lstrip("*") in names else line[0]

    entry = r"^([ \t]+)(\*{0,2}\w+)([ \t]*\([^)\n]*\))?[ \t]+(?:--?|[–—])[ \t]+(?=\S)"
    return re.sub(entry, spelled, _with_known_titles(text), flags=re.MULTILINE)


def _with_known_titles(text: str) -> str:
    """Section titles as the parser spells them: people write ``args:`` too."""

    def spelled(line: re.Match[str]) -> str:
        title = _TITLES.get(line[2].lower())
        return line[0] if title is None else f"{line[1]}{title}:"

    return re.sub(r"^([ \t]*)([A-Za-z ]+?)[ \t]*:[ \t]*$", spelled, text, flags=re.MULTILINE)


def _summary(parsed: Docstring) -> str:
    parts = (parsed.short_description, parsed.long_description)
    return "\n\n".join(part.strip() for part in parts if part)


def _described(parsed: Docstring) -> dict[str, str]:
    texts: dict[str, str] = {}
    for parameter in parsed.params:
        described = " ".join((parameter.description or "").split())
        for name in parameter.arg_name.split(","):
            if described:
                texts.setdefault(name.strip().lstrip("*"), described)
    return texts
