"""Rules of the store's model: what rollout workers call, also after they were taken for dead."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from store_model import A_STEP, AGAIN, ANY, NOTHING, WORKERS, StoreModel, pick

from services.errors import EnvFault
from services.records import Episode, PlayedTurn, encode_episode
from services.store.bodies import Lost

DELIVERIES = 10
"""Attempts after which a ticket fails although only workers have died."""


class WorkerRules(StoreModel):
    """Two workers claim, play, keep turns, commit and fail."""

    @rule(names=st.lists(st.sampled_from(WORKERS), min_size=3, max_size=11), count=st.integers(1, 4))
    def hang_one_after_the_other(self, names, count):
        for name in names:
            self.claim(name, count, True, False)

    @rule(name=st.sampled_from(WORKERS), count=st.integers(1, 4), steal=st.booleans(), again=AGAIN)
    def claim(self, name, count, steal, again):
        store, held = self.workers[name]
        if name not in store._known_workers:
            self.give_back_all(name)
        free = {i for i, (used, holder) in self.open.items() if used < DELIVERIES and (steal or holder is None)}
        store.meanwhile = [lambda: None] * again
        claims = store.claim(name, count, min_idle_s=0.0 if steal else 30.0)
        store.meanwhile = []
        for claim in claims:
            assert claim.ticket.id in free
            used, _ = self.open[claim.ticket.id]
            assert claim.attempt == used + 1
            self.open[claim.ticket.id] = [claim.attempt, (name, claim.attempt)]
        assert len(claims) == min(count, len(free))
        (failed,) = store.connection.read(("HKEYS", "failed"))
        for ticket in failed:
            assert self.open[ticket.decode()][0] == DELIVERIES
            self.open[ticket.decode()][1] = None
        held += claims

    @rule(name=st.sampled_from(WORKERS), count=st.integers(1, 4))
    def play(self, name, count):
        self.claim(name, count, True, False)
        self.commit_held(name)

    def commit_held(self, name):
        held = self.workers[name][1]
        while held:
            self.commit(self.hands().index((self.workers[name][0], held[-1], held)), False)
            held.pop()

    def give_back_all(self, name):
        for state in self.open.values():
            if state[1] and state[1][0] == name:
                state[1] = None

    @precondition(lambda self: self.hands())
    @rule(which=ANY, again=AGAIN)
    def commit(self, which, again):
        store, claim, _ = pick(self.hands(), which)
        episode = Episode(
            ticket=claim.ticket, steps=[A_STEP], won=True, end="won", worker=claim.worker, attempt=claim.attempt,
            seconds=float(next(self.nonce)), engine="own")
        expected = "accepted" if claim.ticket.id in self.open and self.current(claim) else "refused"
        for _ in range(1 + again):
            assert store.commit_episode(claim, episode) == expected
        if expected == "accepted":
            del self.open[claim.ticket.id]
            self.stored[claim.ticket.id] = encode_episode(episode)

    @precondition(lambda self: self.stored)
    @rule(which=ANY, again=AGAIN)
    def lose_a_body(self, which, again):
        """Its ticket is played again, unless a manifest has its group. After the third loss the ticket fails."""
        name = pick(sorted(self.stored), which)
        group = name.partition("#")[0]
        (ticket,) = (ticket for ticket in self.tickets[group] if ticket.id == name)
        for _ in range(1 + again):
            self.eye._play_again(Lost(self.stored[name], ticket, "store: it is gone"))
        if group in self.fate:
            return
        del self.stored[name]
        self.losses[name] = self.losses.get(name, 0) + 1
        self.open[name] = [DELIVERIES if self.losses[name] == 3 else 0, None]
        self.outdated = [*self.outdated, *(claim for _, claim, _ in self.hands() if claim.ticket.id == name)]

    @precondition(lambda self: self.hands())
    @rule(which=ANY, index=st.integers(0, 2), again=AGAIN)
    def finish_a_turn(self, which, index, again):
        """It is kept for who plays the ticket next, unless somebody else holds the ticket already or the turn before it
        is missing. Turns after it were of another way to play."""
        store, claim, _ = pick(self.hands(), which)
        turn = PlayedTurn(ids=NOTHING, logprobs=NOTHING, spans=[], action="look", digest=str(next(self.nonce)))
        for _ in range(1 + again):
            store.keep_turns(claim.worker, [(claim, index, turn)])
        if self.current(claim) and self.open.get(claim.ticket.id, [0, None])[1] == (claim.worker, claim.attempt):
            kept = self.turns.get(claim.ticket.id, [])
            if index <= len(kept):
                self.turns[claim.ticket.id] = [*kept[:index], turn.digest]

    @precondition(lambda self: self.hands())
    @rule(which=ANY)
    def commit_without_steps(self, which):
        """The episode is refused, and its worker keeps the ticket until it says why it failed."""
        store, claim, _ = pick(self.hands(), which)
        episode = Episode(
            ticket=claim.ticket, steps=[], won=False, end="context", worker=claim.worker, attempt=claim.attempt,
            seconds=0.0, engine="own")
        with pytest.raises(EnvFault, match="the first prompt has more tokens"):
            store.commit_episode(claim, episode)

    @precondition(lambda self: self.hands())
    @rule(which=ANY, again=AGAIN, how=st.sampled_from(["fail", "renew"]))
    def give_back(self, which, again, how):
        store, claim, held = pick(self.hands(), which)
        state = self.open.get(claim.ticket.id, [0, None]) if self.current(claim) else [0, None]
        ours = state[1] == (claim.worker, claim.attempt)
        for _ in range(1 + again):
            if how == "renew":
                assert store.renew_claims(claim.worker, [claim]) == ([] if ours else [claim])
            elif ours:
                assert store.fail(claim, "engine") == ("exhausted" if claim.attempt >= 3 else "retry")
            else:
                store.fail(claim, "engine")
        if how != "renew":
            held.remove(claim)
            if ours:
                self.failed(claim, state)

    def failed(self, claim, state):
        """After the third attempt nobody may claim the ticket again."""
        state[:] = [DELIVERIES if claim.attempt >= 3 else claim.attempt, None]
        self.turns.pop(claim.ticket.id, None)

    @rule(name=st.sampled_from(WORKERS))
    def kill_worker(self, name):
        self.zombie_claims += self.workers[name][1]
        self.workers[name] = (self.connect(), [])
