"""The Ray actors of one learner rank: LearnerActor for RL, ImitatingActor for a cold start.

An ImitatingActor shares a folder with the driver and nothing else: it needs no Redis. It reads the rows from this
folder. Rank 0 writes its progress there, which is also its heartbeat. All ranks write states there, from which later
ranks continue (states.py).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import ray

from learner.checkpoints.checkpoint import mirrored_step
from learner.cold_start.sft import Order, SftProgress
from learner.cold_start.sft_data import DEMONSTRATIONS, PROGRESS, ROWS, load_rows
from learner.model.memory import SharedDevice
from services.config.tree import Config
from services.errors import DeadlineExceeded
from services.files import check_seen, write_whole
from services.outages import retry_files
from services.process.env_variables import limit_openmp_spin
from services.process.packages import check_one_installation
from services.process.rendezvous import Rendezvous
from services.records import Version
from services.store.gpu_lease import WANTED, GpuLease
from services.store.lease import LeaseKeeper
from services.store.store import Store
from services.telemetry.heartbeat import Beating, Heartbeat
from services.telemetry.logs import get_logger, life_of

if TYPE_CHECKING:
    from learner.cold_start.states import States
    from learner.rank_group import RankGroup

LEASE_S = 15.0
POLL_S = 0.1
log = get_logger("learner")


class _Rank:
    """One rank of a process group, in a process of its own."""

    def __init__(self, config_json: str, rank: int, world: int) -> None:
        self._config = Config.model_validate_json(config_json)
        self._rank, self._world = rank, world
        self._node = ray.util.get_node_ip_address()
        self._rendezvous = Rendezvous(self._node, rank, world)

    def rendezvous(self) -> str:
        """Returns the meeting point of all ranks (Rendezvous.offer). Called on rank 0 only."""
        return self._rendezvous.offer()

    @contextmanager
    def _life(self, folder: Path) -> Iterator[None]:
        """Prepares this process, and logs its life into `folder`."""
        limit_openmp_spin()
        check_one_installation()
        with life_of(f"learner-{self._rank}", folder, node=self._node):
            yield

    def _join(self, rendezvous: str) -> RankGroup:
        from learner.rank_group import RankGroup

        section = self._config.learner
        store = self._rendezvous.join(rendezvous, section.collective_s)
        return RankGroup(self._rank, self._world, store, gpu=section.gpus > 0, collective_s=section.collective_s,
                         node=self._node)


class LearnerRank(_Rank):
    """LearnerActor without Ray's decorator."""

    def __init__(self, *, config_json: str, run: str, rank: int, world: int, store_url: str, model_path: str,
                 weights_actor_name: str, shared: SharedDevice | None = None) -> None:
        super().__init__(config_json, rank, world)
        self._run = run
        self._store_url = store_url
        self._model = Path(model_path)
        self._weights_actor_name = weights_actor_name
        self._shared = shared
        self._leaving = threading.Event()

    def run(self, rendezvous: str) -> None:
        """Trains until the config's steps are done, or until `leave` is called.

        After the last step the trained model is in the run's folder under `model`.
        """
        with self._life(self._config.run_dir):
            self._work(rendezvous)

    @ray.method(concurrency_group="control")
    def leave(self) -> None:
        """Makes `run` return once the current learner step has its checkpoint. Called on rank 0 only."""
        self._leaving.set()

    def _work(self, rendezvous: str) -> None:
        from learner.loop import Leaving
        from learner.rank_group import STOP
        from learner.trainer import Learner

        section = self._config.learner
        check_seen(self._config.run_dir, self._model)
        if section.distill.teacher is not None:
            check_seen(section.distill.teacher, fix="put learner.distill.teacher on storage that every node sees")
        rank_group = self._join(rendezvous)

        def make_part() -> Learner:
            demonstrations = load_rows(self._config.run_dir / DEMONSTRATIONS) if section.imitation.weight else ()
            return Learner(self._config, self._model, rank_group, probed=True, shared=self._shared,
                           demonstrations=demonstrations)

        def make() -> Any:
            rank_group.send_command("make")
            return make_part()

        if not self._rank:
            try:
                with ExitStack() as stack:
                    self._lead(make, stack)
            except Leaving:
                log.info("exits as asked, before it had the GPUs")
        elif rank_group.receive_command()[0] != STOP:  # sent once rank 0 has the GPUs, or has to exit before that
            make_part().follow()
        # Not after an error: other ranks may be inside another collective, and the supervisor ends them.
        rank_group.leave()

    def _make_learner(self, make: Callable[[], Any], store: Store, heartbeat: Heartbeat,
                      check: Callable[[], None]) -> tuple[Any, Callable[[], AbstractContextManager[None]]]:
        """Returns the learner, and the context in which its loop uses the GPUs: a turn, if workers use them too."""
        if not self._config.rollout.sleep:
            return make(), nullcontext
        leases = [GpuLease(store, f"{self._run}-learner", index) for index in range(self._config.learner.ranks)]
        turn = partial(gpu_turn, leases, heartbeat, check=check, wait_s=self._config.learner.wait_s)
        # A worker gives its GPU to a learner whose heartbeat asks for it.
        with Beating(heartbeat, store.state.beat), turn():
            learner = make()
            learner.offload()

        @contextmanager
        def loaded_turn() -> Iterator[None]:
            with turn(), onloaded(learner):
                yield

        return learner, loaded_turn

    def _lead(self, make: Callable[[], Any], stack: ExitStack) -> None:
        from learner.checkpoints.checkpoint import Checkpoints
        from learner.loop import Leaving, TrainingLoop
        from learner.observer import Observer
        from learner.weights.sender import WeightsActorClient, WeightSender
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

        heartbeat = Heartbeat("learner-0", "learner")
        learner, turn = self._make_learner(make, store, heartbeat, check)
        stack.enter_context(Beating(heartbeat, store.state.beat))
        sender = WeightSender(learner.sender, weights.publish, weights.wanted, way=config.transfer, ask=weights.ask,
                              seconds=config.weights.seconds)
        loop = TrainingLoop(
            config=config, learner=learner, store=store, lease=lease, sender=sender,
            before_publish=partial(_wait_for_evaluation, config, store), check=check, gpu_turn=turn,
            mirrored=None if config.storage.url is None else partial(mirrored_step, config.run_dir),
            archive=stack.enter_context(EpisodeArchive(config.run_dir / "episodes", deadline_s=seconds)),
            checkpoints=Checkpoints(config.run_dir / "checkpoints", config.checkpoint.keep),
            observer=Observer(metrics=config.run_dir / "metrics.jsonl", heartbeat=heartbeat, patience_s=seconds,
                              by_type=config.learner.task_sampling == "contrast", by_env=bool(config.env.more)))
        if loop.run():
            loop.export(config.run_dir / "model")


