"""Every error a user can cause, as a tree: the names say what went wrong, the text says what to do."""


class MMSpecError(Exception):
    """Base of all errors raised on purpose by this package."""


class OptionError(MMSpecError, ValueError):
    """An option is unknown, or its value is outside what is accepted."""


class UnsupportedOption(OptionError):
    """A known option of transformers that cannot be honoured without changing the answer."""


class PromptError(MMSpecError, ValueError):
    """The prompt cannot be decoded from: empty, of a wrong shape, or of ids the model does not have."""


class ContextOverflow(PromptError):
    """The prompt (with what was asked for) does not fit the model's context."""


class ModelError(MMSpecError):
    """The model cannot be used as a target."""


class UnsupportedModel(ModelError, ValueError):
    """A model whose cache or attention cannot be rolled back to a verified path."""


class ModelNotFound(ModelError, FileNotFoundError):
    """No weights under the given name or folder."""


class TokenizerMismatch(ModelError, ValueError):
    """The tokenizer can produce ids for which the model has no row."""


class NumericalError(ModelError, ArithmeticError):
    """Logits hold NaN or +Inf, or a row has no finite entry: nothing can be drawn from it."""


class MemoryBudgetExceeded(MMSpecError, MemoryError):
    """A request would not fit the memory budget; raised before work starts."""


class ConstraintError(MMSpecError, ValueError):
    """A constraint (grammar, compliance, budget) cannot be satisfied or compiled."""


class ConstraintConflict(ConstraintError):
    """Bans and constraint together leave no legal token."""


class CopyError(MMSpecError, TypeError):
    """An object that owns a model's state was to be copied or pickled."""


class EngineBusy(MMSpecError, RuntimeError):
    """The engine serves another request and was asked not to wait."""


class SessionError(MMSpecError, ValueError):
    """A saved session cannot be read, or belongs to another model."""


class Cancelled(MMSpecError):
    """The request was cancelled by its caller; engine and session stay usable."""


class DrafterWarning(UserWarning):
    """A drafter failed and was dropped for the rest of the request; the answer is unaffected."""


class ContextWarning(UserWarning):
    """An answer of ``generate`` ended where the model's context is full, before the length that was asked for."""


class ModelWarning(UserWarning):
    """A model is served although something in its configuration could not be looked at; the text names it."""


class ModelFetchError(ModelError):
    """Weights could not be downloaded, checked, converted or stored."""


class FrameError(MMSpecError, ValueError):
    """A picture is of a shape, type, size or value range that has no stated conversion to RGB uint8."""


class SourceError(MMSpecError):
    """A video source cannot be used; subclasses say in what way."""


class SourceNotFound(SourceError, FileNotFoundError):
    """No such file, folder, camera or picture."""


class SourceOpenError(SourceError, OSError):
    """The source exists, or should, but does not open: refused, damaged, or not a video."""


class SourceOpenTimeout(SourceOpenError, TimeoutError):
    """The source did not answer within the open time-out."""


class SourceUndecodable(SourceError, ValueError):
    """The source opens and promises frames, and not one of them can be decoded."""


class SourceStalled(SourceError, TimeoutError):
    """No frame arrived within the stall time-out, and reconnecting is switched off or impossible."""


class SourceFrozen(SourceError):
    """A live source repeats the same bytes: the camera is unplugged or its driver hangs."""


class SourceLost(SourceError, ConnectionError):
    """A live source went away and did not come back within the attempts allowed."""


class SourceEnded(SourceError):
    """The last frame has been given out, or the source was closed."""


class SourceWarning(UserWarning):
    """A source gave less than it promised, or a choice was made for the user; frames so far are good."""


class SchemaError(ConstraintError):
    """A JSON Schema is invalid, impossible, too large, or refers to what is never fetched."""


class UnsupportedSchema(SchemaError):
    """A JSON Schema uses keywords that cannot be enforced token by token; ``unenforced`` names each place."""

    def __init__(self, message: str, unenforced: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message)
        self.unenforced = unenforced


class ToolError(ConstraintError):
    """A tool cannot be offered: its name, its schema or the choice of tools is not usable."""


class OutputTypeError(ConstraintError, TypeError):
    """A ``response_format`` that is no known output type."""


class OutputInvalid(MMSpecError, ValueError):
    """A finished reply does not fit the type or the keywords that could only be checked afterwards."""


class PictureError(MMSpecError, ValueError):
    """A picture cannot be used: not a picture, damaged, empty or too large."""


class PictureNotFound(PictureError, FileNotFoundError):
    """There is no picture at the path given."""


class PictureInputError(PromptError):
    """Pixel values, placeholders and ids of a request do not belong together."""


class TrainingDataError(MMSpecError, ValueError):
    """Training data is missing, damaged, or was written by another model."""


class StoreError(ModelError, ValueError):
    """A store of counts cannot be read."""
