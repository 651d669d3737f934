"""Errors in the command line's own words: options as they are typed there, commands instead of methods."""

import re

_METHODS = {
    "engine.watch": "mmspec watch",
    "engine.chat": "mmspec chat",
    "engine.session": "mmspec chat",
}
_SWITCH = re.compile(r"\b([a-z]+(?:_[a-z0-9]+)+)=True\b")
_VALUE = re.compile(r"\b([a-z]+(?:_[a-z0-9]+)+)=(?=\S)")


def in_command_line_words(text: str) -> str:
    """``text`` of an error of the package, as somebody who typed a command can act on it."""
    for method, command in _METHODS.items():
        text = re.sub(rf"\b{re.escape(method)}\b(\(\))?", command, text)
    text = _SWITCH.sub(lambda found: _option(found[1]), text)
    return _VALUE.sub(lambda found: f"{_option(found[1])} ", text)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
