"""The small policy: a Llama of half a million weights, with a vocabulary and a chat template of its own.

Its template shows of the harness's tools their names and parameters and leaves the system prompt and the descriptions
out: nothing that small can read them, and a session is a hundred tokens instead of fifteen hundred. What it was shown
is what is recorded and trained on, as with any model. The non-obvious fact: the tokenizer splits at quotes, so that a
name is the same tokens in a request and in a call.
"""

from __future__ import annotations

import shutil
from importlib import resources
from itertools import islice
from pathlib import Path
from typing import Any, Final

import torch
from msgspec import json
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

from forge.learn.tasks import Tool, call, instances

BEGIN: Final = "<|im_start|>"
END: Final = "<|im_end|>"
VOCABULARY: Final = 512
PARAMETERS: Final = {
    Tool.READ: ("path", "offset", "limit"),
    Tool.BASH: ("command", "timeout"),
    Tool.EDIT: ("path", "edits"),
    Tool.WRITE: ("path", "content"),
}
"""Of pi's tools, in its order, as the template shows them."""
FRAME: Final = "".join(f"tool {tool}({', '.join(names)})\n" for tool, names in PARAMETERS.items()) + (
    "user\nassistant\n<tool_response>\n</tool_response>\n"
)
"""What the template writes around every session, for the vocabulary."""
TEXTS: Final = 600
TOKENIZER: Final = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BEGIN, "eos_token": END}
"""For programs that load tokenizers by name, as vLLM does: of a Llama they would make another one."""
WEIGHTS: Final = "model.safetensors"
PYTORCH: Final = {"format": "pt"}
MICRO_TOKENS: Final = 512
"""For a model this small a pack of some rows costs less than each alone."""
CONTEXT: Final = 8192
"""Far more than a session takes: pi asks for the room that its own guess at the prompt's size leaves."""
SHAPE: Final[dict[str, Any]] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "initializer_range": 0.08,
}
"""At the usual 0.02 a model this narrow needs five times the steps until it copies names."""


def make(folder: Path, seed: int) -> Path:
    """A model directory with random weights."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    template = resources.files("forge.learn").joinpath("template.jinja").read_text(encoding="utf-8")
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    (folder / "tokenizer_config.json").write_bytes(json.encode(TOKENIZER))
    torch.manual_seed(seed)
    config = LlamaConfig(
        **SHAPE,
        vocab_size=tokenizer.get_vocab_size(),
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.token_to_id(BEGIN),
        eos_token_id=tokenizer.token_to_id(END),
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def untied(model: Path, target: Path) -> None:
    """The same model with an output layer of its own. vLLM on CPU packs the output layer when it starts, and again only
    if a checkpoint has one: reloaded, a tied model would mix new layers with the first output layer (seen in 0.32)."""
    shutil.copytree(model, target, dirs_exist_ok=True)
    tensors = load_file(target / WEIGHTS)
    save_file(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, target / WEIGHTS, PYTORCH)
    config = target / "config.json"
    config.write_bytes(json.encode(json.decode(config.read_bytes()) | {"tie_word_embeddings": False}))


def _tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    texts = [
        f"{FRAME}{each.prompt}\n{call(tool, each)}"
        for each in islice(instances(0, held_out=False), TEXTS)
        for tool in Tool
    ]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[BEGIN, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer
