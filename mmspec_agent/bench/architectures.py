"""Every causal language model type of transformers, as a small random model: served with the very tokens, or refused.

Each is decoded with guesses that are right, each beside a wrong sibling, so that branching trees are really accepted
and moved; past all windows, which a small copy brings near; and in a second turn over rows that are held.
"""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from mmspec_agent.core.cache import layer_types
from mmspec_agent.core.controller import Controller
from mmspec_agent.core.drafters.base import DraftView, Outcome
from mmspec_agent.core.errors import MMSpecError
from mmspec_agent.core.small import VOCAB, small_config, small_model
from mmspec_agent.core.tree import ROOT, DraftTree
from mmspec_agent.engine import Engine
from mmspec_agent.models.progress import Progress

from .common import Bar, Report, environment

OUTCOMES = ("equal", "refused", "not built", "wrong", "error")
PROMPTS = (9, 40)
NEW_TOKENS = 24
CHUNK = 14
"""Types tried in one process: a crash ends that process only."""


class Verdict(NamedTuple):
    """What became of a type: an outcome of ``OUTCOMES``, its reason, and how many guesses were accepted."""

    name: str
    outcome: str
    detail: str = ""
    accepted: int = 0


@dataclass(frozen=True)
class ArchitectureOptions:
    """Which types: ``names``, or every ``step``-th of all."""

    names: tuple[str, ...] = ()
    step: int = 1


