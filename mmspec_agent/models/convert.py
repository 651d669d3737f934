"""Rewrites a checkpoint (GGUF file or Hugging Face folder) as bf16 safetensors plus tokenizer.

Run as a program of its own, because transformers writes bars and warnings to the terminal and keeps
the dequantised weights in memory: both end with the process.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

from mmspec_agent.core.errors import ModelFetchError

from .progress import Progress

_PERCENT = re.compile(r"(\d+)%\|")
_TAIL_CHARACTERS = 2000

END_OF_TURN = 2
START_OF_TURN = 1


def convert(source: Path, target: Path) -> None:
    """Read the checkpoint at `source` (a GGUF file or a folder) and write a plain bf16 Llama folder to `target`.

    A model read from a GGUF refuses `save_pretrained`, since it still calls itself quantised; its weights
    therefore move into a fresh model built from the cleaned configuration.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    folder, options = (source, {}) if source.is_dir() else (source.parent, {"gguf_file": source.name})
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True, **options)
    loaded: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, local_files_only=True, **options)
    model: Any = LlamaForCausalLM(_plain_config(loaded.config)).to(torch.bfloat16)
    model.load_state_dict(loaded.state_dict())
    model.tie_weights()
    model.generation_config = _generation_config()
    tokenizer.model_max_length = model.config.max_position_embeddings
    tokenizer.init_kwargs.pop("local_files_only", None)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def _plain_config(config: Any) -> Any:
    """A copy of `config` without traces of quantisation or of the file it was read from."""
    values = config.to_dict()
    for key in ("quantization_config", "_name_or_path", "_model_name_or_path", "transformers_version"):
        values.pop(key, None)
    values.update(dtype="bfloat16", bos_token_id=START_OF_TURN, eos_token_id=END_OF_TURN, pad_token_id=END_OF_TURN)
    return type(config).from_dict(values)


def _generation_config() -> Any:
    """The end of a turn ends the reply: the GGUF itself does not say so."""
    from transformers import GenerationConfig

    return GenerationConfig(bos_token_id=START_OF_TURN, eos_token_id=END_OF_TURN, pad_token_id=END_OF_TURN)


def convert_in_child(source: Path, target: Path, progress: Progress) -> None:
    """Run `convert` in a child process; raises ModelFetchError with the child's last words if it fails."""
    progress.stage("converting the weights, once", total=100)
    command = [sys.executable, "-P", "-m", __name__, str(source), str(target)]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=_child_environment(), text=True
    ) as child:
        try:
            assert child.stderr is not None
            tail = _follow(child.stderr, progress)
        except BaseException:
            child.kill()
            raise
    if child.returncode:
        raise ModelFetchError(f"Converting {source} failed:\n{tail.strip()}")
    progress.advance_to(100)


def _child_environment() -> dict[str, str]:
    """The child finds the packages its parent found, and never looks at the network."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}


def _follow(stream: IO[str], progress: Progress) -> str:
    """Read what the child writes until it ends: percentages drive `progress`, the rest's end is returned."""
    tail = ""
    highest = 0
    for line in stream:
        percents = [int(found) for found in _PERCENT.findall(line)]
        if percents:
            # Several bars follow each other; the first one is nearly all of the work.
            highest = max(highest, min(percents[-1], 95))
            progress.advance_to(highest)
        else:
            tail = (tail + line)[-_TAIL_CHARACTERS:]
    return tail


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
