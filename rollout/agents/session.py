"""One episode of an agent: its calls of the model, each recorded as it was sampled, and the rewards between them.

A step is one call: its prompt and its answer as token ids, exactly as the engine read and sampled them. No step is made
from text that an agent sends back. So if an agent edits its history, that changes the prompt of the next call, but no
recorded step.

A call continues an earlier one if its prompt begins with exactly the tokens of that call, prompt and answer. Tokens
alone decide. A history that was edited, or that became other tokens on its way through text, continues nothing: its
call starts a row of its own, and is counted as a break.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, SupportsFloat, cast

import msgspec
import numpy as np
import numpy.typing as npt

from envservice.base import Outcome
from envservice.text.response_format import split_thought
from envservice.text.tool_calls import ParsedAnswer, call_id, parse_calls
from rollout.engine.sample import cut_at
from rollout.prompt_renderer import PromptRenderer
from services.chat import THINK_END, Message
from services.errors import Fault
from services.records import EpisodeEnd, Step, Ticket, choices_digest
from services.rewards import LARGEST_REWARD, within_reward_limit
from services.seeds import seed_for

if TYPE_CHECKING:
    from rollout.engine.engine import Engine, Sample


QUICK_TEXT = 1 << 16
"""Longest prompt in characters that is tokenized in the event loop, which it holds for some hundredths of a second."""


class ExtremeReward(ValueError):
    """A reward that is no number within LARGEST_REWARD, or that makes its step's scaled sum larger."""


class EpisodeOver(Exception):
    """A budget of the episode is used up; `end` is which one. The episode keeps its true reward.

    `lifts`: whether the episode continues if a later prompt is shorter.
    """

    def __init__(self, end: EpisodeEnd, message: str, *, lifts: bool = False) -> None:
        super().__init__(message)
        self.end: EpisodeEnd = end
        self.lifts = lifts


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatAnswer:
    """The answer of the model to one call."""

    text: str
    """The entire answer as text, with the thought that the chat template opens."""
    parsed: ParsedAnswer
    prompt_tokens: int
    sample: Sample
    stop: str | None = None
    """The one of the request's stop texts that ended it."""

    @property
    def content(self) -> str:
        """The answer without its tool calls."""
        return self.parsed.content

    def call_id(self, place: int) -> str:
        """The id of its call at this place."""
        return call_id(self.parsed.calls[place], f"{self.prompt_tokens} {place}")


@dataclass(slots=True)
class StoredAnswers:
    """The answers of an episode that its later calls may name by their ids (OpenAI's Responses API)."""

    conversations: dict[str, list[Message]] = field(default_factory=dict[str, list[Message]])
    """Maps ids of answers to the conversations that end with them, without instructions."""
    items: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """Maps ids of items to the items of these answers."""


