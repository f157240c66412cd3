"""The ranks of one learner, and how rank 0 leads them.

Rank 0 alone talks to the store. It tells the others what to do by broadcast; they obey in a loop and never wait for
anything else, so the collectives inside each command always meet. The first death ends all: a closed connection fails
every collective at once, and the supervisor makes a new gang from the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, Store
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

COMMAND_S = 24 * 3600.0
"""The wait for a command: rank 0 may wait long for episodes, and its own deadlines and the watchdog judge that."""
STOP = "stop"


class RankGroup:
    """One rank's place in the process group. `store` is where the ranks meet; a gang of one needs none.

    `collective_s` bounds every collective inside a command. `node` names the machine of this rank.
    """

    def __init__(self, rank: int, world: int, store: Store | None = None, *, gpu: bool = False,
                 collective_s: float = 1800.0, node: str = "") -> None:
        if store is None and world > 1:
            raise ValueError(f"{world} ranks need a rendezvous")
        self.rank = rank
        self.world = world
        self.device = torch.device("cuda", torch.cuda.current_device()) if gpu else torch.device("cpu")
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if gpu else "gloo", rank=rank, world_size=world, store=store or HashStore(),
            timeout=timedelta(seconds=collective_s))
        self._commands = _gloo(COMMAND_S)
        self.writers = _gloo(collective_s)
        """The group of the threads that write checkpoints."""
        self.mesh: DeviceMesh = init_device_mesh(self.device.type, (world,))
        self.nodes = self._nodes(node)
        """Ranks by machine."""

    def _nodes(self, node: str) -> list[list[int]]:
        names: list[str] = [""] * self.world
        dist.all_gather_object(names, node, group=self._commands)
        return [[rank for rank, name in enumerate(names) if name == known] for known in dict.fromkeys(names)]

    @property
    def per_node(self) -> int:
        """Ranks on each machine if all have as many, else 1."""
        sizes = {len(ranks) for ranks in self.nodes}
        return sizes.pop() if len(sizes) == 1 else 1

    def device_bytes(self, share: float) -> int | None:
        """The learner's share of the memory of this rank's GPU; None on CPUs."""
        if self.device.type != "cuda":
            return None
        return int(share * torch.cuda.get_device_properties(self.device).total_memory)

    def mesh_of(self, shards: int) -> DeviceMesh:
        """All ranks in a row if a model is sharded over all of them. If only over those of a machine: a row for each
        machine, over which the model is repeated."""
        if shards == self.world:
            return self.mesh
        assert shards == self.per_node
        return DeviceMesh(self.device.type, self.nodes, mesh_dim_names=("replicate", "shard"))

    def tell(self, command: str, argument: Any = None) -> None:
        """Rank 0: the others start `command`; the caller then does its own part."""
        if self.world > 1:
            dist.broadcast_object_list([(command, argument)], src=0, group=self._commands)

    def follow(self, commands: Mapping[str, Callable[[Any], object]]) -> None:
        """Ranks above 0: obey until told to stop."""
        while True:
            box: list[Any] = [None]
            dist.broadcast_object_list(box, src=0, group=self._commands)
            command, argument = box[0]
            if command == STOP:
                return
            commands[command](argument)

    def reduce(self, values: list[float], op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> list[float]:
        """Element-wise over all ranks, in float64."""
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, op=op, group=self._commands)
        return tensor.tolist()

    def leave(self) -> None:
        """Ends the process group; rank 0 sends the others home first."""
        if self.rank == 0:
            self.tell(STOP)
        dist.destroy_process_group()


def _gloo(seconds: float) -> dist.ProcessGroup:
    return cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=timedelta(seconds=seconds)))
