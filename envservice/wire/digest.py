"""The digest chain by which a rebuilt session proves that it is the same game.

    d_0 = H(content, task, reset outcome)           content: the digest of the task's own data
    d_i = H(d_{i-1}, action_i, outcome_i)

H is blake2b-128 over compact UTF-8 JSON, [link, action, observation, admissible, reward, done, won], so that any
language can check it. `info`, `state`, `unchanged` and `truncated` are left out: they explain an outcome and may grow
without changing the game.
A digest is written `<engine>@<version>:<hex>`. The prefix distinguishes another engine from a diverged game.
"""

from __future__ import annotations

import hashlib

import msgspec

from envservice.base import Environment, Outcome


def engine_tag(environment: Environment) -> str:
    """Returns `<engine>@<version>`, the prefix of all digests of this environment."""
    return f"{environment.engine}@{environment.version}"


def tag_of(digest: str) -> str:
    """Returns the engine tag of a digest, or "" if it has none."""
    return digest.rpartition(":")[0]


def first_digest(tag: str, content: str, task: str, outcome: Outcome) -> str:
    """Returns d_0, the digest after the reset. `content` is Environment.task_digest."""
    return _link(tag, f"{content}/{task}", "", outcome)


def next_digest(previous: str, action: str, outcome: Outcome) -> str:
    """Returns d_i, made from d_{i-1}, the action and its outcome."""
    tag, _, link = previous.rpartition(":")
    return _link(tag, link, action, outcome)


def _link(tag: str, link: str, action: str, outcome: Outcome) -> str:
    parts = [
        link, action, outcome.observation, outcome.admissible_actions, float(outcome.reward), outcome.done, outcome.won,
    ]
    return f"{tag}:{hashlib.blake2b(msgspec.json.encode(parts), digest_size=16).hexdigest()}"
