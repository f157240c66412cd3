"""Code that runs inside vLLM's worker process: its half of a weight update. See engine.py.

A version arrives as a file, not through vLLM's message queue: each worker process maps it, and no size limit applies.
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
        """Load the packed buffer at `path` in place and return the number of tensors loaded.

        The engine must be paused. A tied head is loaded as well: vLLM keeps a repacked copy of it on CPU, which
        otherwise stays on the old weights without a word. Some models (Gemma, Cohere) have no head of their own, and
        would refuse one. The caller has checked the bytes.
        """
        entries = msgspec.json.decode(manifest, type=pack.Manifest)
        buffer = np.memmap(path, dtype=np.uint8, mode="r")
        tensors = pack.unpack(entries, buffer)
        if self.model_config.hf_config.tie_word_embeddings:
            tensors.pop(HEAD, None)
            if hasattr(self.model_runner.get_model(), "lm_head"):
                tensors[HEAD] = next(tensor for name, tensor in tensors.items() if name.endswith(EMBEDDING))
        # The worker's method and not the model runner's: it sets vLLM's own config around the load, which the GPU's
        # model runner reads.
        self.reload_weights(weights_iterator=iter(tensors.items()))
        return len(tensors)