def _wait_for_evaluation(config: Config, store: Store, version: Version, check: Callable[[], None]) -> None:
    """Returns once `version` is evaluated, if it has to be. Raises DeadlineExceeded, or what `check` raises."""
    started = time.monotonic()
    while config.evaluates(version.step) and store.state.evaluated() < version.step:
        check()
        if time.monotonic() - started > config.learner.wait_s:
            raise DeadlineExceeded(f"the evaluation of step {version.step} took over {config.learner.wait_s:g} s "
                                   "(learner.wait_s)")
        time.sleep(0.2)


@contextmanager
def gpu_turn(leases: Sequence[GpuLease], heartbeat: Heartbeat, *, check: Callable[[], None],
             wait_s: float) -> Iterator[None]:
    """Takes all GPUs that the learner shares with rollout workers in turns, for the block.

    Raises what `check` raises while it waits, or DeadlineExceeded. If the block fails, the GPUs are not given back:
    the learner's states fill them until its process has ended.
    """
    started = time.monotonic()
    heartbeat.doing(WANTED)
    leases[0].send_heartbeat(heartbeat)
    with ExitStack() as taken:
        for lease in leases:
            taken.callback(lease.give)
            while not lease.take():
                check()
                if time.monotonic() - started > wait_s:
                    raise DeadlineExceeded(f"a rollout worker kept its GPU for over {wait_s:g} s (learner.wait_s)")
                time.sleep(POLL_S)
        give_all = taken.pop_all()
    heartbeat.doing("trains, while the sampler sleeps")
    leases[0].send_heartbeat(heartbeat)
    yield
    for lease in leases:
        lease.check()
    give_all.close()


class Offloadable(Protocol):
    """A learner whose states can be in host memory."""

    def offload(self) -> None:
        """Moves the states to host memory."""
        ...

    def onload(self) -> None:
        """Moves the states to the GPUs."""
        ...


@contextmanager
def onloaded(learner: Offloadable) -> Iterator[None]:
    """Moves the learner's states to its GPUs for the block. If the block fails, they stay there: the learner ends."""
    learner.onload()
    yield
    learner.offload()


class ImitatingRank(_Rank):
    """ImitatingActor without Ray's decorator."""

    def __init__(self, *, config_json: str, rank: int, world: int, order: Order) -> None:
        super().__init__(config_json, rank, world)
        self._order = order
        self._progress: dict[str, Any] | None = None
        self._states: States | None = None

    def run(self, rendezvous: str) -> None:
        """Trains until the budget is spent. Then the model is in the order's `out`, and its facts in PROGRESS."""
        run, order = self._config.run_dir.absolute(), self._order
        with self._life(run if run in order.out.parents else order.work):
            self._imitate(rendezvous)

    def _imitate(self, rendezvous: str) -> None:
        from learner.cold_start.rank_training import imitator, train_on_ranks
        from learner.cold_start.states import States

        check_seen(self._order.work, self._order.model,
                   fix="put the new model (--out, or runs_dir) and model.path on storage that every node sees")
        rank_group = self._join(rendezvous)
        learner = imitator(self._config, self._order.model, rank_group)
        states = self._states = States(learner, self._order)
        rows, beating = load_rows(self._order.work / ROWS), Beating(Heartbeat("learner-0", "learner"), self._beat)
        with nullcontext() if self._rank else beating:
            training = train_on_ranks(learner, rows, self._config.sft, budget=self._order.budget,
                                      seed=self._order.seed, report=self._set_progress, states=states)
            if self._rank:
                learner.follow()
            else:
                self._patiently(partial(learner.export, self._order.out))
        if not self._rank:
            facts = {"training": training.as_dict(), "parameters": learner.shape.parameters, "ranks": self._world}
            self._patiently(partial(self._write_progress, facts))
        rank_group.leave()

    def _patiently(self, write: Callable[[], object]) -> None:
        retry_files(write, seconds=self._config.learner.collective_s,
                    what=f"{self._order.out} could not be written")

    def _set_progress(self, progress: SftProgress) -> None:
        self._progress = progress.as_dict()

    def _beat(self, name: str, fields: Mapping[str, Any]) -> None:
        facts = {} if self._states is None else self._states.facts()
        self._write_progress({"beats": {name: fields}, "training": self._progress, **facts})

    def _write_progress(self, facts: Mapping[str, Any]) -> None:
        write_whole(self._order.work / PROGRESS, json.dumps(facts))


LearnerActor = ray.remote(concurrency_groups={"control": 1})(LearnerRank)  # pyright: ignore[reportCallIssue]
ImitatingActor = ray.remote(ImitatingRank)
