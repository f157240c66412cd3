"""Sessions are played, repeated and rebuilt elsewhere, and every other call is refused by name."""

import dataclasses
import signal
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from session_calls import TASK, play, refused, request
from toy_environment import ToyEnvironment, solution

from envservice.base import Replay
from envservice.server.sessions import SessionStore
from envservice.wire import Problem, StepResult
from services.errors import EnvFault, Unavailable


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


def test_the_step_that_rebuilt_a_session_says_so_also_when_it_is_repeated():
    """A client that waits long sends the step again, and counts the answer that comes first."""
    answers = play(SessionStore(ToyEnvironment()), ["go on"])
    store, step = SessionStore(ToyEnvironment()), request(["go on"], "go on", answers[1].digest)
    first = store.step(step)
    assert store.step(step) == first
    assert first.rebuilt
    assert not store.step(request(["go on", "go on"], "go on", first.digest)).rebuilt


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


@pytest.mark.parametrize("replay", ["pure", "live"])
def test_a_repeated_reset_gives_the_recorded_result_and_opens_nothing_until_an_action_was_taken(replay: Replay):
    class Counting(ToyEnvironment):
        opened = 0

        def open(self, task: str) -> Any:
            self.opened += 1
            return super().open(task)

    environment = Counting()
    environment.replay = replay
    store = SessionStore(environment)
    first = store.reset("e", TASK)
    assert store.reset("e", TASK) is first
    assert environment.opened == 1
    store.step(request([], "go on", first.digest))
    assert store.reset("e", TASK) == first
    assert environment.opened == 2
    assert store.reset("e", "toy/train/01") != first
    assert (environment.opened, len(store)) == (3, 1)


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


def test_a_session_whose_service_is_away_is_as_it_was():
    class Away(ToyEnvironment):
        def open(self, task: str) -> Any:
            session = super().open(task)
            usual, calls = session.step, iter((True, False, True, False))

            def step(action: str) -> Any:
                if next(calls):
                    raise Unavailable("no library \udcff answers")
                return usual(action)

            session.step = step
            return session

    store = SessionStore(Away())
    digest, actions = store.reset("e", TASK).digest, list[str]()
    for _ in range(2):
        problem = refused(store, request(actions, "go on", digest))
        assert (problem.kind, problem.status, problem.message) == ("unavailable", 503, "no library ? answers")
        answer = store.step(request(actions, "go on", digest))
        assert not answer.rebuilt
        digest, actions = answer.digest, [*actions, "go on"]


def test_a_game_that_leaves_the_process_is_a_fault_of_its_own_episode():
    """It would end the server, and with it the sessions of all others."""
    class Leaves(ToyEnvironment):
        def open(self, task: str) -> Any:
            raise SystemExit(2)

    with pytest.raises(Problem) as caught:
        SessionStore(Leaves()).reset("e", TASK)
    assert (caught.value.kind, caught.value.message) == ("env_fault", "SystemExit: 2")


def test_a_signal_is_no_fault_of_a_game():
    class Ends(ToyEnvironment):
        def open(self, task: str) -> Any:
            raise SystemExit(128 + signal.SIGTERM)

    with pytest.raises(SystemExit):
        SessionStore(Ends()).reset("e", TASK)


@pytest.mark.parametrize(("field", "told"), [
    ({"observation": "a hall\ud800"}, "half of a surrogate pair"), ({"info": {"map": object()}}, "as info, and not "),
    ({"done": None}, "None as done, and not a Python bool"), ({"reward": float("nan")}, "the reward nan")])
def test_an_outcome_that_no_answer_can_hold_is_a_fault_of_its_own_episode(field: dict[str, Any], told: str):
    """Any other exception would be the answer to a whole request, so to the episodes of others too."""
    class Odd(ToyEnvironment):
        def open(self, task: str) -> Any:
            session = super().open(task)
            usual = session.step
            session.step = lambda action: dataclasses.replace(usual(action), **field)
            return session

    store = SessionStore(Odd())
    problem = refused(store, request([], "go on", store.reset("e", TASK).digest))
    assert problem.kind == "env_fault"
    assert told in problem.message
    assert len(store) == 0


def test_a_fault_can_be_told_whatever_its_text_holds():
    class Broken(ToyEnvironment):
        def open(self, task: str) -> Any:
            raise EnvFault(f"the file {task}\udcff is broken")

    with pytest.raises(Problem) as caught:
        SessionStore(Broken()).reset("e", TASK)
    assert msgspec.json.encode(caught.value.body())


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
    unsaid = {"state": "", "unchanged": False, "truncated": False}  # left out of the answer where they are not given
    assert [unsaid | {k: v for k, v in one.items() if k != "digest"} for one in got] == [
        dataclasses.asdict(one) for one in expected]
