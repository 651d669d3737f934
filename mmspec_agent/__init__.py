"""Local language and vision-language models that answer sooner, with the same tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .clip import (
        bundled_clip,
    )
    from .core.compliance import (
        ComplianceProcessor,
    )
    from .core.drafters.base import (
        Drafter,
        DraftState,
        DraftView,
        Outcome,
    )
    from .core.drafters.counts import (
        CountStore,
    )
    from .core.drafters.ngram import (
        NgramDrafter,
    )
    from .core.errors import (
        Cancelled,
        ConstraintConflict,
        ConstraintError,
        ContextOverflow,
        ContextWarning,
        CopyError,
        DrafterWarning,
        EngineBusy,
        FrameError,
        MemoryBudgetExceeded,
        MMSpecError,
        ModelError,
        ModelFetchError,
        ModelNotFound,
        ModelWarning,
        NumericalError,
        OptionError,
        OutputInvalid,
        OutputTypeError,
        PictureError,
        PictureInputError,
        PictureNotFound,
        PromptError,
        SchemaError,
        SessionError,
        SourceEnded,
        SourceError,
        SourceFrozen,
        SourceLost,
        SourceNotFound,
        SourceOpenError,
        SourceOpenTimeout,
        SourceStalled,
        SourceUndecodable,
        SourceWarning,
        StoreError,
        TokenizerMismatch,
        ToolError,
        TrainingDataError,
        UnsupportedModel,
        UnsupportedOption,
        UnsupportedSchema,
    )
    from .core.stats import (
        DecodeStats,
    )
    from .core.tree import (
        DraftTree,
    )
    from .engine import (
        Engine,
    )
    from .grammar.drafter import (
        GrammarDrafter,
    )
    from .models.resolve import (
        load_model,
    )
    from .models.scenes import (
        random_scene,
    )
    from .options import (
        ChatOptions,
    )
    from .reply import (
        Done,
        ReasoningPiece,
        Reply,
        StepPiece,
        TextPiece,
        TokenInfo,
        ToolCall,
        ToolCallPiece,
    )
    from .session import (
        Session,
    )
    from .video.frame import (
        Frame,
    )
    from .video.gate import (
        GateDecision,
        GateOptions,
    )
    from .video.source import (
        open_source,
    )
    from .video.source_options import (
        SourceEvent,
        SourceOptions,
    )
    from .video.watch import (
        Watch,
        WatchAnswer,
    )

__version__ = "0.1.0"

_MODULES = {
    "bundled_clip": "clip",
    "ComplianceProcessor": "core.compliance",
    "Drafter": "core.drafters.base",
    "DraftState": "core.drafters.base",
    "DraftView": "core.drafters.base",
    "Outcome": "core.drafters.base",
    "CountStore": "core.drafters.counts",
    "NgramDrafter": "core.drafters.ngram",
    "Cancelled": "core.errors",
    "ConstraintConflict": "core.errors",
    "ConstraintError": "core.errors",
    "ContextOverflow": "core.errors",
    "ContextWarning": "core.errors",
    "CopyError": "core.errors",
    "DrafterWarning": "core.errors",
    "EngineBusy": "core.errors",
    "FrameError": "core.errors",
    "MemoryBudgetExceeded": "core.errors",
    "MMSpecError": "core.errors",
    "ModelError": "core.errors",
    "ModelFetchError": "core.errors",
    "ModelNotFound": "core.errors",
    "ModelWarning": "core.errors",
    "NumericalError": "core.errors",
    "OptionError": "core.errors",
    "OutputInvalid": "core.errors",
    "OutputTypeError": "core.errors",
    "PictureError": "core.errors",
    "PictureInputError": "core.errors",
    "PictureNotFound": "core.errors",
    "PromptError": "core.errors",
    "SchemaError": "core.errors",
    "SessionError": "core.errors",
    "SourceEnded": "core.errors",
    "SourceError": "core.errors",
    "SourceFrozen": "core.errors",
    "SourceLost": "core.errors",
    "SourceNotFound": "core.errors",
    "SourceOpenError": "core.errors",
    "SourceOpenTimeout": "core.errors",
    "SourceStalled": "core.errors",
    "SourceUndecodable": "core.errors",
    "SourceWarning": "core.errors",
    "StoreError": "core.errors",
    "TokenizerMismatch": "core.errors",
    "ToolError": "core.errors",
    "TrainingDataError": "core.errors",
    "UnsupportedModel": "core.errors",
    "UnsupportedOption": "core.errors",
    "UnsupportedSchema": "core.errors",
    "DecodeStats": "core.stats",
    "DraftTree": "core.tree",
    "Engine": "engine",
    "GrammarDrafter": "grammar.drafter",
    "load_model": "models.resolve",
    "random_scene": "models.scenes",
    "ChatOptions": "options",
    "Done": "reply",
    "ReasoningPiece": "reply",
    "Reply": "reply",
    "StepPiece": "reply",
    "TextPiece": "reply",
    "TokenInfo": "reply",
    "ToolCall": "reply",
    "ToolCallPiece": "reply",
    "Session": "session",
    "Frame": "video.frame",
    "GateDecision": "video.gate",
    "GateOptions": "video.gate",
    "open_source": "video.source",
    "SourceEvent": "video.source_options",
    "SourceOptions": "video.source_options",
    "Watch": "video.watch",
    "WatchAnswer": "video.watch",
}
"""The module below this package that each exported name lives in."""

__all__ = [
    "Cancelled",
    "ChatOptions",
    "ComplianceProcessor",
    "ConstraintConflict",
    "ConstraintError",
    "ContextOverflow",
    "ContextWarning",
    "CopyError",
    "CountStore",
    "DecodeStats",
    "Done",
    "DraftState",
    "DraftTree",
    "DraftView",
    "Drafter",
    "DrafterWarning",
    "Engine",
    "EngineBusy",
    "Frame",
    "FrameError",
    "GateDecision",
    "GateOptions",
    "GrammarDrafter",
    "MMSpecError",
    "MemoryBudgetExceeded",
    "ModelError",
    "ModelFetchError",
    "ModelNotFound",
    "ModelWarning",
    "NgramDrafter",
    "NumericalError",
    "OptionError",
    "Outcome",
    "OutputInvalid",
    "OutputTypeError",
    "PictureError",
    "PictureInputError",
    "PictureNotFound",
    "PromptError",
    "ReasoningPiece",
    "Reply",
    "SchemaError",
    "Session",
    "SessionError",
    "SourceEnded",
    "SourceError",
    "SourceEvent",
    "SourceFrozen",
    "SourceLost",
    "SourceNotFound",
    "SourceOpenError",
    "SourceOpenTimeout",
    "SourceOptions",
    "SourceStalled",
    "SourceUndecodable",
    "SourceWarning",
    "StepPiece",
    "StoreError",
    "TextPiece",
    "TokenInfo",
    "TokenizerMismatch",
    "ToolCall",
    "ToolCallPiece",
    "ToolError",
    "TrainingDataError",
    "UnsupportedModel",
    "UnsupportedOption",
    "UnsupportedSchema",
    "Watch",
    "WatchAnswer",
    "bundled_clip",
    "load_model",
    "open_source",
    "random_scene",
]


def __getattr__(name: str) -> Any:
    """Load torch and transformers on first use, so that ``mmspec --help`` answers at once."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """So that completion in an editor or a shell shows what has not been loaded yet."""
    return sorted({*globals(), *__all__})
