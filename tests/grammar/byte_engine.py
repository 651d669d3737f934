"""llguidance over single bytes: what a grammar accepts, without a vocabulary."""

from __future__ import annotations

from collections.abc import Callable

from llguidance import LLMatcher, LLTokenizer


def accepting(rules: str) -> Callable[[str], bool]:
    """Whether a text is accepted by Lark rules; their first rule is ``start``."""
    matcher = LLMatcher(LLTokenizer("byte"), LLMatcher.grammar_from_lark(rules), log_level=0)
    assert not matcher.is_error(), matcher.get_error()

    def accepts(text: str) -> bool:
        here, data = matcher.deep_copy(), list(text.encode())
        return bool(here.try_consume_tokens(data) == len(data) and here.is_accepting())

    return accepts
