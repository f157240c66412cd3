"""A plain-Python model of what the store keeps, and the parties that call it: see test_model.py."""

import itertools

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine
from repeating_store import RepeatingStore

from services.records import Step, Ticket, Version, VersionSpan

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
