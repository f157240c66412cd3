import dataclasses
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_environment import ToyEnvironment, solution

from envservice.base import Outcome
from envservice.server.sessions import Answer, SessionStore
from envservice.wire.problems import Problem
from envservice.wire.schemas import MAX_ACTION, StepRequest, StepResult

TASK = "toy/train/00"


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


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


def test_a_game_is_played_to_its_end_and_encoded_as_the_schema_says():
    answers = play(SessionStore(ToyEnvironment()), solution(TASK))
    last = StepResult.model_validate_json(answers[-1].body)
    assert last.won
    assert last.done
    assert last.reward == 1.0
    assert last.digest == answers[-1].digest
    assert not any(answer.rebuilt for answer in answers)


def test_a_store_without_the_session_rebuilds_it_and_gives_the_same_bytes():
    actions = solution(TASK)
    answers = play(SessionStore(ToyEnvironment()), actions)
    for index, action in enumerate(actions):
        again = SessionStore(ToyEnvironment()).step(request(actions[:index], action, answers[index].digest))
        assert again.rebuilt
        assert again.body == answers[index + 1].body


def test_a_store_that_is_behind_catches_up():
    actions = solution(TASK)
    answers = play(SessionStore(ToyEnvironment()), actions)
    behind = SessionStore(ToyEnvironment())
    play(behind, actions[:1])
    answer = behind.step(request(actions[:3], actions[3], answers[3].digest))
    assert answer.rebuilt
    assert answer.body == answers[4].body


def test_a_repeated_step_gives_the_recorded_result_without_another_step():
    store = SessionStore(ToyEnvironment())
    answers = play(store, ["go on", "go on"])
    for index in (0, 1):
        again = store.step(request(["go on"] * index, "go on", answers[index].digest))
        assert again == answers[index + 1]
    assert store.step(request(["go on"] * 2, "go back", answers[2].digest)).digest != answers[2].digest


def test_the_same_index_with_another_action_is_a_conflict_and_the_session_lives_on():
    store = SessionStore(ToyEnvironment())
    answers = play(store, ["go on"])
    assert refused(store, request([], "wait", answers[0].digest)).kind == "conflict"
    assert refused(store, request(["wait"], "go on", answers[1].digest)).field == "actions"
    assert refused(store, request(["go on"], "go on", answers[1].digest, task="toy/train/01")).kind == "conflict"
    assert not store.step(request(["go on"], "go back", answers[1].digest)).rebuilt


def test_a_step_after_the_end_is_a_conflict():
    store = SessionStore(ToyEnvironment())
    actions = solution(TASK)
    answers = play(store, actions)
    problem = refused(store, request(actions, "look", answers[-1].digest))
    assert (problem.kind, problem.status, problem.message) == ("conflict", 409, "the episode is over")


def test_divergence_is_told_apart_from_another_engine():
    answers = play(SessionStore(ToyEnvironment()), ["go on"])
    drifted = SessionStore(ToyEnvironment(drift=" It is cold."))
    assert refused(drifted, request(["go on"], "go on", answers[1].digest)).kind == "replay_diverged"
    assert len(drifted) == 0
    newer = SessionStore(ToyEnvironment(version="2"))
    problem = refused(newer, request(["go on"], "go on", answers[1].digest))
    assert problem.kind == "engine_mismatch"
    assert "corridor@2" in problem.message
    assert "corridor@1" in problem.message


def test_a_rebuilt_game_that_ends_early_has_diverged():
    actions = solution(TASK)
    answers = play(SessionStore(ToyEnvironment()), actions)
    longer = request([*actions, "look"], "look", answers[-1].digest)
    assert refused(SessionStore(ToyEnvironment()), longer).kind == "replay_diverged"


def test_a_live_session_with_another_digest_has_diverged():
    store = SessionStore(ToyEnvironment())
    play(store, ["go on"])
    assert refused(store, request(["go on"], "go on", "corridor@1:00")).kind == "replay_diverged"
    assert refused(store, request(["go on"], "go on", "nonsense")).kind == "replay_diverged"


def test_idle_sessions_end_with_their_lease_and_use_renews_it():
    clock = Clock()
    store = SessionStore(ToyEnvironment(), lease_s=10, clock=clock)
    first = store.reset("a", TASK)
    store.reset("b", TASK)
    clock.now += 6
    store.step(request([], "go on", first.digest, episode="a"))
    clock.now += 6
    store.reset("c", TASK)
    assert len(store) == 2
    assert store.close("a")
    assert not store.close("b")


def test_a_full_store_refuses_new_sessions_only_and_says_when_to_ask_again():
    clock = Clock()
    store = SessionStore(ToyEnvironment(), limit=1, lease_s=10, clock=clock)
    first = store.reset("a", TASK)
    clock.now += 7
    with pytest.raises(Problem) as caught:
        store.reset("b", TASK)
    assert (caught.value.status, caught.value.retry_after) == (503, 3.0)
    assert not store.step(request([], "go on", first.digest, episode="a")).rebuilt
    store.reset("a", TASK)
    store.close("a")
    store.reset("b", TASK)


