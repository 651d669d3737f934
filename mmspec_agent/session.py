"""Sessions: a conversation that keeps its KV over turns, and can be saved and resumed (SYSTEM.md M2, C9)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from mmspec_agent.core.cache import KVRows
from mmspec_agent.core.errors import PictureError, PromptError, SessionError
from mmspec_agent.core.visual.families import PictureInput
from mmspec_agent.core.visual.placing import Placed, cut_at_borders
from mmspec_agent.core.visual.segments import LOSSY_NAME as INT8_SEGMENTS

from .conversation import gone
from .options import ChatOptions
from .pictures import PictureRules, is_picture_part, load_picture, with_loaded_pictures
from .prompts import normalise_messages
from .reply import Done, Event, Reply
from .text_checks import check_strings

if TYPE_CHECKING:
    from .engine import Engine

FORMAT = 3


class Session:
    """Turns of one conversation. ``messages`` may be edited between turns; what stays the same stays computed."""

    def __init__(self, engine: Engine, system: str | None = None, **defaults: Any) -> None:
        ChatOptions.of(**defaults)
        if system is not None and not isinstance(system, str):
            raise PromptError(f"system is a {type(system).__name__}; accepted is a text")
        check_strings(system, "system", PromptError)
        self._engine = engine
        self._defaults = defaults
        self._conversation = engine.open_conversation()
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []

    def send(self, message: Any, **options: Any) -> Reply:
        """Add a user text, a message, or a list of messages (tool results, say) and answer."""
        for event in self.stream(message, **options):
            if isinstance(event, Done):
                return event.reply
        raise AssertionError("a stream ends with Done")

    def stream(self, message: Any, **options: Any) -> Iterator[Event]:
        """``send`` as events. The turn enters ``messages`` once it is complete; an interrupted one does not."""
        chosen = ChatOptions.of(**{**self._defaults, **options})
        goes_on = chosen.continue_final_message
        # With nothing new the last reply itself, cut by its length say, is gone on with.
        new = [] if goes_on and self.messages and message in ([], ()) else normalise_messages(message)
        # Loaded once here: later turns neither read files again nor see them change.
        new = with_loaded_pictures(new, PictureRules(chosen.allow_remote, chosen.allow_local))
        for event in self._engine.run(self._conversation, [*self.messages, *new], chosen):
            if isinstance(event, Done):
                said = [*self.messages, *new]
                self.messages = [*(said[:-1] if goes_on else said), event.reply.message]
            yield event

    @property
    def cached_tokens(self) -> int:
        """Tokens whose KV rows are held."""
        return self._conversation.sequence.length

    def save(self, path: str | Path) -> None:
        """Write messages, ids and KV rows into the folder ``path``; complete or not at all per file.

        Rows of weights that the model no longer has are left out and computed anew by the next turn.
        """
        self._engine.check_model()
        self._conversation.sequence.renew()
        self._save(path)

    def _save(self, path: str | Path) -> None:
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        conversation = self._conversation
        length = conversation.sequence.length
        tensors: dict[str, torch.Tensor] = {}
        if length:
            for index, (keys, values) in enumerate(conversation.sequence.arena.read(0, length).layers):
                tensors[f"keys.{index}"], tensors[f"values.{index}"] = keys.contiguous(), values.contiguous()
            order, following = conversation.sequence.positions.snapshot(length)
            tensors["order"], tensors["next"] = torch.from_numpy(order), torch.from_numpy(following)
            tensors["regimes"] = torch.tensor(conversation.sequence.regimes)
            tensors["tokens"] = torch.tensor(conversation.tokens[:length])
        save_file(tensors, folder / "kv.safetensors.part")
        state = {
            "format": FORMAT,
            "fingerprint": fingerprint(self._engine),
            "messages": _without_pictures(self.messages, folder),
            "pictures": [_saved_place(one) for one in conversation.pictures],
            "gaps": conversation.gaps,
            "lossy": conversation.lossy,
            "tokens": conversation.tokens,
            "length": length,
            "rendered": conversation.rendered,
        }
        (folder / "session.json.part").write_text(json.dumps(state), encoding="utf-8")
        for name in ("kv.safetensors", "session.json"):
            (folder / f"{name}.part").replace(folder / name)

    @classmethod
    def load(cls, engine: Engine, path: Path, **defaults: Any) -> Session:
        """A saved session; SessionError if the files are missing or damaged, or the model is another one."""
        try:
            state = json.loads((path / "session.json").read_text(encoding="utf-8"))
            tensors = load_file(path / "kv.safetensors")
        except Exception as error:  # json, safetensors and the file system each raise their own
            raise SessionError(f"{path} holds no readable session: {error}") from error
        if not isinstance(state, dict):
            raise SessionError(f"{path} holds no readable session: session.json is a {type(state).__name__}")
        if state.get("format") != FORMAT or state.get("fingerprint") != fingerprint(engine):
            raise SessionError(
                f"the session in {path} was saved with another model, dtype or version; its KV rows would be "
                "wrong here. Start a new session, or load it with the model it belongs to"
            )
        session = cls(engine, **defaults)
        try:
            session.messages = _with_pictures(state["messages"], path)
            session._restore(state, tensors)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise SessionError(f"the session in {path} is damaged: {type(error).__name__}: {error}") from error
        return session

    def _restore(self, state: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        conversation = self._conversation
        conversation.tokens, conversation.rendered = list(state["tokens"]), state["rendered"]
        conversation.pictures = tuple(_loaded_place(one) for one in state["pictures"])
        conversation.gaps = state["gaps"]
        if not state["length"]:
            return
        if tensors["tokens"].tolist() != conversation.tokens[: state["length"]]:
            raise ValueError("session.json and kv.safetensors were not written together")
        conversation.lossy = {str(name): int(first) for name, first in state["lossy"].items()}
        length = self._allowed_rows(state["length"])
        if length:
            count = len(conversation.sequence.arena.layers)
            layers = ((tensors[f"keys.{i}"], tensors[f"values.{i}"]) for i in range(count))
            rows = KVRows(tuple((keys[:, :, :length], values[:, :, :length]) for keys, values in layers))
            conversation.sequence.restore(
                rows, np.asarray(tensors["order"])[:length], np.asarray(tensors["next"])[:length]
            )

    def _allowed_rows(self, length: int) -> int:
        """Saved rows that this engine takes: an exact one leaves out what INT8 made, and computes it anew."""
        conversation = self._conversation
        first = conversation.lossy.get(INT8_SEGMENTS)
        if first is None or self._engine.allows_int8_segments:
            return length
        conversation.lossy = {name: at for name, at in conversation.lossy.items() if at < first}
        return cut_at_borders(min(length, first), conversation.pictures)


def _without_pictures(messages: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """Messages for JSON: pictures become PNG files in ``folder``."""
    plain = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, (list, tuple)):
            parts = [_saved_part(part, folder) for part in content]
            message = {**message, "content": parts}
        plain.append(message)
    return plain


def _saved_part(part: Any, folder: Path) -> Any:
    if not is_picture_part(part):
        return part
    picture = load_picture(part["image"])
    name = f"picture-{picture.digest}.png"
    if not (folder / name).is_file():
        (folder / f"{name}.part").write_bytes(picture.png())
        (folder / f"{name}.part").replace(folder / name)
    return {"type": "image", "image": name}


def _with_pictures(messages: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """The reverse of ``_without_pictures``; SessionError if a picture is missing or damaged."""
    located = [
        {**m, "content": [{**p, "image": folder / Path(p["image"]).name} if is_picture_part(p) else p for p in parts]}
        if isinstance(parts := m.get("content"), list)
        else m
        for m in messages
    ]
    try:
        return with_loaded_pictures(located, PictureRules())
    except PictureError as error:
        raise SessionError(f"{folder} holds no readable session: {error}") from error


def _saved_place(one: Placed) -> dict[str, Any]:
    picture = one.picture
    return {
        "start": one.start,
        "end": one.end,
        "key": picture.key,
        "grid": picture.grid,
        "count": picture.count,
        "lossy": picture.lossy,
    }


def _loaded_place(saved: dict[str, Any]) -> Placed:
    grid = tuple(saved["grid"]) if saved["grid"] is not None else None
    return Placed(
        saved["start"], saved["end"], PictureInput(saved["key"], gone, grid, saved["count"], lossy=saved["lossy"])
    )


def fingerprint(engine: Engine) -> str:
    """Hash of what KV rows depend on: every weight, adapters, configuration (rules of positions included), dtype."""
    engine.check_model()
    return f"{engine.guard.digest}:{engine.target.dtype}"


__all__: Sequence[str] = ("Session", "fingerprint")
