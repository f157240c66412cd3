"""Text to tokens and back, for one model and one prompt template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from envservice.base import Outcome, ParsedAction, PromptTemplate, Turn
from services.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ANSWER_END = "</action>"
"""A model whose vocabulary has this as one token ends its answers with it: nothing after it is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Prompts as the model reads them, answers as the environment receives them."""

    template: PromptTemplate
    tokenizer: PreTrainedTokenizerBase
    stop_ids: tuple[int, ...] = field(init=False)
    """Tokens that end an answer."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop_ids", _stop_ids(self.tokenizer))

    def prompt(self, first: Outcome, turns: Sequence[Turn], now: Outcome) -> list[int]:
        """Token ids of the step after `turns`."""
        text = self.template.render(first, turns, now)
        if self.template.chat:
            message = [{"role": "user", "content": text}]
            text = str(self.tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True))
        return self.tokenizer.encode(text, add_special_tokens=False)

    def parse(self, response_ids: np.ndarray) -> ParsedAction:
        """`response_ids` [R] as sampled."""
        return self.template.parse(str(self.tokenizer.decode(response_ids.tolist(), skip_special_tokens=True)))


def load_text(model: str, template: PromptTemplate) -> Text:
    """The tokenizer of a Hugging Face folder. Raises UserError where the template needs a chat format it lacks."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    if template.chat and not tokenizer.chat_template:
        raise UserError(f"the tokenizer in {model} has no chat template", "use env.prompt=compact")
    return Text(template=template, tokenizer=tokenizer)


def _stop_ids(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    end = tokenizer.get_vocab().get(ANSWER_END)
    ids = {i for i in (end, tokenizer.eos_token_id) if isinstance(i, int)}
    return tuple(sorted(ids))
