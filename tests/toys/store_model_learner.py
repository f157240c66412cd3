"""Rules of the store's model: what a learner calls, and what it finds after its death."""

import itertools

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from store_model import AGAIN, StoreModel

from services.records import Drop, Manifest, encode_episode


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
