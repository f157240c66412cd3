"""A plain-Python model of what the store keeps, and the parties that call it: see test_model.py."""

import itertools

import msgspec
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from repeating_store import RepeatingStore

from services.errors import EnvFault, LeaseLost
from services.records import Drop, Episode, Manifest, PlayedTurn, Step, Ticket, Version, VersionSpan, encode_episode
from services.store.bodies import Lost

RUNS = itertools.count()
WORKERS = ("w0", "w1")
NOTHING = np.zeros(0, np.int32)
A_STEP = Step(
    observation="", prompt_ids=NOTHING, response_ids=NOTHING, logprobs=NOTHING, action="look", valid=True,
    admissible=True, reward=0.0, spans=[VersionSpan(version=Version(incarnation=1, step=0), start=0, end=0)])
ANY = st.integers(0, 99)
AGAIN = st.booleans()


def tickets_of(kind, name, size):
    return [
        Ticket(group=f"{kind}/{name}", k=k, size=size, task="alfworld/train/x", seed=k, kind=kind, temperature=1.0,
               max_steps=5)
        for k in range(size)]


def pick(things, which):
    return things[which % len(things)] if things else None


class StoreModel(RuleBasedStateMachine):
    """The model of the keys. A group is open, ready, in a manifest or dropped, and never in two of these states."""

    def __init__(self, server):
        super().__init__()
        self.server = server
        self.run = f"run{next(RUNS)}"
        self.eye = self.connect()
        self.generation = 0
        self.durable = 0
        self.groups_at = {0: (0, 0)}  # step -> next_group and groups trained, as its checkpoint holds them
        self.zombie_claims, self.zombie_leases = [], []
        self.nonce = itertools.count()
        self.forget()
        self.workers = {name: (self.connect(), []) for name in WORKERS}
        self.leases, self.step = {}, 0
        self.take_over("controller", False)
        self.take_over("learner", False)

    def connect(self):
        return RepeatingStore(self.server.url, self.run, timeout_s=30.0)

    def forget(self):
        self.tickets = {}  # group -> tickets, in order of issue
        self.open = {}  # ticket id -> [attempts used, who holds it or None]
        self.stored = {}  # ticket id -> blob of its episode
        self.turns = {}  # ticket id -> digests of its finished turns, while it is being played
        self.losses = {}  # ticket id -> how often the body of its episode was lost
        self.fate = {}  # group -> step of its manifest, or its Drop
        self.attempts = {}  # step -> incarnations that tried to train its manifest
        self.manifests, self.untaken = {}, []
        self.retired = self.durable
        self.next_group, self.trained = self.groups_at[self.durable]
        self.dropped = self.next_group - self.trained

    def take_over(self, role, same_name):
        if role in self.leases:
            self.zombie_leases.append(self.leases[role])
        name = role if same_name else f"{role}-{next(self.nonce)}"
        store = self.connect()
        # It expires at once: a process that hung is still there when the next one takes its role.
        lease = store.leases.acquire(role, f"{name}-{self.generation}", ttl_s=0.0)
        self.leases[role] = (store, lease)

    def living(self, kind):
        return [g for g in self.tickets if g not in self.fate and g.startswith(kind)]

    def ready(self, kind):
        return [g for g in self.living(kind) if not any(t.id in self.open for t in self.tickets[g])]

    def add(self, tickets):
        self.tickets[tickets[0].group] = tickets
        self.open |= {ticket.id: [0, None] for ticket in tickets}

    def hands(self):
        """Returns all claims with their connection and list. `current` says whether a claim was made since the last
        reset."""
        living = [(store, claim, held) for store, held in self.workers.values() for claim in held]
        return living + [(self.eye, claim, self.zombie_claims) for claim in self.zombie_claims]

    def current(self, claim):
        return claim.ticket in self.tickets.get(claim.ticket.group, []) and claim not in self.outdated

    outdated = ()

    def can_step(self):
        return bool(self.ready("train")) or self.step < self.last_step()

    def last_step(self):
        return max(self.manifests, default=self.emptied_at)

    emptied_at = 0


