"""Code that runs inside vLLM's worker process: its part of a weight update. See engine.py.

A version arrives as a file that each worker process maps, and not through vLLM's message queue, which limits sizes. Or
it has come beside the engine already (rollout/transfer/backend.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

from services.weights import pack

HEAD = "lm_head.weight"
EMBEDDING = "embed_tokens.weight"
BACKEND = "gagpo"
WeightTransferEngineFactory.register_engine(BACKEND, "rollout.transfer.backend", "GagpoTransferEngine")


class PackedLoader:
    """vLLM's `worker_extension_cls`: its methods become methods of the worker."""

    model_config: Any
    model_runner: Any
    weight_transfer_engine: Any
    reload_weights: Callable[..., None]
    start_weight_update: Callable[[], None]
    update_weights: Callable[[dict[str, Any]], None]
    finish_weight_update: Callable[[], None]

    def load_packed(self, path: str, manifest: bytes) -> None:
        """Loads the packed buffer at `path` in place. The engine must be paused. The caller has checked the bytes."""
        entries = msgspec.json.decode(manifest, type=pack.Manifest)
        buffer = np.memmap(path, dtype=np.uint8, mode="r")
        tensors = pack.unpack(entries, buffer)
        pairs = loadable(list(tensors), self.model_config, self.model_runner.get_model())
        # This is the worker's method, because the model runner's does not set vLLM's own config around the load, and
        # the GPU's model runner reads that config.
        self.reload_weights(weights_iterator=((name, tensors[tensor]) for name, tensor in pairs))

    def load_received(self, version: str) -> None:
        """Loads the version of this name, which has been received, in place. The engine must be paused."""
        self.start_weight_update()
        self.update_weights({"version": version})
        self.finish_weight_update()

    def transfer_state(self) -> str:
        """Returns how far the receiving is (rollout/transfer/inbox.py)."""
        return self.weight_transfer_engine.inbox.state()


def loadable(names: list[str], model_config: Any, model: Any) -> list[tuple[str, str]]:
    """Returns the tensors that vLLM loads, in order: vLLM's name, and the name among `names`, those of a version.

    A tied head is loaded too: on CPUs vLLM keeps a repacked copy of it, which would silently keep the old weights.
    Models without a separate head (Gemma, Cohere) would refuse one.
    """
    if not model_config.hf_config.tie_word_embeddings:
        return [(name, name) for name in names]
    pairs = [(name, name) for name in names if name != HEAD]
    if hasattr(model, "lm_head"):
        pairs.append((HEAD, next(name for name in names if name.endswith(EMBEDDING))))
    return pairs
