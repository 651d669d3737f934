"""The rows of one ``generate`` call, decoded side by side, each with drafts and KV rows of its own.

The rows agree on every token before any goes on: processors and criteria are called once per token with the ids and
scores of all rows, as in transformers, whatever they hold or count. What a row's own forwards bring in advance is
its drafts' business and is not seen by them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import StoppingCriteriaList
from transformers.generation.logits_process import (
    InfNanRemoveLogitsProcessor,
    SynthIDTextWatermarkLogitsProcessor,
)

from mmspec_agent.core.decode import Ask, Decoder, Step
from mmspec_agent.core.errors import ConstraintConflict, ContextWarning, OptionError
from mmspec_agent.core.noise import ReplyNoise
from mmspec_agent.core.sampling import Draw, Processor, check_row, gumbel_argmax, is_of_transformers, processed


@dataclass(frozen=True)
class BatchRules:
    """How the tokens of a batch are chosen, and what is kept of them.

    ``pad_id``: what finished rows go on with; None where no criterion knows an end-of-sequence id, so that they go on
    with tokens of their own, as in transformers. ``keeps_all``: whether what finished rows hold is returned.
    """

    processors: Sequence[Processor]
    criteria: StoppingCriteriaList
    sampling: bool
    seed: int
    pad_id: int | None
    keep_scores: bool = False
    keep_logits: bool = False
    keeps_all: bool = False
    streamer: Any = None

    @property
    def is_plain(self) -> bool:
        """Whether the tokens are the argmax of the raw logits, and nobody asks for the logits themselves."""
        return not (self.processors or self.sampling or self.keep_scores or self.keep_logits)

    @property
    def run_on(self) -> bool:
        """Whether finished rows have to go on beside the others, because somebody can see what they hold."""
        watching = [*self.processors, *self.criteria]
        return (
            self.pad_id is None
            or self.keep_scores
            or self.keep_logits
            or self.keeps_all
            or any(not is_of_transformers(w) or isinstance(w, SynthIDTextWatermarkLogitsProcessor) for w in watching)
        )


class Row:
    """One row: its decoder, and the place where it waits for its next token."""

    def __init__(self, open_decoder: Callable[[Callable[[Draw], str | None]], Decoder]) -> None:
        self.ending = False
        self.decoder = open_decoder(lambda draw: "stop" if self.ending else None)
        self.ask: Ask | None = None
        self._turns: Generator[Ask | Step, Draw | None, None] = self.decoder.turns()

    def start(self) -> None:
        """Run the first forward."""
        self._go_on(None)

    def take(self, token: int, ending: bool) -> None:
        """Go on with ``token`` to where the next one is asked for, or to the end."""
        self.ending = ending
        self._go_on(Draw(token))

    def _go_on(self, draw: Draw | None) -> None:
        self.ask = None
        try:
            turn = self._turns.send(draw)
            while not isinstance(turn, Ask):
                turn = next(self._turns)
        except StopIteration:
            return
        self.ask = turn


@dataclass
class Batch:
    """The rows of one call. ``ids`` [rows, length] grow by a column per token, padding included."""

    rows: Sequence[Row]
    ids: torch.Tensor
    rules: BatchRules
    vocab_size: int
    scores: tuple[torch.Tensor, ...] = ()
    logits: tuple[torch.Tensor, ...] = ()
    _index: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.prompt_length = self.ids.shape[1]
        self._unfinished = torch.ones(len(self.rows), dtype=torch.long, device=self.ids.device)
        self._noise = [ReplyNoise(self.rules.seed, row=row) for row in range(len(self.rows))]
        self._checks_logits = not any(isinstance(p, InfNanRemoveLogitsProcessor) for p in self.rules.processors)

    def decode(self, context_limit: int | None) -> None:
        """Decode to the end of the last row. ContextWarning if the model's context ends first."""
        rules = self.rules
        while True:
            if any(row.ask is None and row.ending is False for row in self.rows):
                self._warn_of_the_context(context_limit, self.ids.shape[1] - self.prompt_length)
                return
            tokens = self._tokens()
            self.ids = torch.cat([self.ids, tokens[:, None]], dim=1)
            self._unfinished = self._unfinished & ~self._stopped()
            done = bool(self._unfinished.max() == 0)
            if rules.streamer is not None:
                rules.streamer.put(tokens.cpu())
            self._hand_out(tokens.tolist(), done)
            if done:
                return
            self._index += 1

    def _hand_out(self, tokens: list[int], done: bool) -> None:
        goes_on = self._unfinished.tolist()
        for row, token, unfinished in zip(self.rows, tokens, goes_on):
            if row.ask is not None:
                row.take(int(token), done or not (unfinished or self.rules.run_on))

    def _stopped(self) -> torch.Tensor:
        stopped = self.rules.criteria(self.ids, self.scores if self.rules.keep_scores else None)
        if not isinstance(stopped, torch.Tensor) or stopped.shape != self._unfinished.shape:
            raise OptionError(
                "the stopping criteria returned no flag per row; accepted is a boolean tensor "
                f"[{len(self.rows)}] from each"
            )
        return stopped.to(self._unfinished.device)

    def _tokens(self) -> torch.Tensor:
        """The next token of each row [rows]; finished ones get the padding."""
        if self.rules.is_plain:
            best = [row.ask.result.argmax(row.ask.node) if row.ask is not None else 0 for row in self.rows]
            tokens = torch.tensor(best, dtype=torch.long, device=self.ids.device)
        else:
            tokens = self._chosen()
        if self.rules.pad_id is None:
            return tokens
        return tokens * self._unfinished + self.rules.pad_id * (1 - self._unfinished)

    def _chosen(self) -> torch.Tensor:
        logits = torch.cat([self._row_logits(row) for row in self.rows]).to(self.ids.device)
        unfinished = self._unfinished.tolist()
        for row, live in zip(logits, unfinished):
            if live and self._checks_logits:
                check_row(row)
        scores = processed(self.rules.processors, self.ids, logits)
        possible = (scores > float("-inf")).any(dim=-1).tolist()
        if not all(ok or not live for ok, live in zip(possible, unfinished)):
            raise ConstraintConflict(
                "the processors (bans, forced tokens, allowed tokens) leave no token possible at this position; "
                "relax one of them"
            )
        if self.rules.keep_scores:
            self.scores += (scores,)
        if self.rules.keep_logits:
            self.logits += (logits,)
        if not self.rules.sampling:
            return scores.argmax(dim=-1)
        drawn = [
            gumbel_argmax(row, noise, self._index) if live else 0
            for row, noise, live in zip(scores, self._noise, unfinished if self.rules.pad_id is not None else possible)
        ]
        return torch.tensor(drawn, dtype=torch.long, device=self.ids.device)

    def _row_logits(self, row: Row) -> torch.Tensor:
        """[1, V]; zeros for a finished row that nobody looks at."""
        if row.ask is None:
            return torch.zeros(1, self.vocab_size, device=self.ids.device)
        return row.ask.result.row(row.ask.node)

    def _warn_of_the_context(self, limit: int | None, emitted: int) -> None:
        warnings.warn(
            f"generate ended after {emitted} new tokens: the model's context of {limit} tokens is full. Shorten the "
            "prompt or lower max_new_tokens; transformers would go on past it, where the model was not made for",
            ContextWarning,
            stacklevel=2,
        )
