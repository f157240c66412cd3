"""The store keeps its invariants under every order of events, on a real Redis of each generation.

Each rule is one call of one party, so a party may be killed between any two of its calls: a kill drops its state, and
what it held stays with a zombie that goes on calling. `again` repeats a call, as after a lost reply. The checkpoint on
disk is the number `durable`. After each rule the keys of Redis are compared with a model that is plain Python; at the
end healthy parties must be able to finish everything.
"""

import signal
import time

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule, run_state_machine_as_test
from store_model import WORKERS, ControllerRules, LearnerRules, WorkerRules
from waiting import wait_until_written

from services.records import Drop, Manifest


class StoreMachine(ControllerRules, WorkerRules, LearnerRules):
    """All parties, and Redis, which dies or forgets."""

    @rule(groups=st.integers(1, 4), steps=st.integers(0, 2), name=st.sampled_from(WORKERS), lost=st.integers(0, 3))
    def all_goes_well(self, groups, steps, name, lost):
        """Makes many steps at once, because deep states are rare among single calls. Some episodes are lost."""
        for _ in range(groups):
            self.issue(9, False)
        self.play(name, 2 * groups)
        for which in range(min(lost, len(self.stored))):
            self.lose_a_body(which, False)
        for _ in range(steps):
            if self.can_step():
                self.begin_step(1, False)

    @precondition(lambda self: self.tickets)
    @rule(sure=st.integers(0, 3))
    def kill_redis(self, sure):
        if sure == 3:
            wait_until_written(self.eye.connection.redis)
            self.server.stop(signal.SIGKILL)
            self.server.start()

    @rule(sure=st.integers(0, 5))
    def empty_redis(self, sure):
        if sure < 5:
            return
        redis = self.eye.connection.redis
        redis.delete(*redis.scan_iter(f"gagpo:{{{self.run}}}:*"))
        time.sleep(0.002)  # ids of stream entries are milliseconds: a real Redis takes longer to come back
        self.outdated = [claim for _, claim, _ in self.hands()]
        self.generation += 1
        self.forget()
        self.take_over("controller", False)
        self.take_over("learner", False)
        store, lease = self.leases["learner"]
        assert store.steps.agrees_with(self.durable) == (self.durable == 0)
        store.steps.reset_to(lease, self.durable, self.next_group, trained=self.trained)
        self.step = self.emptied_at = self.durable

    @invariant()
    def redis_holds_what_the_model_says(self):
        read = self.eye.connection.read
        counters, training, evaluating, outstanding, groups, ready, episodes, drops, manifests, failed = read(
            ("HGETALL", "counters"), ("XLEN", "tickets"), ("XLEN", "evals"), ("HKEYS", "outstanding"),
            ("ZRANGE", "groups", 0, -1), ("ZRANGE", "ready", 0, -1), ("HGETALL", "episodes"),
            ("LRANGE", "drops", 0, -1), ("HGETALL", "manifests"), ("HKEYS", "failed"))
        count = {name: int(counters.get(name.encode(), 0)) for name in ("issued", "dropped", "trained", "bytes")}
        assert count == {
            "issued": self.next_group, "dropped": self.dropped, "trained": self.trained,
            "bytes": sum(map(len, episodes.values()))}
        assert self.next_group - self.dropped - self.trained == len(self.living("train"))
        assert {ticket.decode() for ticket in outstanding} == set(self.open)
        assert training + evaluating == len(outstanding) - len(failed)
        assert self.eye.counts().outstanding_tickets == sum(ticket.startswith("train/") for ticket in self.open)
        assert set(failed) <= set(outstanding)
        assert [group.decode() for group in ready] == self.ready("")
        supply, finished = self.eye.supply(), self.ready("train")
        assert (supply.ready, supply.unfinished) == (
            finished, [group for group in self.living("train") if group not in finished])
        assert (supply.trained, supply.dropped) == (self.trained, self.dropped)
        assert [group.decode() for group in groups] == [g for g in self.living("") if g not in self.ready("")]
        assert {ticket.decode(): blob for ticket, blob in episodes.items()} == self.stored
        playable = set(self.open) - {ticket.decode() for ticket in failed}
        self.turns = {ticket: turns for ticket, turns in self.turns.items() if ticket in playable}
        keys = self.eye.connection.redis.scan_iter(self.eye.connection.key("turns:*"), count=1000)
        assert {key.decode().rpartition("turns:")[2] for key in keys} == set(self.turns)
        assert {ticket: [turn.digest for turn in self.eye.turns(ticket)] for ticket in self.turns} == self.turns
        assert [msgspec.json.decode(drop, type=Drop) for drop in drops] == self.untaken
        assert {int(k): msgspec.json.decode(v, type=Manifest) for k, v in manifests.items()} == self.manifests

    def teardown(self):
        """After any events, healthy processes can finish all work, and then there is room for more."""
        self.kill_learner(False)
        self.kill_controller(False)
        for name in WORKERS:
            self.kill_worker(name)
        self.zombie_claims = []
        for _ in range(100):
            self.drop_failed()
            self.play("w0", 4)
            if self.can_step():
                self.begin_step(3, False)
            self.retire_eval()
            if not self.living(""):
                break
        assert not self.living("")
        while self.step < self.last_step():
            self.begin_step(1, False)
        self.checkpoint()
        self.retire(False)
        self.redis_holds_what_the_model_says()
        assert self.eye.retained_bytes() == 0
        self.issue(1, False)
        assert self.eye.outstanding_groups() == [f"train/{self.next_group - 1:08d}"]


def test_nothing_is_lost_nothing_counts_twice_and_nothing_gets_stuck(server):
    run_state_machine_as_test(
        lambda: StoreMachine(server),
        settings=settings(
            max_examples=40, stateful_step_count=50, deadline=None, derandomize=True,
            suppress_health_check=list(HealthCheck)))
