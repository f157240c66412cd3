"""Code that runs inside vLLM's worker process: its part of a weight update. See engine.py.

A version arrives as a file that each worker process maps, because vLLM's message queue limits sizes. Or the process has
already received it next to the engine (rollout/weights/inbox.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import msgspec
import numpy as np
import torch
from vllm.distributed.parallel_state import get_tp_group

from rollout.weights.inbox import Inbox
from services.weights import pack
from services.weights.registry import Round

HEAD = "lm_head.weight"
EMBEDDING = "embed_tokens.weight"


class VersionLoader:
    """vLLM's `worker_extension_cls`: its methods become methods of the worker."""

    device: torch.device
    model_config: Any
    model_runner: Any
    parallel_config: Any
    rank: int
    reload_weights: Callable[..., None]
    _inbox: Inbox | None = None

    def load_packed(self, path: str, manifest: bytes) -> None:
        """Loads the packed buffer at `path` in place. The engine must be paused. The caller has checked the bytes."""
        entries = msgspec.json.decode(manifest, type=pack.Manifest)
        self._load(pack.unpack(entries, np.memmap(path, dtype=np.uint8, mode="r")).items())

    def receive_round(self, transfer: bytes, **place: Any) -> None:
        """Begins to receive a version while requests run. `transfer`: a Round as JSON. `place`: for Inbox.begin."""
        if self._inbox is None:
            self._inbox = Inbox(self.device, index=self.rank, count=self.parallel_config.tensor_parallel_size)
        self._inbox.begin(msgspec.json.decode(transfer, type=Round), **place)

    def transfer_state(self) -> tuple[str, list[int]]:
        """Returns the progress of the transfer (Inbox.state)."""
        assert self._inbox is not None
        return self._inbox.state()

    def load_received(self, version: str) -> None:
        """Loads the received version of this name in place. The engine must be paused."""
        assert self._inbox is not None
        part = self._inbox.received(version)
        names = [entry.name for entry in part.manifest]
        # A generator, so that an entire tensor is gathered only when the loader asks for it.
        self._load(zip(names, part.tensors(partial(get_tp_group().all_gather, dim=0)), strict=True))
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # the thread of the next round writes to the same memory

    def _load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        # This is the worker's method, because the model runner's does not set vLLM's own config around the load, and
        # the GPU's model runner reads that config.
        self.reload_weights(weights_iterator=loadable(tensors, self.model_config, self.model_runner.get_model()))


def loadable(tensors: Iterable[tuple[str, torch.Tensor]], model_config: Any,
             model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the tensors that vLLM loads, with vLLM's names.

    A tied head is loaded too: on CPUs vLLM keeps a repacked copy of it, which would silently keep the old weights.
    Models without a separate head (Gemma, Cohere) would refuse one.
    """
    tied = model_config.hf_config.tie_word_embeddings
    for name, tensor in tensors:
        if not tied or name != HEAD:
            yield name, tensor
        if tied and name.endswith(EMBEDDING) and hasattr(model, "lm_head"):
            yield HEAD, tensor
