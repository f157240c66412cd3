"""The steps of an episode that a trainer keeps as one sequence: the segments of tokens that the model sampled.

    prompt         completion
    ......... | 1 1 1 1  0 0 0  1 1 1  0 0  1 1      mask: 1 sampled, 0 what a tool or an environment said
                step 0          step 1      step 2

The observation of a step is what the model read since its last one: the prompt, then the results of its tools.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from services.errors import UserError
from services.records import Episode, Step, Ticket, Version, VersionSpan

Span = tuple[int, int]
"""Tokens [start, end) of a completion."""
Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequenced:
    """One episode as a sequence of tokens. T steps."""

    prompt: list[int]
    completion: list[int]
    mask: Sequence[int] | None
    """1 for each token of the completion that the model sampled, 0 for the others. None: it sampled all."""
    observations: Sequence[str]
    """The text before each step, [T] or more: what follows the last step is left out."""
    actions: Sequence[str]
    """[T]"""
    states: Sequence[str] | None = None
    """The environment's own text of the state before each step, [T] or more. It takes the observation's place."""
    logprobs: Sequence[float | None] | None = None
    """The sampler's, of each token of the completion. None: unknown."""


def segments(mask: Sequence[int]) -> list[Span]:
    """Returns the spans of consecutive ones, in order."""
    edges = np.flatnonzero(np.diff([0, *mask, 0]))
    return [(int(start), int(end)) for start, end in zip(edges[::2], edges[1::2], strict=True)]


def spans_of(sequence: Sequenced) -> list[Span]:
    """Returns the span of each step of an episode."""
    return segments([1] * len(sequence.completion) if sequence.mask is None else sequence.mask)


def gaps(spans: Sequence[Span]) -> list[Span]:
    """Returns what lies between the steps, [T-1]."""
    return [(end, start) for (_, end), (start, _) in pairwise(spans)]


def text_of(content: object) -> str:
    """Returns the text of a message's content, of all its parts if it is a list."""
    if isinstance(content, list):
        return "\n".join(text_of(part.get("text") or "") for part in content if isinstance(part, dict))
    return "" if content is None else str(content)


def observed(prompt: str | Sequence[Message], completion: str | Sequence[Message]) -> list[str]:
    """Returns what the model read before each of its messages: the prompt without its own messages, then the results
    of its tools. The last text is what followed its last message."""
    if isinstance(prompt, str):
        texts = [[prompt]]
    else:
        texts = [[text_of(message["content"]) for message in prompt if message["role"] != "assistant"]]
    for message in () if isinstance(completion, str) else completion:
        if message["role"] == "assistant":
            texts.append([])
        else:
            texts[-1].append(text_of(message["content"]))
    return ["\n".join(text) for text in texts]


def episode_of(sequence: Sequenced, ticket: Ticket, version: Version, reward: float) -> Episode:
    """Returns the episode as a record. The last step has the reward. With a reward above 0 the episode counts as won.

    Raises UserError for an episode without a token of the model, for fewer observations or states than steps, and for a
    state that is no text.
    """
    spans = spans_of(sequence)
    k, group = ticket.k, ticket.group
    if not spans:
        raise UserError(f"the model sampled no token of episode {k} of {group}", "give 1 for its tokens in env_mask")
    texts = sequence.observations if sequence.states is None else sequence.states
    if len(texts) < len(spans):
        raise UserError(f"episode {k} of {group} has {len(spans)} steps and {len(texts)} states",
                        "give the state before each step")
    if wrong := [text for text in texts if not isinstance(text, str)]:
        raise UserError(f"a state of episode {k} of {group} is {wrong[0]!r:.60}, which is no text", "make it a text")
    ids = np.array([*sequence.prompt, *sequence.completion], np.int32)
    given = [None] * len(sequence.completion) if sequence.logprobs is None else sequence.logprobs
    logprobs = np.array([np.nan if logprob is None else logprob for logprob in given], np.float32)
    begin = len(sequence.prompt)
    steps = [Step(
        observation=texts[t], state="" if sequence.states is None else texts[t], prompt_ids=ids[:begin + start],
        response_ids=ids[begin + start:begin + end], logprobs=logprobs[start:end],
        spans=[VersionSpan(version=version, start=0, end=end - start)], action=sequence.actions[t], valid=True,
        admissible=True, reward=reward if t == len(spans) - 1 else 0.0) for t, (start, end) in enumerate(spans)]
    return Episode(ticket=ticket, steps=steps, won=reward > 0, end="won" if reward > 0 else "lost", worker="",
                   attempt=1, seconds=0.0, engine="")
