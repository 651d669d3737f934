"""What a tokenizer's ids spell: built once per tokenizer, shared by every grammar over it."""

from __future__ import annotations

import json
import re
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import llguidance
import numpy as np
import numpy.typing as npt

from mmspec_agent.core.constraint import TokenMask, Words
from mmspec_agent.core.errors import TokenizerMismatch

_MOST_KEPT = 4096
_LONGEST_KEPT = 200
_BLOCK = 96
_PLAIN = frozenset(range(0x20, 0x100)) - {0x22, 0x5C, 0x7F}
_NUMBER_PART = re.compile(rb"-?[0-9]*(?:\.[0-9]*)?(?:[eE][+-]?[0-9]*)?")


@dataclass(frozen=True)
class Vocabulary:
    """The bytes of every id, the control ids, and llguidance's view of both.

    ``spelling[i]``: bytes of id i as they appear in decoded text; ``controls``: ids that are markup and never
    plain text (chat markers, tool openers); ``eos_ids``: what may end a reply, the one to prefer first.
    """

    engine: Any
    spelling: tuple[bytes, ...]
    controls: frozenset[int]
    eos_ids: tuple[int, ...]
    _ids: dict[bytes, int] = field(repr=False)

    @classmethod
    def of(cls, tokenizer: Any, eos_ids: Sequence[int] | None = None) -> Vocabulary:
        """The vocabulary of a fast Hugging Face tokenizer, cached as long as the tokenizer lives.

        ``eos_ids`` default to the tokenizer's own. Raises TokenizerMismatch for a tokenizer without the fast
        backend, whose byte spellings cannot be known.
        """
        ends = tuple(eos_ids) if eos_ids else (tokenizer.eos_token_id,)
        if ends == (None,):
            raise TokenizerMismatch(
                "The tokenizer names no end-of-sequence token, so a grammar could never end a reply; "
                "pass eos_ids, or set tokenizer.eos_token."
            )
        with _LOCK:
            known = _CACHE.setdefault(tokenizer, {})
            if ends not in known:
                known[ends] = cls._build(tokenizer, ends)
            return known[ends]

    @classmethod
    def _build(cls, tokenizer: Any, eos_ids: tuple[int, ...]) -> Vocabulary:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise TokenizerMismatch(
                f"{type(tokenizer).__name__} has no fast backend; grammars need a fast tokenizer "
                "(AutoTokenizer.from_pretrained(..., use_fast=True))."
            )
        spec = json.loads(backend.to_str())
        spec["padding"] = spec["truncation"] = None
        controls = {}
        for added in spec.get("added_tokens", ()):
            if added["special"] or _is_markup(added["content"]):
                controls[added["id"]] = added["content"]
                # Renamed, so that llguidance never writes a control id where a schema spells its text.
                added.update(content=f"<|\ue000{added['id']}\ue000|>", special=True, normalized=False)
        text = json.dumps(_renamed(spec, controls))
        engine = llguidance.LLTokenizer(text, eos_token=list(eos_ids))
        spelling = [bytes(engine.decode_bytes([i])) for i in range(engine.vocab_size)]
        for i, content in controls.items():
            spelling[i] = content.encode()
        ids = {s: i for i, s in reversed(list(enumerate(spelling))) if s and i not in controls}
        return cls(engine, tuple(spelling), frozenset(controls), eos_ids, ids)

    @property
    def size(self) -> int:
        """Number of ids."""
        return len(self.spelling)

    def warm_up(self) -> None:
        """Work out what is found by a look at all ids."""
        self.not_control, self.plain_count, self.single_ascii, self.longest_number, self.longest  # noqa: B018
        self.writes_exponents, self.most_openers  # noqa: B018

    def id_of(self, spelled: bytes) -> int | None:
        """The plain id spelled exactly so, if there is one."""
        return self._ids.get(spelled)

    def control(self, text: str) -> int | None:
        """The control id spelled ``text``, if the tokenizer has one."""
        return self._control_ids.get(text.encode())

    def tokenize(self, text: str | bytes) -> list[int]:
        """Canonical ids of plain text; control spellings are split like any other text."""
        data = text.encode() if isinstance(text, str) else text
        if len(data) > _LONGEST_KEPT:
            return list(self.engine.tokenize_bytes(data))
        known = self._tokenized.get(data)
        if known is None:
            if len(self._tokenized) >= _MOST_KEPT:
                self._tokenized.clear()
            known = self._tokenized[data] = tuple(self.engine.tokenize_bytes(data))
        return list(known)

    def spelled_length(self, data: bytes) -> int:
        """Tokens of ``data``, or a few more: it is cut from its end, so that texts with one ending share the work."""
        length = 0
        for end in range(len(data), 0, -_BLOCK):
            length += len(self.tokenize(data[max(0, end - _BLOCK) : end]))
        return length

    @cached_property
    def _tokenized(self) -> dict[bytes, tuple[int, ...]]:
        """Texts met lately: drafts spell the same values and endings again and again."""
        return {}

    def decode(self, ids: Sequence[int]) -> bytes:
        """The bytes of ``ids``, control ids by their spelling."""
        return b"".join(self.spelling[i] for i in ids)

    @cached_property
    def _control_ids(self) -> dict[bytes, int]:
        return {self.spelling[i]: i for i in self.controls}

    @cached_property
    def not_control(self) -> Words:
        """Bit mask of everything but control ids, end-of-sequence ids kept."""
        return self._words(i for i in range(self.size) if i not in self.controls or i in self.eos_ids)

    @cached_property
    def inside_string(self) -> Words:
        """Bit mask of ids that stay inside a JSON string: no quote, backslash, control character or half character."""
        return self._words(i for i, s in enumerate(self.spelling) if s and i not in self.controls and _is_plain(s))

    def is_plain(self, token: int) -> bool:
        """Whether ``inside_string`` holds an id."""
        return TokenMask(self.inside_string, self.size).allows(token)

    @cached_property
    def plain_count(self) -> int:
        """How many ids ``inside_string`` holds."""
        return int(TokenMask(self.inside_string, self.size).bools().sum())

    @cached_property
    def single_ascii(self) -> Words:
        """Bit mask of ids that spell one ASCII character."""
        plain = (i for i in range(self.size) if i not in self.controls)
        return self._words(i for i in plain if len(self.spelling[i]) == 1 and self.spelling[i][0] < 0x80)

    @cached_property
    def numeric(self) -> tuple[tuple[int, bytes], ...]:
        """Ids that begin with a character of a number."""
        return tuple((i, s) for i, s in enumerate(self.spelling) if _number_run(s) and i not in self.controls)

    @cached_property
    def longest_number(self) -> int:
        """Most number characters any id begins with."""
        return max((_number_run(s) for _, s in self.numeric), default=0)

    @cached_property
    def longest(self) -> int:
        """Most bytes any id spells."""
        return max(map(len, self.spelling))

    @cached_property
    def most_openers(self) -> int:
        """Most brackets and braces any id opens."""
        plain = (s for i, s in enumerate(self.spelling) if i not in self.controls)
        return max((s.count(b"{") + s.count(b"[") for s in plain), default=0)

    @cached_property
    def writes_exponents(self) -> bool:
        """Whether an id may write an exponent of several digits in one go."""
        return any(re.match(rb"[0-9.]+[eE][+-]?[0-9]{2}", s) for _, s in self.numeric)

    def _words(self, ids: Any) -> Words:
        return TokenMask.of(list(ids), self.size).words


