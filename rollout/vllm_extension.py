"""Code that runs inside vLLM's worker process: its part of a weight update. See engine.py.

A version arrives as a file that each worker process maps, and not through vLLM's message queue, which limits sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from services.weights import pack

HEAD = "lm_head.weight"
EMBEDDING = "embed_tokens.weight"


class PackedLoader:
    """vLLM's `worker_extension_cls`: its methods become methods of the worker."""

    model_config: Any
    model_runner: Any
    reload_weights: Callable[..., None]

    def load_packed(self, path: str, manifest: bytes) -> int:
        """Loads the packed buffer at `path` in place. Returns the number of tensors loaded.

        The engine must be paused. A tied head is loaded too: on CPUs vLLM keeps a repacked copy of it, which would
        silently keep the old weights. Models without a separate head (Gemma, Cohere) would refuse one. The caller has
        checked the bytes.
        """
        entries = msgspec.json.decode(manifest, type=pack.Manifest)
        buffer = np.memmap(path, dtype=np.uint8, mode="r")
        tensors = pack.unpack(entries, buffer)
        if self.model_config.hf_config.tie_word_embeddings:
            tensors.pop(HEAD, None)
            if hasattr(self.model_runner.get_model(), "lm_head"):
                tensors[HEAD] = next(tensor for name, tensor in tensors.items() if name.endswith(EMBEDDING))
        # This is the worker's method, because the model runner's does not set vLLM's own config around the load, and
        # the GPU's model runner reads that config.
        self.reload_weights(weights_iterator=iter(tensors.items()))
        return len(tensors)