@dataclass(slots=True, kw_only=True)
class AgentSession:
    """The `llm` of an agent. Calls may overlap; they become steps in the order of their answers."""

    ticket: Ticket
    engine: Engine
    text: PromptRenderer
    prompt_tokens: int
    """Longest prompt of a call, in tokens."""
    response_tokens: int
    """Longest answer of a call, in tokens."""
    max_calls: int
    reward_scale: float = 1.0
    base_url: str = ""
    """Address of this episode for clients of OpenAI's API. They need nothing else but `api_key`."""
    api_key: str = ""
    steps: list[Step] = field(default_factory=list)
    seen: Outcome | None = None
    """The environment's latest outcome, once the agent has looked. It is the state of the next calls' credit."""
    rewarded: bool = False
    """Whether the agent or the environment gave a reward, which may be 0."""
    won: bool | None = None
    """Whether the episode was won, as the agent reports. None: the environment decides, or without one the reward does:
    the episode is won if it is positive."""
    over: EpisodeOver | None = None
    """The budget that ended the episode, also if the agent caught the exception. A prompt that is too long ends it
    unless a later prompt fits."""
    refused: EpisodeOver | None = None
    """The latest refusal that explains an error of the agent: of a prompt that was too long, or of an action after the
    end of the game. The episode may have continued after it."""
    fault: Fault | None = None
    """Our fault that ended the episode, also if the agent caught the exception."""
    stored: StoredAnswers = field(default_factory=StoredAnswers)
    _begun: int = 0
    _given_up: int = 0
    """Calls without an answer, which do not count among `max_calls`."""
    _opening: str | None = field(init=False, default=None)

    @property
    def server_url(self) -> str:
        """The endpoint's address. Anthropic's client takes it as its `base_url`, as it adds `/v1` itself."""
        return self.base_url.removesuffix("/v1")

    async def chat(self, messages: Sequence[Message], *, tools: Sequence[Mapping[str, Any]] | None = None,
                   state: str | None = None, max_tokens: int | None = None, stop: str | Sequence[str] = (),
                   stop_token_ids: Sequence[int] = (), keep_stop: bool = False, calls: bool = True) -> ChatAnswer:
        """Asks the model for the next message of a conversation, and records the call.

        `state` names the state that the call is made in, for the credit; without it, it is the state of the episode's
        environment, and without that the latest message. The answer's text ends before the first of the texts `stop` or
        of the tokens `stop_token_ids`; with `keep_stop` it includes that one. Its calls of `tools` are parsed unless
        `calls` is false. The temperature is the run's. Raises EpisodeOver when a budget of the episode is used up,
        ChatRefused if the messages cannot be written for the model, EngineFault, and TypeError for a state that is no
        text.
        """
        assert self.text.chat is not None
        if not isinstance(cast("object", state), str | None):
            raise TypeError(f"the state of a call is {state!r:.60}, and it should be a text")
        written = self.text.chat.text(messages, tools)
        prompt = self._admitted(await self._tokens(written), written)
        seen = self.seen or Outcome(observation=latest_state(messages), admissible_actions=[])
        number, self._begun = self._begun, self._begun + 1
        sample = await self._sample(prompt, number, min(max_tokens or self.response_tokens, self.response_tokens),
                                    (*self.text.stop_ids, *stop_token_ids))
        sample, content, stopped = cut_at(sample, [stop] if isinstance(stop, str) else stop, self._decoder(
            () if keep_stop else stop_token_ids), keep=keep_stop)
        if self._opening is None:
            self._opening = self.text.chat.opening()  # whatever env.prompt is: agents always chat
        text = self._opening + content
        parsed = parse_calls(text, tools) if tools and calls else ParsedAnswer(content=text, calls=[], complete=True)
        answer = ChatAnswer(text=text, parsed=parsed, prompt_tokens=len(prompt), sample=sample, stop=stopped)
        read = np.array(prompt, dtype=np.int32)
        follows = continued_step(self.steps, read)
        self.steps.append(Step(
            observation=state or seen.observation, prompt_ids=read, response_ids=sample.ids,
            logprobs=sample.logprobs, spans=sample.spans, action=text, admissible=True, reward=0.0,
            valid=answer.parsed.complete and sample.finished == "stop",
            choices="" if state else choices_digest(seen.admissible_actions), state=state or seen.state,
            cut=sample.finished == "length",
            follows=follows, broke=follows is None and any(message["role"] == "assistant" for message in messages)))
        return answer

    def _admitted(self, prompt: list[int] | None, written: str) -> list[int]:
        """Returns the prompt if the episode's budgets allow it to be asked. Raises EpisodeOver.

        A prompt that is too long ends the episode, unless the agent shortens it and asks again.
        """
        if (self.over is None or self.over.lifts) and self._begun - self._given_up >= self.max_calls:
            self.over = EpisodeOver("turns", f"the episode has made its {self.max_calls} calls (agent.max_calls)")
        if self.over is not None and not self.over.lifts:
            raise self.over
        if prompt is None or len(prompt) > self.prompt_tokens:
            size = f"{len(written)} characters" if prompt is None else f"{len(prompt)} tokens"
            self.over = self.refused = EpisodeOver("context", (
                f"the prompt has {size}, and the model's maximum context length is {self.prompt_tokens} tokens "
                "(rollout.max_prompt_tokens)"), lifts=True)
            raise self.over
        self.over = None
        return prompt

    async def count_tokens(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None) -> int:
        """Returns the number of tokens of a prompt, which need not fit. It is no call. Raises ChatRefused."""
        assert self.text.chat is not None
        return len(await self._encode(self.text.chat.text(messages, tools)))

    def thought_tokens(self, answer: ChatAnswer) -> int:
        """Returns how many sampled tokens of an answer belong to the thought that it begins with."""
        thought, _ = split_thought(answer.content)
        if thought is None or THINK_END in (self._opening or ""):  # the template wrote the thought, and no token of it
            return 0
        return len(cut_at(answer.sample, [THINK_END], self.text.decode)[0].ids)

    async def _tokens(self, written: str) -> list[int] | None:
        """Returns a prompt's tokens. None: they are more than fit, even if each were the longest of the vocabulary."""
        return None if len(written) > self.prompt_tokens * self.text.longest_token else await self._encode(written)

    async def _encode(self, written: str) -> list[int]:
        """Returns the tokens of a text. A long one is tokenized in a thread: the loop serves other episodes meanwhile.
        """
        encode = partial(self.text.encode, written)
        return encode() if len(written) <= QUICK_TEXT else await asyncio.to_thread(encode)

    def _decoder(self, hidden: Sequence[int]) -> Callable[[list[int]], str]:
        """Returns a function that decodes an answer without a last token that is one of `hidden`."""
        def decode(ids: list[int]) -> str:
            return self.text.decode(ids[:-1] if ids and ids[-1] in hidden else ids)

        return decode

    async def _sample(self, prompt: list[int], number: int, max_tokens: int, stop_ids: Sequence[int]) -> Sample:
        try:
            return await self.engine.sample(
                prompt, temperature=self.ticket.temperature, seed=seed_for(self.ticket.seed, number),
                max_tokens=max_tokens, stop_token_ids=stop_ids, request_id=f"{self.ticket.id}/{number}")
        except Fault as fault:
            self.fault = fault
            raise
        except asyncio.CancelledError:
            self._given_up += 1
            raise

    def forget(self, answer: ChatAnswer) -> None:
        """Removes a call whose answer never reached the agent, so that it led to no action."""
        self._given_up += 1
        index = next(i for i, step in enumerate(self.steps) if step.response_ids is answer.sample.ids)
        self.steps = without_step(self.steps, index)

    def earn(self, reward: SupportsFloat) -> None:
        """Gives the newest step a reward, in the environment's units. Numbers of numpy and torch count as their values.

        Raises ValueError before the first call, and ExtremeReward.
        """
        if not self.steps:
            raise ValueError("a reward came before the first call of the model")
        number = float(reward) if isinstance(reward, SupportsFloat) else math.nan  # a record has Python's numbers
        if not within_reward_limit(number):
            raise ExtremeReward(
                f"the reward is {reward!r:.60}, and it should be a number of at most {LARGEST_REWARD:g}")
        last = self.steps[-1]
        total = last.reward + number * self.reward_scale
        if not within_reward_limit(total):
            raise ExtremeReward(f"the reward {number:g} times env.reward_scale, {self.reward_scale:g}, brings the "
                                f"newest step to {total:g}, and it should stay within {LARGEST_REWARD:g}")
        self.steps[-1] = msgspec.structs.replace(last, reward=total)
        self.rewarded = True

    def acted(self, action: str, *, admissible: bool, unchanged: bool = False) -> None:
        """Notes the action that the newest step led to, and whether it changed nothing."""
        if self.steps:
            self.steps[-1] = msgspec.structs.replace(
                self.steps[-1], action=action, admissible=admissible, unchanged=unchanged)

    @property
    def total_reward(self) -> float:
        """Returns the undiscounted sum of the scaled rewards."""
        return float(sum(step.reward for step in self.steps))


def latest_state(messages: Sequence[Message]) -> str:
    """Returns the state of a call that names none: the latest message of a user or a tool, with white space folded.

    The entire conversation would hardly occur twice in a group after the first answer.
    """
    incoming = [message for message in messages if message["role"] in ("user", "tool", "function")]
    return " ".join(_content((incoming or messages)[-1]).split())


def _content(message: Message) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else "" if content is None else msgspec.json.encode(content).decode()


def continued_step(steps: Sequence[Step], prompt: npt.NDArray[np.int32]) -> int | None:
    """Returns the index of the newest step that a prompt continues, or None."""
    return next((index for index in reversed(range(len(steps))) if steps[index].is_continued_by(prompt)), None)


def without_step(steps: Sequence[Step], gone: int) -> list[Step]:
    """Returns the steps without the one at index `gone`. A step that continued it continues nothing."""
    def follows(step: Step) -> int | None:
        return None if step.follows in (None, gone) else step.follows - (step.follows > gone)

    return [msgspec.structs.replace(step, follows=follows(step), broke=step.broke or step.follows == gone)
            for index, step in enumerate(steps) if index != gone]
