"""Sessions end with their lease, and a store keeps within its number of sessions and its memory."""

import pytest
from session_calls import TASK, play, request
from toy_environment import ToyEnvironment, solution

from envservice.server.sessions import SessionStore
from envservice.wire import MAX_ACTION, Problem


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


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
    following = request([rambling] * 6, rambling, answers["f"][-1].digest, episode="f")
    assert not tight.step(following).rebuilt
    assert tight.step(following.model_copy(update={"episode_id": "a", "digest": answers["a"][-1].digest})).rebuilt
    for episode in episodes:
        tight.close(episode)
    assert len(tight) == 0


def test_the_session_in_use_stays_however_much_it_records():
    store = SessionStore(ToyEnvironment(), record_bytes=1)
    answers = play(store, solution(TASK))
    assert not any(answer.rebuilt for answer in answers)
    store.reset("other", TASK)
    assert len(store) == 1


def test_closing_a_session_frees_the_memory_of_its_record():
    store = SessionStore(ToyEnvironment(), record_bytes=20_000)
    for _ in range(50):
        play(store, ["go on"])
        store.close("e")
    store.reset("a", TASK)
    store.reset("b", TASK)
    assert len(store) == 2


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
