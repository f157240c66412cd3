"""The Ray actor that owns published weights, separate from the learner.

A Ray object is lost when the process that put it dies. The learner may die at any time, so this actor, which does
nothing else, owns the buffers of the last two versions: the newest, and the one that a worker may still be fetching.
The pointer in the store, not this actor, says which version is *current*.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec
import numpy as np
import ray

from services.records import Version
from services.weights.meeting import Meeting
from services.weights.pack import Manifest

KEEP = 2
"""Number of versions held."""


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """One version, as fetch() returns it."""

    version: Version
    manifest: Manifest
    refs: list[ray.ObjectRef]
    """One reference to the uint8 buffer, inside a list so that Ray passes the reference and not the bytes."""


class WeightsShelf(Meeting):
    """Holds the last KEEP versions, and is the place where learner and workers agree on transfers between GPUs.

    WeightsActor is this class with Ray's decorator.
    """

    def __init__(self) -> None:
        super().__init__()
        self._held: OrderedDict[Version, Published] = OrderedDict()

    def publish(self, version: Version, manifest: Manifest, buffer: np.ndarray) -> None:
        """Keeps a copy of the buffer and frees versions beyond KEEP. Publishing a version twice is harmless."""
        self._held[version] = Published(version=version, manifest=manifest, refs=[ray.put(buffer)])
        self._held.move_to_end(version)
        while len(self._held) > KEEP:
            self._held.popitem(last=False)

    def publish_file(self, version: Version, manifest: Manifest, path: str) -> None:
        """Keeps a copy of the buffer in the file at `path`, as `publish` does."""
        self.publish(version, manifest, np.memmap(path, dtype=np.uint8, mode="r"))

    def latest(self) -> Version | None:
        """Returns the version that was published last, or None."""
        return next(reversed(self._held), None)

    def fetch(self, version: Version) -> Published | None:
        """Returns a version, or None if it is not held."""
        return self._held.get(version)


WeightsActor = ray.remote(num_cpus=0, max_restarts=-1)(WeightsShelf)
