"""The temporary file through which a version's weights reach vLLM's process, which maps it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import IO

import numpy as np

from services.weights import pack
from services.weights.pack import Manifest


def weights_file() -> IO[bytes]:
    """Opens an empty file in shared memory, or on disk if there is no shared memory. It is removed when closed."""
    shared = Path("/dev/shm")  # noqa: S108  # a private name inside it, made with O_EXCL
    return tempfile.NamedTemporaryFile(dir=shared if shared.is_dir() else None, prefix="gagpo-weights-")


def write_checked(manifest: Manifest, buffer: np.ndarray, digest: str, file: IO[bytes]) -> None:
    """Writes the buffer into `file`. Raises ValueError if its bytes are not those of `digest`."""
    found = pack.digest(manifest, buffer)
    if found != digest:
        raise ValueError(f"weights arrived with digest {found}, expected {digest}")
    file.write(np.ascontiguousarray(buffer).data)
    file.flush()