class Oracle:
    """A drafter that knows the answer and puts a wrong sibling beside every right guess."""

    name = "oracle"
    needs_hidden = False
    keeps_to_constraint = False

    def __init__(self) -> None:
        self.truth: list[int] = []

    def open(self) -> Oracle:
        """Itself: it keeps nothing."""
        return self

    def propose(self, view: DraftView, budget: int) -> DraftTree:
        """The next right tokens, wrong ones first."""
        tokens: list[int] = []
        parents: list[int] = []
        before = ROOT
        for token in self.truth[len(view.tokens) : len(view.tokens) + budget // 2]:
            tokens += [3 + (token + 7) % (VOCAB - 8), token] if token != 3 + (token + 7) % (VOCAB - 8) else [2, token]
            parents += [before, before]
            before = len(tokens) - 1
        return DraftTree(tuple(tokens), tuple(parents), ("oracle",) * len(tokens), (1.0,) * len(tokens))

    def observe(self, outcome: Outcome) -> None:
        """Nothing to learn."""


class TakesAll(Controller):
    """Verifies every guess, whatever it costs."""

    def budget(self, pending: int = 1) -> int:
        return 16

    def choose(self, tree: DraftTree, pending: int, room: int) -> DraftTree:
        return tree.trim(min(16, room))


def causal_types() -> list[str]:
    """Every type that ``AutoModelForCausalLM`` knows."""
    return list(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def build(name: str) -> PreTrainedModel:
    """A small random model of a type; whatever its class raises where it needs more than its configuration says."""
    config_class = CONFIG_MAPPING[name]
    model_class = MODEL_FOR_CAUSAL_LM_MAPPING[config_class]
    model_class = model_class[0] if isinstance(model_class, tuple) else model_class
    config = config_class()
    failed: Exception | None = None
    for wanted in _candidates(config):
        try:
            model = small_model(model_class, small_config(wanted))
            with torch.inference_mode():
                model(input_ids=torch.tensor([[5, 6, 7]]))
        except Exception as error:  # whatever a class raises
            failed = failed or error
            continue
        for part in (model.config, model.generation_config):
            part.eos_token_id = part.pad_token_id = None
        return model
    assert failed is not None
    raise failed


def judge(name: str) -> Verdict:
    """Build a type and compare it with its own ``generate``."""
    try:
        model = build(name)
    except Exception as error:  # as in build
        return _unbuilt(name, error)
    oracle = Oracle()
    try:
        engine = Engine(model, drafters=[oracle])
    except MMSpecError as error:
        return Verdict(name, "refused", str(error))
    except Exception as error:  # what this looks for
        return Verdict(name, "error", f"at creation, {type(error).__name__}: {error}")
    engine.controller = TakesAll()
    try:
        return _compared(name, model, engine, oracle)
    except MMSpecError as error:
        return Verdict(name, "refused", str(error))
    except Exception as error:  # what this looks for
        return Verdict(name, "error", f"{type(error).__name__}: {error}")


def _compared(name: str, model: PreTrainedModel, engine: Engine, oracle: Oracle) -> Verdict:
    rng = np.random.default_rng(0)
    accepted = 0
    for length in PROMPTS:
        ids = torch.from_numpy(rng.integers(3, VOCAB - 1, (1, length)))
        for given in (ids, None):
            # The second turn keeps what both texts share and goes on with other tokens.
            prompt = ids if given is not None else torch.cat([torch.tensor([oracle.truth[:-9]]), ids[:, :4]], dim=1)
            oracle.truth = model.generate(prompt, max_new_tokens=NEW_TOKENS, do_sample=False)[0].tolist()
            ours = engine.generate(prompt, max_new_tokens=NEW_TOKENS, do_sample=False)[0].tolist()
            if ours != oracle.truth:
                at = next(i for i, (a, b) in enumerate(zip(ours, oracle.truth)) if a != b)
                return Verdict(name, "wrong", f"token {at - prompt.shape[1]} behind {prompt.shape[1]}")
            accepted += engine.last_stats.accepted if engine.last_stats is not None else 0
    return Verdict(name, "equal", f"{engine.target.attention} attention", accepted)


def _unbuilt(name: str, error: Exception) -> Verdict:
    """Refused all the same where the configuration alone is a reason; not built otherwise."""
    try:
        config = CONFIG_MAPPING[name]()
        if not getattr(config, "is_encoder_decoder", False):
            layer_types(config.get_text_config(decoder=True))
    except MMSpecError as refusal:
        return Verdict(name, "refused", str(refusal))
    except Exception as raised:  # a configuration that does not build by itself
        error = raised
    return Verdict(name, "not built", f"{type(error).__name__}: {' '.join(str(error).split())[:160]}")


def _candidates(config: PreTrainedConfig) -> Iterator[PreTrainedConfig]:
    yield config
    text = config.get_text_config(decoder=True)
    if text is not config:
        yield text


def run(options: ArchitectureOptions, progress: Progress) -> Report:
    """Judge the types, some in each of several processes."""
    names = list(options.names) or causal_types()[:: options.step]
    verdicts: list[Verdict] = []
    progress.stage("architectures", len(names))
    for start in range(0, len(names), CHUNK):
        verdicts += _in_process(names[start : start + CHUNK])
        progress.advance_to(len(verdicts))
    counts = Counter(verdict.outcome for verdict in verdicts)
    report = Report("architectures", environment(types=len(names)))
    report.arms = {outcome: counts[outcome] for outcome in OUTCOMES}
    report.details["types"] = [verdict._asdict() for verdict in verdicts]
    report.bars = [
        Bar("wrong tokens", counts["wrong"], 0, at_most=True),
        Bar("raw errors", counts["error"], 0, at_most=True),
        Bar("types served or refused by name", counts["equal"] + counts["refused"], 1),
    ]
    return report


def _in_process(names: Sequence[str]) -> list[Verdict]:
    command = [sys.executable, "-m", __name__, *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = [Verdict(*json.loads(line)) for line in done.stdout.splitlines() if line.startswith("[")]
    for name in names[len(found) :][:1]:
        found.append(Verdict(name, "error", f"the process ended with status {done.returncode}"))
    rest = names[len(found) :]
    return found + (_in_process(rest) if rest else [])


def main(names: Sequence[str]) -> None:
    """Judge ``names`` in this process, a JSON line for each."""
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    for name in names:
        print(json.dumps(list(judge(name))), flush=True)


def table(types: Sequence[dict[str, Any]]) -> str:
    """The types by outcome, as Markdown."""
    lines = []
    for outcome in OUTCOMES:
        names = [one["name"] for one in types if one["outcome"] == outcome]
        if names:
            lines.append(f"| {outcome} | {len(names)} | {', '.join(names)} |")
    return "\n".join(["| outcome | types | names |", "|---|---|---|", *lines])


if __name__ == "__main__":
    main(sys.argv[1:])
