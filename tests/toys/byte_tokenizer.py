"""A tokenizer with a token per byte, whose chat template shows roles, tools, their calls and the end of messages."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

TEMPLATE = ("{% if tools %}[tools]{{ tools | tojson }}<|end|>{% endif %}"
            "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}"
            "{% if m['tool_calls'] %}{{ m['tool_calls'] | tojson }}{% endif %}<|end|>{% endfor %}"
            "{% if add_generation_prompt %}[assistant]{% endif %}")


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """258 tokens: 1 ends an answer, 2 and up are bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i + 2 for i, c in enumerate(alphabet)} | {"<|end|>": 1}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", clean_up_tokenization_spaces=False)
    fast.chat_template = TEMPLATE
    return fast
