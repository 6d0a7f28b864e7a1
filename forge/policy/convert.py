"""One GGUF file to a plain fp32 Hugging Face directory; run as a program by ``model``.

Not obvious: saving what transformers reads from a quantised file is refused, so the weights go through a fresh,
unquantised model; and the chat template in the file leaves tools out, so ours is written instead.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import transformers

from forge.policy.template import default_template


def convert(gguf: Path, into: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    quantised = transformers.AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name)
    leave = ("quantization_config", "_model_name_or_path")
    config = {k: v for k, v in quantised.config.to_dict().items() if k not in leave}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config)).to(torch.float32)
    model.load_state_dict(quantised.state_dict())
    model.tie_weights()
    model.save_pretrained(into)
    tokenizer.chat_template = default_template()
    tokenizer.save_pretrained(into)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
