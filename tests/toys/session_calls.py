"""Calls of a session store: a reset, steps with their digests, and a step that is refused."""

import pytest

from envservice.server.sessions import Answer, SessionStore
from envservice.wire import Problem, StepRequest

TASK = "toy/train/00"


def request(actions: list[str], action: str, digest: str, *, episode: str = "e", task: str = TASK) -> StepRequest:
    return StepRequest(episode_id=episode, task=task, actions=actions, action=action, digest=digest)


def play(store: SessionStore, actions: list[str], *, task: str = TASK) -> list[Answer]:
    answers = [store.reset("e", task)]
    for index, action in enumerate(actions):
        answers.append(store.step(request(actions[:index], action, answers[-1].digest, task=task)))
    return answers


def refused(store: SessionStore, wanted: StepRequest) -> Problem:
    with pytest.raises(Problem) as caught:
        store.step(wanted)
    return caught.value
