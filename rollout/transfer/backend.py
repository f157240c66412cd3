"""vLLM's hook for transfers of weights, in its worker process: vllm/distributed/weight_transfer, backend `gagpo`.

vLLM's own backends write into the model as the bytes come, so requests have to pause for a whole transfer. This one
receives beside them (rollout/transfer/inbox.py), and only the swap needs the pause:

    init_transfer_engine   begins to receive one version, and returns at once
    start, receive, finish vLLM's layerwise reload from the memory that was received, in the pause

The processes of an engine over several GPUs hold a part of the version each, and gather tensor by tensor in the pause.
It has one file for GPUs and CPUs. What differs is torch's communicator, NCCL or gloo, and the kind of memory handle.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import torch
from vllm.distributed.parallel_state import get_tp_group
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from rollout.engine.extension import loadable
from rollout.transfer.inbox import Inbox
from services.weights.rounds import Round


@dataclass
class RoundInfo(WeightTransferInitInfo):
    """A round, and this engine's place in it."""

    found: bytes
    """A Round as JSON."""
    first: int
    """Number of the engine's first process among all receivers."""
    shared_gpu: int
    address: str


@dataclass
class SwapInfo(WeightTransferUpdateInfo):
    """The version to load."""

    version: str
    """Its name."""


class GagpoTransferEngine(WeightTransferEngine[RoundInfo, SwapInfo]):
    """Receives versions while the engine works, and swaps them in while it pauses."""

    init_info_cls = RoundInfo
    update_info_cls = SwapInfo

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        config = self.parallel_config
        self.inbox = Inbox(self.device, index=config.rank, count=config.tensor_parallel_size)

    def init_transfer_engine(self, init_info: RoundInfo) -> None:
        """Begins to receive."""
        self.inbox.begin(
            msgspec.json.decode(init_info.found, type=Round), receiver=init_info.first + self.parallel_config.rank,
            shared_gpu=init_info.shared_gpu, address=init_info.address)

    def start_weight_update(self) -> None:
        """Begins vLLM's layerwise reload."""
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """As the base class, which would ask a CPU for an accelerator."""
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def receive_weights(self, update_info: SwapInfo) -> None:
        """Loads the version that is held."""
        held = self.inbox.held(update_info.version)
        gather = partial(get_tp_group().all_gather, dim=0)
        model: Any = self.model
        # One after another, because a whole tensor is gathered only when the loader asks for it.
        model.load_weights((name, held.whole(tensor, gather))
                           for name, tensor in loadable(held.names, self.model_config, model))

    def finish_weight_update(self) -> None:
        """Ends vLLM's layerwise reload."""
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Ends the links."""
        self.inbox.close()
