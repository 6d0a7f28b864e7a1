"""Asking a chat template to keep the thinking of earlier turns: what each family of templates calls it.

One data table, for templates and for engines. The one non-obvious fact: a template takes the variables it knows and
ignores the others, and vLLM and SGLang hand all of them on, so every request may carry the whole table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

KEEP_THINKING: Final[Mapping[str, bool]] = {
    "preserve_thinking": True,  # Qwen3.6 and 3.8, Gemma 4
    "clear_thinking": False,  # GLM 4.7 to 5.2
    "preserved_thinking": True,  # Hunyuan 3
    "drop_thinking": False,  # DeepSeek V4
    "truncate_history_thinking": False,  # Nemotron 3
}
TEMPLATE_MEMBER: Final = "chat_template_kwargs"
REASONING_MEMBERS: Final = ("reasoning_content", "reasoning")
"""Where an assistant message carries its thinking: older engines read the first, newer ones the second."""
TEMPLATE_ENGINES: Final = frozenset({"vllm", "sglang", "sglang_whole", "embedded"})
"""Engines that take variables for the template; a foreign service may refuse a member that it does not know."""