def _number_run(spelled: bytes) -> int:
    found = _NUMBER_PART.match(spelled)
    return found.end() if found else 0


def _is_plain(spelled: bytes) -> bool:
    if not _PLAIN.issuperset(spelled):
        return False
    try:
        spelled.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_markup(content: str) -> bool:
    return len(content) > 2 and (content[0], content[-1]) in {("<", ">"), ("[", "]")}


def _renamed(spec: dict[str, Any], controls: dict[int, str]) -> dict[str, Any]:
    """The vocabulary's own entries of control ids follow their renamed added tokens."""
    vocab = spec["model"].get("vocab")
    if isinstance(vocab, dict):
        for i, content in controls.items():
            if vocab.get(content) == i:
                del vocab[content]
                vocab[f"<|\ue000{i}\ue000|>"] = i
    elif isinstance(vocab, list):
        for i in controls:
            if i < len(vocab):
                vocab[i][0] = f"<|\ue000{i}\ue000|>"
    return spec


def bits(words: Words, size: int) -> npt.NDArray[np.int64]:
    """The ids set in a bit mask, ascending."""
    return TokenMask(words, size).tokens()


_LOCK = threading.Lock()
_CACHE: weakref.WeakKeyDictionary[Any, dict[tuple[int, ...], Vocabulary]] = weakref.WeakKeyDictionary()
