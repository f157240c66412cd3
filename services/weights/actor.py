"""The Ray actor that owns published weights, separate from the learner.

A Ray object is lost when the process that put it dies. The learner may die at any time, so this actor, which does
nothing else, owns the buffers of the last two versions: the newest, and the one that a worker may still be fetching.
The pointer in the store, not this actor, says which version is *current*.
"""

from __future__ import annotations

import msgspec
import numpy as np
import ray

from services.records import Version
from services.weights.pack import Manifest
from services.weights.registry import TransferRegistry

KEEP = 2
"""Number of versions held."""


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """One version, as fetch() returns it."""

    version: Version
    manifest: Manifest
    refs: list[ray.ObjectRef]
    """One reference to the uint8 buffer, inside a list so that Ray passes the reference and not the bytes."""


class WeightStore(TransferRegistry):
    """Holds the last KEEP versions, and the registry of transfers. WeightsActor is this class as a Ray actor."""

    def __init__(self) -> None:
        super().__init__()
        self._held: dict[Version, Published] = {}
        self._wanted: Version | None = None

    def publish(self, version: Version, manifest: Manifest, buffer: np.ndarray) -> None:
        """Keeps a copy of the buffer, and first frees versions beyond KEEP. Publishing a version twice is harmless."""
        self._held.pop(version, None)
        while len(self._held) >= KEEP:
            del self._held[next(iter(self._held))]
        self._held[version] = Published(version=version, manifest=manifest, refs=[ray.put(buffer)])
        if self._wanted == version:
            self._wanted = None

    def publish_file(self, version: Version, manifest: Manifest, path: str) -> None:
        """Keeps a copy of the buffer in the file at `path`, as `publish` does."""
        self.publish(version, manifest, np.memmap(path, dtype=np.uint8, mode="r"))

    def latest(self) -> Version | None:
        """Returns the version that was sent last, also from GPU to GPU, or None."""
        return max((version for version in (next(reversed(self._held), None), self.sent) if version), default=None)

    def fetch(self, version: Version) -> Published | None:
        """Returns a version. If it is not held, returns None, and `wanted` returns the version from then on."""
        if version not in self._held:
            self._wanted = version
        return self._held.get(version)

    def wanted(self) -> Version | None:
        """Returns the last version that a fetch missed and that was not published since; None if there is none."""
        return self._wanted


WeightsActor = ray.remote(num_cpus=0, max_restarts=-1)(WeightStore)
