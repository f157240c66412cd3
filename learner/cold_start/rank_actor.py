"""The Ray actor of one learner rank that makes a cold start. It reads rows from a file, and rank 0 writes the model.

The driver and the ranks share a folder and nothing else: no Redis is needed. Rank 0 writes its progress there, which is
its heartbeat too. States from which later ranks go on are there too (states.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import ray

from learner.cold_start.sft import Order, SftProgress
from learner.cold_start.sft_data import PROGRESS, ROWS, load_rows
from services.config.tree import Config
from services.files import check_seen, write_whole
from services.patience import while_folder_away
from services.process.environment import wait_politely
from services.process.packages import check_one_installation
from services.process.rendezvous import Rendezvous
from services.telemetry.heartbeat import Beating, Heartbeat
from services.telemetry.logs import life_of

if TYPE_CHECKING:
    from learner.cold_start.states import States


class ImitatingRank:
    """ImitatingActor without Ray's decorator."""

    def __init__(self, *, config_json: str, rank: int, world: int, order: Order) -> None:
        self._config = Config.model_validate_json(config_json)
        self._rank, self._world, self._order = rank, world, order
        self._node = ray.util.get_node_ip_address()
        self._meeting = Rendezvous(self._node, rank, world)
        self._progress: dict[str, Any] | None = None
        self._states: States | None = None

    def rendezvous(self) -> str:
        """Returns the address where all ranks meet. Called on rank 0 only."""
        return self._meeting.offer()

    def run(self, rendezvous: str) -> None:
        """Trains until the budget is spent. Then the model is in the order's `out`, and PROGRESS says what it took."""
        wait_politely()
        check_one_installation()
        run, order = self._config.run_dir.absolute(), self._order
        with life_of(f"learner-{self._rank}", run if run in order.out.parents else order.work, node=self._node):
            self._imitate(rendezvous)

    def _imitate(self, rendezvous: str) -> None:
        from learner.cold_start.rank_training import imitator, train_on_ranks
        from learner.cold_start.states import States
        from learner.rank_group import RankGroup

        check_seen(self._order.work, self._order.model,
                   fix="put the new model (--out, or runs_dir) and model.path on storage that every node sees")
        section = self._config.learner
        store = self._meeting.join(rendezvous, section.collective_s)
        rank_group = RankGroup(self._rank, self._world, store, gpu=section.gpus > 0, collective_s=section.collective_s,
                               node=self._node)
        learner = imitator(self._config, self._order.model, rank_group)
        states = self._states = States(learner, self._order)
        rows, beating = load_rows(self._order.work / ROWS), Beating(Heartbeat("learner-0", "learner"), self._beat)
        with nullcontext() if self._rank else beating:
            made = train_on_ranks(learner, rows, self._config.sft, budget=self._order.budget, seed=self._order.seed,
                                  report=self._reached, states=states)
            if self._rank:
                learner.follow()
            else:
                self._patiently(partial(learner.export, self._order.out))
        if not self._rank:
            facts = {"training": made.as_dict(), "parameters": learner.shape.parameters, "ranks": self._world}
            self._patiently(partial(self._tell, facts))
        rank_group.leave()

    def _patiently(self, write: Callable[[], object]) -> None:
        while_folder_away(write, seconds=self._config.learner.collective_s,
                          what=f"{self._order.out} could not be written")

    def _reached(self, now: SftProgress) -> None:
        self._progress = now.as_dict()

    def _beat(self, name: str, fields: Mapping[str, Any]) -> None:
        facts = {} if self._states is None else self._states.facts()
        self._tell({"beats": {name: fields}, "training": self._progress, **facts})

    def _tell(self, facts: Mapping[str, Any]) -> None:
        write_whole(self._order.work / PROGRESS, json.dumps(facts))


ImitatingActor = ray.remote(ImitatingRank)
