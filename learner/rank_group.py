"""The ranks of one learner, and how rank 0 leads them.

Only rank 0 connects to the store. It broadcasts commands to the other ranks, which execute them in a loop and wait for
nothing else. So all ranks take part in the collectives of each command. The first death ends all ranks: with gloo a
closed connection fails every collective at once; with NCCL they wait until the supervisor ends their processes. Then
the supervisor starts new ranks from the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, Store
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import _set_pg_timeout

from learner.model.memory import SharedDevice
from services.amounts import GIB
from services.errors import UserError
from services.weights.shared_memory import GROWING

COMMAND_S = 24 * 3600.0
"""Longest wait for a command in seconds. Rank 0 may wait long for episodes; other deadlines limit that wait."""
STOP = "stop"


def grow_segments() -> None:
    """Lets segments of GPU memory grow, unless the user has set up torch's allocator (PYTORCH_ALLOC_CONF).

    Packs of varied lengths leave gaps in segments of fixed size, which then take a sixth more than the plan
    (tests/unit/learner/model/test_fake_ranks.py).
    """
    if not torch._C._accelerator_getAllocatorSettings():
        torch._C._accelerator_setAllocatorSettings(GROWING)


class RankGroup:
    """One rank of the process group. `store`: the torch store through which ranks meet; a single rank needs none.

    `collective_s` limits every collective inside a command.
    """

    def __init__(self, rank: int, world: int, store: Store | None = None, *, gpu: bool = False,
                 collective_s: float = 1800.0, node: str = "127.0.0.1") -> None:
        if store is None and world > 1:
            raise ValueError(f"{world} ranks need a rendezvous")
        self.rank = rank
        self.world = world
        self._deadline = timedelta(seconds=collective_s)
        self.node = node
        """Address of this rank's machine."""
        if gpu:
            grow_segments()
        self.device = torch.device("cuda", torch.cuda.current_device()) if gpu else torch.device("cpu")
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if gpu else "gloo", rank=rank, world_size=world, store=store or HashStore(),
            timeout=self._deadline)
        self._commands = _gloo(COMMAND_S)
        self._collectives = _gloo(collective_s)
        self.writers = _gloo(collective_s)
        """Process group of the threads that write checkpoints."""
        self.copiers = _gloo(collective_s)
        """Process group of the threads that copy weights to host memory."""
        self.mesh: DeviceMesh = init_device_mesh(self.device.type, (world,))
        nodes = self.all_gather(node)
        self.nodes = [[rank for rank, name in enumerate(nodes) if name == each] for each in dict.fromkeys(nodes)]
        """Ranks of each machine."""

    @property
    def per_node(self) -> int:
        """Number of ranks on each machine if all machines have the same number, else 1."""
        sizes = {len(ranks) for ranks in self.nodes}
        return sizes.pop() if len(sizes) == 1 else 1

    def device_bytes(self, share: float, shared: SharedDevice | None = None) -> int | None:
        """Returns the bytes of this rank's GPU that training may take; None on CPUs.

        That is `share` of the GPU, or the rest of a GPU that a sampler shares. There the allocator is limited, so that
        it leaves room for a sampler that restarts. Raises UserError if nothing is left.
        """
        if self.device.type != "cuda":
            return None
        total = torch.cuda.get_device_properties(self.device).total_memory
        if shared is None:
            return int(share * total)
        if shared.room(total) <= 0:
            raise UserError(f"sampler and contexts take {shared.occupied / GIB:.1f} GiB of a GPU of {total / GIB:.1f} "
                            "GiB, and leave no room for the learner", "lower rollout.kv_cache_gb")
        torch.cuda.set_per_process_memory_fraction(shared.bound(total) / total, self.device)
        return int(shared.room(total))

    def mesh_of(self, shards: int) -> DeviceMesh:
        """Returns the device mesh of a model that is sharded over `shards` ranks: all ranks, or those of one machine.

        It has one dimension with all ranks, or a row per machine if each machine has a sharded copy of the model.
        """
        if shards == self.world:
            return self.mesh
        assert shards == self.per_node
        mesh = DeviceMesh(self.device.type, self.nodes, mesh_dim_names=("replicate", "shard"))
        for group in mesh.get_all_groups():
            _set_pg_timeout(self._deadline, group)  # by default 10 minutes with NCCL, 30 with gloo
        return mesh

    def barrier(self) -> None:
        """Blocks until all ranks have called it."""
        dist.barrier(group=self._collectives)

    def send_command(self, command: str, argument: Any = None) -> None:
        """Broadcasts `command` to the ranks above 0. Called on rank 0, which then does its own part."""
        if self.world > 1:
            dist.broadcast_object_list([(command, argument)], src=0, group=self._commands)

    def receive_command(self) -> tuple[str, Any]:
        """Returns rank 0's next command and its argument. Called on all ranks above 0. Waits up to COMMAND_S."""
        box: list[Any] = [None]
        dist.broadcast_object_list(box, src=0, group=self._commands)
        return box[0]

    def follow(self, commands: Mapping[str, Callable[[Any], object]]) -> None:
        """Executes rank 0's commands until STOP. Called on all ranks above 0."""
        while True:
            command, argument = self.receive_command()
            if command == STOP:
                return
            commands[command](argument)

    def all_reduce(self, values: list[float], op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> list[float]:
        """Returns the values reduced element by element over all ranks, in float64."""
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, op=op, group=self._collectives)
        return tensor.tolist()

    def all_gather(self, value: Any) -> list[Any]:
        """Returns the values of all ranks, in order of rank."""
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value, group=self._collectives)
        return values

    def leave(self) -> None:
        """Ends the process group. Rank 0 first sends STOP to the other ranks."""
        if self.rank == 0:
            self.send_command(STOP)
        dist.destroy_process_group()


def _gloo(seconds: float) -> dist.ProcessGroup:
    return cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=timedelta(seconds=seconds)))
