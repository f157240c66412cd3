"""What runs inside vLLM's worker process: its half of a weight update, and a watch on its parent. See engine.py.

A version arrives as a file, not through vLLM's message queue: each worker process maps it, and no size limit applies.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from typing import Any

import msgspec
import numpy as np

from services.weights import pack

HEAD = "lm_head.weight"
PARENT_POLL_S = 1.0
EMBEDDING = "model.embed_tokens.weight"


class PackedLoader:
    """vLLM's `worker_extension_cls`: its methods become methods of the worker."""

    model_runner: Any

    def exit_with_parent(self, folder: str) -> None:
        """End this process when its parent has died, and remove the temporary files of both in `folder`.

        vLLM's engine would outlive a killed worker and keep its memory.
        """
        threading.Thread(target=_exit_when_orphaned, args=(os.getppid(), folder), daemon=True).start()

    def load_packed(self, path: str, manifest: bytes, digest: str) -> int:
        """Load the packed buffer at `path` in place and return the number of tensors loaded.

        The engine must be paused. A tied head is sent as well: vLLM keeps a repacked copy of it on CPU, which
        otherwise stays on the old weights without a word. Raises ValueError where the bytes are not those of `digest`.
        """
        entries = msgspec.json.decode(manifest, type=pack.Manifest)
        buffer = np.memmap(path, dtype=np.uint8, mode="r")
        found = pack.digest(entries, buffer)
        if found != digest:
            raise ValueError(f"weights arrived with digest {found}, expected {digest}")
        tensors = pack.unpack(entries, buffer)
        if self.model_runner.model_config.hf_config.tie_word_embeddings:
            tensors[HEAD] = tensors[EMBEDDING]
        self.model_runner.reload_weights(weights_iterator=iter(tensors.items()))
        return len(tensors)


def _exit_when_orphaned(parent: int, folder: str) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_POLL_S)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)
