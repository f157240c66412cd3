"""The model that a prompting baseline asks: an endpoint (endpoint.py), or our own sampler without a run around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import msgspec

from rollout.prompt_renderer import PromptRenderer
from services.answer_end import answer_end
from services.chat import ChatRefused, Message
from services.config.sections import RolloutSection
from services.errors import UserError

if TYPE_CHECKING:
    from rollout.engine.engine import Engine


class ModelAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One answer, and its cost in tokens. None: the endpoint does not count tokens."""

    text: str
    prompt_tokens: int | None
    answer_tokens: int | None


class ContextFull(Exception):
    """The conversation is longer than the model reads. It ends the trial, which keeps its true reward."""


class AskedModel(Protocol):
    """A model that answers conversations. Several calls may run at once."""

    async def ask(self, messages: Sequence[Message], *, seed: int) -> ModelAnswer:
        """Returns the next message. Raises ContextFull, UserError if the request is refused, or EngineFault."""
        ...


@dataclass(slots=True, kw_only=True)
class SampledModel:
    """A model in this process's engine, that of rollout workers."""

    engine: Engine
    text: PromptRenderer
    limits: RolloutSection
    temperature: float
    tags: bool
    """Whether the environment's tags end an answer, as in training. Otherwise an answer ends only where it would behind
    an endpoint: a thought or a plan in prose may hold a tag that is a common token, such as a full stop."""
    _asked: int = field(default=0, init=False)
    _opening: str = field(default="", init=False)
    _ends: tuple[tuple[int, ...], tuple[str, ...]] = field(default=((), ()), init=False)

    def __post_init__(self) -> None:
        assert self.text.chat is not None
        talk = answer_end(self.text.tokenizer, self.text.chat, ends=self.text.end_ids)
        self._ends = (self.text.stop_ids, self.text.stop_texts) if self.tags else (talk.stop_ids, ())
        self._opening = self.text.chat.opening()  # whatever env.prompt is: methods always chat

    async def ask(self, messages: Sequence[Message], *, seed: int) -> ModelAnswer:
        """Returns the answer. Raises ContextFull for a prompt above rollout.max_prompt_tokens, UserError for messages
        that the chat template or the model's vocabulary cannot write, and EngineFault."""
        assert self.text.chat is not None
        try:
            prompt = self.text.encode(self.text.chat.text(messages))
        except ChatRefused as error:
            raise UserError(f"the conversation cannot be written for this model ({error})",
                            "set model.chat_template to a template that takes it, or ask another model") from None
        if len(prompt) > self.limits.max_prompt_tokens:
            raise ContextFull(f"the prompt has {len(prompt)} tokens")
        self._asked += 1
        sample = await self.engine.sample(
            prompt, temperature=self.temperature, seed=seed, max_tokens=self.limits.max_response_tokens,
            stop_token_ids=self._ends[0], stop_texts=self._ends[1], request_id=f"asked/{self._asked}")
        return ModelAnswer(text=self._opening + self.text.decode(sample.ids.tolist()), prompt_tokens=len(prompt),
                           answer_tokens=len(sample.ids))
