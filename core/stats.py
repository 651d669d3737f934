"""What a reply cost and who paid for its tokens."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass
class DecodeStats:
    """Counts and seconds of one reply.

    ``tokens_per_step`` is (tokens of the verify forwards) / (verify forwards): the first forward, which also
    prefills, is kept apart, and so are forced tokens, which cost no forward of their own.
    """

    prompt_tokens: int = 0
    reused_tokens: int = 0
    prefilled_tokens: int = 0
    emitted: int = 0
    first_emitted: int = 0
    forwards: int = 0
    rows: int = 0
    first_rows: int = 0
    drafted: int = 0
    accepted: int = 0
    forced: int = 0
    vision_passes: int = 0
    prediction_accepted: int = 0
    prediction_rejected: int = 0
    sources: Counter[str] = field(default_factory=Counter)
    proposed: Counter[str] = field(default_factory=Counter)
    ladder: Counter[str] = field(default_factory=Counter)
    dropped_drafters: list[str] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)
    prefill_seconds: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    rest_seconds: float = 0.0
    lossy: list[str] = field(default_factory=list)

    @property
    def steps(self) -> int:
        """Verify forwards after the first one."""
        return max(0, self.forwards - 1)

    @property
    def decode_rows(self) -> int:
        """Rows of the verify forwards after the first one."""
        return self.rows - self.first_rows

    @property
    def tokens_per_step(self) -> float:
        """Emitted tokens per verify forward, forced ones included, first forward apart; 0 without one."""
        return (self.emitted - self.first_emitted) / self.steps if self.steps else 0.0

    @property
    def decode_seconds(self) -> float:
        """Seconds after the first forward."""
        return self.draft_seconds + self.verify_seconds + self.rest_seconds

    @property
    def seconds(self) -> float:
        """All seconds, the first forward included."""
        return self.prefill_seconds + self.decode_seconds

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        values = {k: dict(v) if isinstance(v, Counter) else v for k, v in vars(self).items()}
        return {**values, "tokens_per_step": self.tokens_per_step, "seconds": self.seconds}
