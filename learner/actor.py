"""The Ray actor of one learner rank: connects the parts by a config and runs them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from learner.checkpoints.mirrored import mirrored_step
from learner.model.memory import SharedDevice
from services.config.tree import Config
from services.errors import DeadlineExceeded
from services.files import check_seen
from services.process.environment import wait_politely
from services.process.packages import check_one_installation
from services.process.rendezvous import Rendezvous
from services.records import Version
from services.store.gpu_lease import GpuLease
from services.store.lease import LeaseKeeper
from services.store.store import Store
from services.telemetry.heartbeat import Beating, Heartbeat
from services.telemetry.logs import get_logger, life_of

if TYPE_CHECKING:
    from learner.weights.sender import WeightsActorClient
    from services.weights.channel import WeightSender

LEASE_S = 15.0
log = get_logger("learner")


class LearnerRank:
    """LearnerActor without Ray's decorator."""

    def __init__(self, *, config_json: str, run: str, rank: int, world: int, store_url: str, model_path: str,
                 weights_actor_name: str, shared: SharedDevice | None = None) -> None:
        self._config = Config.model_validate_json(config_json)
        self._run = run
        self._rank = rank
        self._world = world
        self._store_url = store_url
        self._model = Path(model_path)
        self._weights_actor_name = weights_actor_name
        self._shared = shared
        self._node = ray.util.get_node_ip_address()
        self._meeting = Rendezvous(self._node, rank, world)
        self._leaving = threading.Event()

    def rendezvous(self) -> str:
        """Returns the address where all ranks meet. Called on rank 0 only."""
        return self._meeting.offer()

    def run(self, rendezvous: str) -> None:
        """Trains until the config's steps are done, or until `leave` is called.

        After the last step the trained model is in the run's folder under `model`.
        """
        wait_politely()
        check_one_installation()
        with life_of(f"learner-{self._rank}", self._config.run_dir, node=self._node):
            self._work(rendezvous)

    @ray.method(concurrency_group="control")
    def leave(self) -> None:
        """Rank 0: `run` returns as soon as the current learner step has its checkpoint."""
        self._leaving.set()

    def _work(self, rendezvous: str) -> None:
        from learner.cold_start.sft_data import DEMONSTRATIONS, load_rows
        from learner.loop import Leaving
        from learner.rank_group import STOP, RankGroup
        from learner.trainer import Learner

        section = self._config.learner
        check_seen(self._config.run_dir, self._model)
        if section.distill.teacher is not None:
            check_seen(section.distill.teacher, fix="put learner.distill.teacher on storage that every node sees")
        store = self._meeting.join(rendezvous, section.collective_s)
        rank_group = RankGroup(self._rank, self._world, store, gpu=section.gpus > 0, collective_s=section.collective_s,
                               node=self._node)

        def make_part() -> Learner:
            shown = load_rows(self._config.run_dir / DEMONSTRATIONS) if section.imitation.weight else ()
            return Learner(self._config, self._model, rank_group, probed=True, shared=self._shared,
                           demonstrations=shown)

        def make() -> Any:
            rank_group.send_command("make")
            return make_part()

        if not self._rank:
            try:
                with ExitStack() as stack:
                    self._lead(make, stack)
            except Leaving:
                log.info("left as asked, before it had the GPUs")
        elif rank_group.receive_command()[0] != STOP:  # rank 0 comes once it has the GPUs, unless it is to exit before
            make_part().follow()
        # Not after an error: the others may be inside another collective, and the supervisor ends them.
        rank_group.leave()

    def _made(self, make: Callable[[], Any], store: Store, heartbeat: Heartbeat,
              check: Callable[[], None]) -> tuple[Any, Callable[[], AbstractContextManager[None]]]:
        """Returns the learner, and what its loop holds while it uses the GPUs: its turn, if it shares them in turns."""
        from learner.gpu_turn import gpu_turn, unparked

        if not self._config.rollout.sleep:
            return make(), nullcontext
        leases = [GpuLease(store, f"{self._run}-learner", index) for index in range(self._config.learner.ranks)]
        turn = partial(gpu_turn, leases, heartbeat, check=check, wait_s=self._config.learner.wait_s)
        # A worker gives its GPU to a learner whose heartbeat asks for it.
        with Beating(heartbeat, store.state.beat), turn():
            learner = make()
            learner.park()

        @contextmanager
        def awake() -> Iterator[None]:
            with turn(), unparked(learner):
                yield

        return learner, awake

    def _sender(self, learner: Any, actor: WeightsActorClient) -> WeightSender:
        from learner.weights.sender import GpuSender, HostSender

        host, way = HostSender(learner.sender, actor.publish, actor.wanted), self._config.transfer
        if way == "host":
            return host
        return GpuSender(learner.sender, host, actor.ask, way=way, seconds=self._config.weights.seconds)

    def _mirrored(self) -> Callable[[], int] | None:
        """Returns what tells the newest checkpoint in the object store; None: the run has no such store."""
        return None if self._config.storage.url is None else partial(mirrored_step, self._config.run_dir)

    def _lead(self, make: Callable[[], Any], stack: ExitStack) -> None:
        from learner.checkpoints.checkpoint import Checkpoints
        from learner.loop import Leaving, TrainingLoop
        from learner.metrics.observer import Observer
        from learner.weights.sender import WeightsActorClient
        from services.store.archive import EpisodeArchive

        config, seconds = self._config, self._config.learner.collective_s
        store = Store.of_run(config, self._store_url, self._run)
        lease = store.leases.acquire("learner", f"{self._run}-learner", ttl_s=LEASE_S)
        keeper = stack.enter_context(LeaseKeeper(store.leases, lease))
        weights = WeightsActorClient(ray.get_actor(self._weights_actor_name), seconds=seconds)

        def check() -> None:
            keeper.check()
            if self._leaving.is_set():
                raise Leaving

        def before_publish(replaced: Version, check: Callable[[], None]) -> None:
            started = time.monotonic()
            while config.evaluates(replaced.step) and store.state.evaluated() < replaced.step:
                check()
                if time.monotonic() - started > config.learner.wait_s:
                    raise DeadlineExceeded(f"the evaluation of step {replaced.step} took over "
                                           f"{config.learner.wait_s:g} s (learner.wait_s)")
                time.sleep(0.2)

        heartbeat = Heartbeat("learner-0", "learner")
        learner, turn = self._made(make, store, heartbeat, check)
        stack.enter_context(Beating(heartbeat, store.state.beat))
        loop = TrainingLoop(
            config=config, learner=learner, store=store, lease=lease, sender=self._sender(learner, weights),
            before_publish=before_publish, check=check, mirrored=self._mirrored(), gpu_turn=turn,
            archive=stack.enter_context(EpisodeArchive(config.run_dir / "episodes", deadline_s=seconds)),
            checkpoints=Checkpoints(config.run_dir / "checkpoints", config.checkpoint.keep),
            observer=Observer(metrics=config.run_dir / "metrics.jsonl", heartbeat=heartbeat, patience_s=seconds))
        if loop.run():
            loop.export(config.run_dir / "model")


LearnerActor = ray.remote(concurrency_groups={"control": 1})(LearnerRank)  # pyright: ignore[reportCallIssue]
