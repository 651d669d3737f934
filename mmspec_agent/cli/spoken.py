"""Errors in the language of the command line: options by their flags."""

import re
from collections.abc import Mapping

FLAGS = {
    "max_new_tokens": "--max-new-tokens",
    "lossy_skip_s": "--lossy-skip",
    "open_timeout": "--open-timeout",
    "read_timeout": "--read-timeout",
    "stall_timeout": "--stall-timeout",
    "frozen_timeout": "--frozen-timeout",
    "max_frame_tokens": "--max-frame-tokens",
    "time_stamps": "--time-stamps",
    "keep_answers": "--keep-answers",
    "gate option threshold": "--gate-threshold",
    "gate option max_age_s": "--gate-max-age",
    **{
        name: f"--{name}" for name in ("fps", "rate", "rotation", "every", "window", "temperature", "seed", "reconnect")
    },
}
_SENTENCES = {
    "reconnect=True": "--reconnect left out",
    "frozen_timeout=None": "--frozen-timeout 0",
    "live=False": "--every-frame",
    "live=True": "--live",
}


def spoken(text: str, flags: Mapping[str, str] = FLAGS) -> str:
    """``fps=0 was given`` becomes ``--fps 0 was given``; words that are no options stay."""
    for sentence, said in _SENTENCES.items():
        text = text.replace(sentence, said)
    for name, flag in flags.items():
        text = re.sub(rf"(?<![\w-]){re.escape(name)}=(?=\S)", f"{flag} ", text)
        if "_" in name:
            text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w=])", flag, text)
    return text