def test_beyond_its_memory_a_store_drops_what_was_used_least_recently_and_nothing_is_lost():
    """Six sessions with actions as long as the API takes, in a store that holds but three of them at a time."""
    rambling = "x" * MAX_ACTION
    free, tight = SessionStore(ToyEnvironment()), SessionStore(ToyEnvironment(), record_bytes=4 * 6 * MAX_ACTION)
    episodes = "abcdef"
    answers = {episode: [free.reset(episode, TASK)] for episode in episodes}
    for episode in episodes:
        assert tight.reset(episode, TASK) == answers[episode][0]
    for index in range(6):
        for episode in episodes:
            wanted = request([rambling] * index, rambling, answers[episode][-1].digest, episode=episode)
            answers[episode].append(free.step(wanted))
            assert tight.step(wanted).body == answers[episode][-1].body
    assert len(free) == 6
    assert 3 <= len(tight) <= 4
    assert tight.expired >= 2
    last = request([rambling] * 5, rambling, answers["f"][-2].digest, episode="f")
    assert not tight.step(last).rebuilt
    assert tight.step(last.model_copy(update={"episode_id": "a", "digest": answers["a"][-2].digest})).rebuilt
    for episode in episodes:
        tight.close(episode)
    assert len(tight) == 0


def test_the_session_in_use_stays_however_much_it_records():
    store = SessionStore(ToyEnvironment(), record_bytes=1)
    answers = play(store, solution(TASK))
    assert not any(answer.rebuilt for answer in answers)
    store.reset("other", TASK)
    assert len(store) == 1


def test_what_a_closed_session_recorded_is_free_again():
    store = SessionStore(ToyEnvironment(), record_bytes=20_000)
    for _ in range(50):
        play(store, ["go on"])
        store.close("e")
    store.reset("a", TASK)
    store.reset("b", TASK)
    assert len(store) == 2


def test_unknown_and_broken_tasks_have_their_own_errors():
    store = SessionStore(ToyEnvironment())
    for task in ("toy/train/99", "toy/none/00", "toy", "other/train/00/x"):
        with pytest.raises(Problem) as caught:
            store.reset("e", task)
        assert (caught.value.kind, caught.value.field) == ("unknown_task", "task")
    with pytest.raises(Problem) as caught:
        store.reset("e", "toy/train/broken")
    assert caught.value.status == 500
    assert "broken" in caught.value.message


def test_an_engine_that_breaks_loses_its_session_and_no_other():
    store = SessionStore(ToyEnvironment())
    answers = play(store, ["go on"])
    store.reset("other", TASK)
    assert refused(store, request(["go on"], "crash", answers[1].digest)).kind == "env_fault"
    assert len(store) == 1
    assert store.step(request(["go on"], "go on", answers[1].digest)).rebuilt


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


def test_somebody_else_s_mistake_ends_no_session():
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


WORDS = ("go on", "go back", "take key", "open door", "nonsense")


@settings(max_examples=150, deadline=None)
@given(
    actions=st.lists(st.sampled_from(WORDS), max_size=12),
    events=st.lists(st.sampled_from(["ok", "retry", "kill", "move", "late"]), max_size=40),
)
def test_no_interleaving_of_retries_kills_and_moves_changes_the_transcript(actions: list[str], events: list[str]):
    """Each step may be repeated, and its server killed or swapped before it or between it and its repetition."""
    bare = ToyEnvironment().open(TASK)
    expected = [bare.reset()]
    for action in actions:
        if expected[-1].done:
            break
        expected.append(bare.step(action))
    stores = [SessionStore(ToyEnvironment()), SessionStore(ToyEnvironment())]
    answers = [stores[0].reset("e", TASK)]
    for index, action in enumerate(actions[: len(expected) - 1]):
        wanted = request(actions[:index], action, answers[-1].digest)
        event = events[index] if index < len(events) else "ok"
        if event in ("retry", "late"):
            stores[0].step(wanted)
        if event == "late" and index:  # a request that wandered about for a while
            late = stores[0].step(request(actions[: index - 1], actions[index - 1], answers[-2].digest))
            assert late.body == answers[-1].body
        if event == "kill":
            stores[0] = SessionStore(ToyEnvironment())
        if event == "move":
            stores.reverse()
        answers.append(stores[0].step(wanted))
    got = [msgspec.json.decode(answer.body) for answer in answers]
    unsaid = {"state": "", "unchanged": False}  # left out of the answer where the environment does not give them
    assert [unsaid | {k: v for k, v in one.items() if k != "digest"} for one in got] == [
        dataclasses.asdict(one) for one in expected]


def test_a_full_store_is_shared_between_clients():
    """Four places: the second client gets two of them, and the first one's oldest episodes are rebuilt when stepped."""
    store = SessionStore(ToyEnvironment(), limit=4)
    first, *_ = [store.reset(f"a{number}", TASK, "a") for number in range(4)]
    with pytest.raises(Problem, match="all 4 sessions are taken"):
        store.reset("a4", TASK, "a")
    store.reset("b0", TASK, "b")
    store.reset("b1", TASK, "b")
    with pytest.raises(Problem, match="all 4 sessions are taken"):
        store.reset("b2", TASK, "b")
    assert (len(store), store.expired) == (4, 2)
    store.close("b1")
    assert store.step(request([], "go on", first.digest, episode="a0"), "a").rebuilt


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


def test_no_live_session_is_dropped_for_another_one():
    store = SessionStore(LiveEnvironment(), limit=2, record_bytes=1)
    first = [store.reset(episode, TASK, "greedy") for episode in ("a", "b")]
    with pytest.raises(Problem) as full:
        store.reset("c", TASK, "another")
    assert full.value.kind == "full"
    for episode, answer in zip("ab", first, strict=True):
        assert not store.step(request([], "go on", answer.digest, episode=episode)).rebuilt
