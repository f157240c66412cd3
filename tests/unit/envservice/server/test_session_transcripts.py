"""Sessions whose outcomes come from elsewhere are rebuilt from their results; live ones are never rebuilt."""

import dataclasses
from typing import Any

import msgspec
import pytest
from session_calls import TASK, play, refused, request
from toy_environment import ToyEnvironment

from envservice.base import Outcome
from envservice.server.sessions import Answer, SessionStore
from envservice.wire import Problem, StepRequest
from services.config.tree import AgentSection


class Weather(ToyEnvironment):
    """Like any game out of doors: the same actions, other outcomes. Says how often it was asked."""

    def __init__(self, day: str) -> None:
        super().__init__()
        self.replay = "transcript"
        self.day = day
        self.asked: list[str] = []
        self.recalled: list[str] = []

    def open(self, task: str) -> Any:
        environment, inner = self, super().open(task)

        class Outdoors:
            def reset(self) -> Outcome:
                return inner.reset()

            def step(self, action: str) -> Outcome:
                environment.asked.append(action)
                outcome = inner.step(action)
                return dataclasses.replace(outcome, observation=outcome.observation + environment.day)

            def recall(self, action: str, outcome: Outcome) -> None:
                environment.recalled.append(outcome.observation)
                inner.step(action)

        return Outdoors()


def past(answers: list[Answer]) -> list[dict[str, Any]]:
    """Returns the transcript that a client keeps: the results of all actions."""
    return [msgspec.json.decode(answer.body) for answer in answers[1:]]


def with_transcript(wanted: StepRequest, transcript: list[dict[str, Any]]) -> StepRequest:
    return StepRequest.model_validate({**wanted.model_dump(), "transcript": transcript})


def test_a_recorded_session_is_rebuilt_from_its_results_and_nothing_is_asked_again():
    actions = ["go on", "go on", "go back"]
    answers = play(SessionStore(Weather("Rain.")), actions)
    other = Weather("Sun.")
    store = SessionStore(other)
    wanted = request(actions, "go on", answers[3].digest)
    assert refused(store, wanted).kind == "transcript_missing"
    answer = store.step(with_transcript(wanted, past(answers)))
    assert answer.rebuilt
    assert other.asked == ["go on"]
    assert other.recalled == [body["observation"] for body in past(answers)]
    assert msgspec.json.decode(answer.body)["observation"].endswith("Sun.")
    again = store.step(request(actions[:2], "go back", answers[2].digest))
    assert again.body == answers[3].body, "a step that was folded in is repeated to the letter"


def test_a_recorded_session_that_is_behind_folds_in_what_it_has_missed():
    actions = ["go on", "go on", "go back"]
    rain = Weather("Rain.")
    store = SessionStore(rain)
    answers = play(store, actions[:1])
    ahead = play(SessionStore(Weather("Rain.")), actions)
    wanted = request(actions, "go on", ahead[3].digest)
    assert refused(store, wanted).kind == "transcript_missing"
    assert len(store) == 1, "the session itself is sound"
    assert store.step(with_transcript(wanted, past(ahead))).rebuilt
    assert rain.asked == ["go on", "go on"]
    assert answers[1].digest == ahead[1].digest


def test_a_transcript_must_be_the_one_that_was_given():
    actions = ["go on", "go on"]
    answers = play(SessionStore(Weather("Rain.")), actions)
    wanted = request(actions, "go back", answers[2].digest)
    told = past(answers)
    other = [told[0], {**told[1], "observation": "You win."}]
    assert refused(SessionStore(Weather("")), with_transcript(wanted, other)).kind == "replay_diverged"
    over = [{**told[0], "done": True}, told[1]]
    assert refused(SessionStore(Weather("")), with_transcript(wanted, over)).kind == "replay_diverged"
    short = refused(SessionStore(Weather("")), with_transcript(wanted, told[:1]))
    assert (short.kind, short.field) == ("malformed", "transcript")


def test_a_malformed_request_ends_no_session():
    """A reset to a task that is not here, and a transcript of another length to catch up by."""
    environment = Weather("Rain.")
    store = SessionStore(environment)
    actions = ["go on", "go on"]
    answers = play(SessionStore(Weather("Rain.")), actions)
    store.reset("e", TASK)
    with pytest.raises(Problem, match="no task 'toy/train/99' here"):
        store.reset("e", "toy/train/99")
    assert len(store) == 1
    wanted = request(actions, "go back", answers[2].digest)
    assert refused(store, with_transcript(wanted, past(answers)[:1])).kind == "malformed"
    assert len(store) == 1
    assert not store.step(request([], "go on", answers[0].digest)).rebuilt


class LiveEnvironment(ToyEnvironment):
    """Counts how often it is opened, as that acts on the world."""

    replay = "live"
    opened = 0

    def open(self, task: str):
        self.opened += 1
        return super().open(task)


def test_a_live_session_that_is_lost_stays_lost():
    """Nothing is opened for it; a repeated step gets the recorded answer and acts on nothing."""
    environment = LiveEnvironment()
    store = SessionStore(environment)
    answers = play(store, ["go on"])
    assert store.step(request([], "go on", answers[0].digest)).body == answers[1].body
    behind = refused(store, request(["go on", "go on"], "go on", answers[1].digest))
    assert behind.kind == "session_lost"
    store.clear()
    for wanted in (request([], "go on", answers[0].digest), request(["go on"], "go on", answers[1].digest)):
        assert refused(store, wanted).kind == "session_lost"
    assert environment.opened == 1


def test_a_live_session_that_nobody_uses_is_held_as_long_as_an_episode_may_take():
    """An agent may ask a slow model or a person between two turns, and nobody can rebuild its session."""
    now, longest = [0.0], AgentSection().seconds
    live, pure = (SessionStore(made, clock=lambda: now[0]) for made in (LiveEnvironment(), ToyEnvironment()))
    first, other = live.reset("e", TASK), pure.reset("e", TASK)
    now[0] += longest - 1
    second = live.step(request([], "go on", first.digest))
    assert pure.step(request([], "go on", other.digest)).rebuilt
    now[0] += longest + 1
    with pytest.raises(Problem, match=rf"one that nobody uses for {longest:g} s \(agent.seconds\) is dropped"):
        live.step(request(["go on"], "go on", second.digest))


def test_live_sessions_of_a_client_that_has_died_make_room_after_five_minutes():
    """The worker that takes its place would wait for an hour for a place on a full server."""
    now = [0.0]
    store = SessionStore(LiveEnvironment(), limit=2, clock=lambda: now[0])
    store.reset("a", TASK, "dead")
    used = store.reset("b", TASK, "alive")
    now[0] += 299
    store.step(request([], "go on", used.digest, episode="b"), "alive")
    with pytest.raises(Problem, match="all 2 sessions are taken"):
        store.reset("c", TASK, "new")
    now[0] += 2
    store.reset("c", TASK, "new")
    with pytest.raises(Problem, match="all 2 sessions are taken"):  # b was used two seconds ago
        store.reset("d", TASK, "new")


def test_no_live_session_is_dropped_for_another_one():
    store = SessionStore(LiveEnvironment(), limit=2, record_bytes=1)
    first = [store.reset(episode, TASK, "greedy") for episode in ("a", "b")]
    with pytest.raises(Problem) as full:
        store.reset("c", TASK, "another")
    assert full.value.kind == "full"
    for episode, answer in zip("ab", first, strict=True):
        assert not store.step(request([], "go on", answer.digest, episode=episode)).rebuilt
