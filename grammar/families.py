"""How model families write tool calls (SYSTEM.md G4): the text around a name and its arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True)
class Family:
    """A tool-call format.

    A reply with calls is ``opener`` + call + (``between`` + call)* + ``closer``; a call is
    ``head % name`` + arguments + ``tail``. ``trigger``: what in free text means that a call has begun; it is a
    prefix of the text of a call. ``controls``: parts that are control tokens where the tokenizer has them.
    ``parallel``: whether the format can hold several calls. ``own_prompt``: the template does not render tools.
    ``short_ids``: the template wants ids of nine letters and digits.
    """

    name: str
    opener: str
    head: str
    tail: str
    between: str
    closer: str
    trigger: str
    controls: tuple[str, ...] = ()
    parallel: bool = True
    own_prompt: bool = False
    name_pattern: str = r"[A-Za-z0-9_.:/-]+"
    short_ids: bool = False

    def call_head(self, name: str) -> str:
        """The text before the arguments of a call to ``name``."""
        quoted = json.dumps(name, ensure_ascii=False)
        return self.head.replace("%NAME%", quoted[1:-1])


_OBJECT: Final = '{"name": "%NAME%", "arguments": '

HERMES: Final = Family(
    "hermes", "<tool_call>\n", _OBJECT, "}", "\n</tool_call>\n<tool_call>\n", "\n</tool_call>", "<tool_call>",
    controls=("<tool_call>", "</tool_call>"),
)  # fmt: skip
LLAMA3: Final = Family(
    "llama3", "", '{"name": "%NAME%", "parameters": ', "}", "", "", '{"name": "', parallel=False,
)  # fmt: skip
MISTRAL: Final = Family(
    "mistral", "[TOOL_CALLS][", _OBJECT, "}", ", ", "]", "[TOOL_CALLS]", controls=("[TOOL_CALLS]",),
    name_pattern=r"[A-Za-z0-9_-]{1,64}", short_ids=True,
)  # fmt: skip
MISTRAL_ARGS: Final = Family(
    "mistral-args", "[TOOL_CALLS]", "%NAME%[ARGS]", "", "[TOOL_CALLS]", "", "[TOOL_CALLS]",
    controls=("[TOOL_CALLS]", "[ARGS]"), name_pattern=r"[A-Za-z0-9_-]{1,64}", short_ids=True,
)  # fmt: skip
PLAIN_JSON: Final = Family(
    "json", "", _OBJECT, "}", "\n", "", '{"name": "', own_prompt=True,
)  # fmt: skip
SMOLLM3: Final = Family(
    "smollm3", "<tool_call>", _OBJECT, "}", "</tool_call>\n<tool_call>", "</tool_call>", "<tool_call>",
    controls=("<tool_call>", "</tool_call>"),
)  # fmt: skip

FAMILIES: Final[Mapping[str, Family]] = {
    family.name: family for family in (HERMES, LLAMA3, MISTRAL, MISTRAL_ARGS, PLAIN_JSON, SMOLLM3)
}


def family_of(template: str | None, response_template: Any = None) -> Family:
    """The format a chat template (or transformers' response template) teaches; plain JSON where it has no tools."""
    text = (template or "") + (json.dumps(response_template, default=str) if response_template else "")
    if "tools" not in text:
        return PLAIN_JSON
    if "[TOOL_CALLS]" in text:
        return MISTRAL_ARGS if "[ARGS]" in text else MISTRAL
    if "<tool_call>" in text and "<function=" not in text and "<arg_key>" not in text:
        return HERMES if "<tool_call>\\n" in text or "<tool_call>\n" in text else SMOLLM3
    if '"parameters": ' in text and ("<|python_tag|>" in text or "<|start_header_id|>" in text):
        return LLAMA3
    return PLAIN_JSON
