"""Rules of the store's model: what a controller calls, and one that was replaced."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from store_model import AGAIN, ANY, StoreModel, pick, tickets_of

from services.errors import LeaseLost
from services.records import Drop, Manifest


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