class ControllerRules(StoreModel):
    """A controller issues, drops and retires groups."""

    @rule(slack=st.integers(0, 6), again=AGAIN)
    def issue(self, slack, again):
        store, lease = self.leases["controller"]
        # The same number is the same group, also when it is issued anew after Redis lost it.
        tickets = tickets_of("train", f"{self.next_group:08d}", self.next_group % 3 + 1)
        expected = len(self.living("train")) < slack
        for _ in range(1 + again):
            assert store.issue(lease, tickets, capacity=self.trained + slack) == expected
        if expected:
            self.next_group += 1
            self.add(tickets)

    @rule(size=st.integers(1, 2), again=AGAIN)
    def issue_eval(self, size, again):
        store, lease = self.leases["controller"]
        tickets = tickets_of("eval", next(self.nonce), size)
        for _ in range(1 + again):
            assert store.issue(lease, tickets, capacity=0)
        self.add(tickets)

    @precondition(lambda self: self.tickets)
    @rule(which=ANY)
    def issue_what_was_issued(self, which):
        group = pick([g for g in self.tickets if g.startswith("train") or g not in self.fate], which)
        store, lease = self.leases["controller"]
        assert group is None or store.issue(lease, self.tickets[group], capacity=self.trained + 9)

    @precondition(lambda self: self.tickets)
    @rule(which=ANY, other=ANY, again=AGAIN)
    def drop(self, which, other, again):
        groups = dict.fromkeys(pick(list(self.tickets), one) for one in (which, other))
        drops = [Drop(group=group, task="alfworld/train/x", reason=f"why-{next(self.nonce)}") for group in groups]
        store, lease = self.leases["controller"]
        for _ in range(1 + again):
            assert store.drop(lease, *drops) == all(self.fate.get(drop.group, drop) == drop for drop in drops)
            for drop in drops:
                self.note_drop(drop)

    @rule()
    def drop_failed(self):
        store, lease = self.leases["controller"]
        for drop in store.failed_groups():
            assert drop.group in self.living("")
            assert store.drop(lease, drop)
            self.note_drop(drop)

    def note_drop(self, drop):
        if drop.group in self.fate:
            return
        self.fate[drop.group] = drop
        self.untaken.append(drop)
        self.dropped += drop.group.startswith("train")
        for ticket in self.tickets[drop.group]:
            self.open.pop(ticket.id, None)
            self.stored.pop(ticket.id, None)

    @rule(same_name=st.booleans())
    def kill_controller(self, same_name):
        self.take_over("controller", same_name)

    @rule(again=AGAIN)
    def reissue(self, again):
        """The run is resumed: all claims are void, and attempts are counted from zero."""
        store, lease = self.leases["controller"]
        (failed,) = store.connection.read(("HKEYS", "failed"))
        unplayed = self.open.keys() - {ticket.decode() for ticket in failed}
        for _ in range(1 + again):
            assert store.reissue(lease) == len(unplayed)
        self.attempts = {}
        self.outdated = [*self.outdated, *(claim for _, claim, _ in self.hands() if claim.ticket.id in unplayed)]
        self.open |= {ticket: [0, None] for ticket in unplayed}

    @rule()
    def retire_eval(self):
        store, lease = self.leases["controller"]
        for group in store.ready("eval"):
            store.retire_eval(lease, [group])
            for ticket in self.tickets.pop(group):
                del self.stored[ticket.id]

    @precondition(lambda self: self.zombie_leases)
    @rule(which=ANY, call=ANY)
    def zombie_acts(self, which, call):
        store, lease = pick(self.zombie_leases, which)
        group = pick(list(self.tickets), which) or "train/00000000"
        calls = [
            lambda: store.leases.renew(lease),
            lambda: store.leases.release(lease),
            lambda: store.issue(lease, tickets_of("train", f"{self.next_group:08d}", 1), capacity=99),
            lambda: store.drop(lease, Drop(group=group, task="x", reason="late")),
            lambda: store.steps.begin(
                lease, Manifest(step=self.step + 1, incarnation=0, groups=["train/none"], drops=[])),
            lambda: store.steps.retire(lease, self.step),
            lambda: store.reissue(lease),
            lambda: store.steps.reset_to(lease, 0, 0),
            lambda: store.steps.attempt(lease, 1, 1),
            lambda: store.steps.attempt_succeeded(lease, 1),
            lambda: store.steps.skip(
                lease, Manifest(step=1, incarnation=0, groups=["train/none"], drops=[]),
                [Drop(group="train/none", task="x", reason="late")]),
        ]
        with pytest.raises(LeaseLost):
            pick(calls, call)()

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


