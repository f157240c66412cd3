"""Text to tokens and back, for one model and one prompt template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from envservice.base import Outcome, ParsedAction, PromptTemplate, Turn
from envservice.registry import find_spec, make_template
from envservice.response_format import ACTION_END
from services.config.tree import EnvSection
from services.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRenderer:
    """Prompts as the model reads them, answers as the environment receives them."""

    template: PromptTemplate
    tokenizer: PreTrainedTokenizerBase
    stops: tuple[str, ...] = (ACTION_END,)
    """Tags that end an answer; one that the vocabulary has as one token ends it there."""
    stop_ids: tuple[int, ...] = field(init=False)
    """Tokens that end an answer."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop_ids", _stop_ids(self.tokenizer, self.stops))

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


def load_text(model: str, env: EnvSection) -> PromptRenderer:
    """The tokenizer of a Hugging Face folder, with the environment's prompt and tags.

    Raises UserError where the template needs a chat format that the tokenizer lacks.
    """
    from transformers import AutoTokenizer

    template = make_template(env)
    tokenizer: Any = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
    if template.chat and not tokenizer.chat_template:
        raise UserError(f"the tokenizer in {model} has no chat template", "use env.prompt=compact")
    return PromptRenderer(template=template, tokenizer=tokenizer, stops=find_spec(env.name).stops)


def _stop_ids(tokenizer: PreTrainedTokenizerBase, stops: Sequence[str]) -> tuple[int, ...]:
    vocabulary = tokenizer.get_vocab()
    ids = {i for i in (*map(vocabulary.get, stops), tokenizer.eos_token_id) if isinstance(i, int)}
    return tuple(sorted(ids))