class LearnerRules(StoreModel):
    """A learner takes groups into manifests, tries to train them, and retires what a checkpoint has."""

    @precondition(StoreModel.can_step)
    @rule(count=st.integers(1, 3), again=AGAIN)
    def begin_step(self, count, again):
        store, lease = self.leases["learner"]
        step, groups = self.step + 1, store.ready("train")[:count]
        for group in groups:
            assert [e.ticket.k for e in store.episodes(group)] == list(range(len(self.tickets[group])))
        proposed = Manifest(step=step, incarnation=lease.epoch, groups=groups or ["train/none"], drops=[])
        new = step not in self.manifests
        expected = msgspec.structs.replace(proposed, drops=self.untaken) if new else self.manifests[step]
        for _ in range(1 + again):
            assert store.steps.begin(lease, proposed) == expected
        self.step = step
        if new:
            assert not set(groups) & set(self.fate)
            self.fate |= dict.fromkeys(groups, step)
            self.manifests[step], self.untaken = expected, []
            self.trained += len(groups)
            self.groups_at[step] = (self.next_group, self.trained)

    @precondition(lambda self: self.manifests)
    @rule(incarnation=st.integers(1, 3), again=AGAIN, trained=st.booleans())
    def attempt(self, incarnation, again, trained):
        store, lease = self.leases["learner"]
        step = max(self.manifests)
        tried = self.attempts.setdefault(step, [])
        if tried[-1:] != [incarnation]:
            tried.append(incarnation)
        for _ in range(1 + again):
            assert store.steps.attempt(lease, step, incarnation)[0] == len(tried) - 1
        if trained:
            for _ in range(1 + again):
                store.steps.attempt_succeeded(lease, step)
            del self.attempts[step]

    @precondition(lambda self: self.last_step() > max(self.durable, self.retired) and self.step < self.last_step())
    @rule(again=AGAIN)
    def skip_step(self, again):
        """A resumed run leaves out the newest step, which its learner has not trained."""
        store, lease = self.leases["controller"]
        step = self.last_step()
        manifest = self.manifests[step]
        drops = [Drop(group=group, task="alfworld/train/x", reason=f"skip-{next(self.nonce)}")
                 for group in manifest.groups]
        for _ in range(1 + again):
            store.steps.skip(lease, manifest, drops)
        del self.manifests[step]
        self.groups_at.pop(step)
        self.attempts.pop(step, None)
        self.untaken = [*manifest.drops, *drops, *self.untaken]
        self.trained -= len(drops)
        self.dropped += len(drops)
        for drop in drops:
            self.fate[drop.group] = drop
            for ticket in self.tickets[drop.group]:
                self.stored.pop(ticket.id, None)

    @rule()
    def checkpoint(self):
        self.durable = self.step

    @rule(again=AGAIN)
    def retire(self, again):
        store, lease = self.leases["learner"]
        gone = [t.id for g, step in self.fate.items() if step in range(self.durable + 1) for t in self.tickets[g]]
        before = store.retained_bytes()
        freed = [store.steps.retire(lease, self.durable) for _ in range(1 + again)]
        assert sum(freed) == before - store.retained_bytes()
        self.retired = max(self.retired, self.durable)
        for ticket in gone:
            self.stored.pop(ticket, None)

    @rule(same_name=st.booleans())
    def kill_learner(self, same_name):
        self.take_over("learner", same_name)
        self.step = self.durable
        store = self.leases["learner"][0]
        assert store.steps.agrees_with(self.durable)
        later = store.steps.manifests(self.durable)
        assert later == [self.manifests[step] for step in sorted(self.manifests) if step > self.durable]
        for group in itertools.chain.from_iterable(manifest.groups for manifest in later):
            assert [encode_episode(e) for e in store.episodes(group)] == [
                self.stored[ticket.id] for ticket in self.tickets[group]]
