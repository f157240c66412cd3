"""The owner of published weights, beside the learner and not of it.

A Ray object dies with the process that put it. The learner may die at any time, so this actor, which does nothing
else, owns the buffers of the last two versions: the newest, and the one that a worker may still be fetching.
Which version is *current* is not said here but by the pointer in the store.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec
import numpy as np
import ray

from services.records import Version
from services.weights.pack import Manifest

KEEP = 2
"""Versions held."""


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """One version as the actor hands it out."""

    version: Version
    manifest: Manifest
    refs: list[ray.ObjectRef]
    """One reference to the uint8 buffer, inside a list so that Ray passes the reference and not the bytes."""


class WeightsShelf:
    """The last KEEP versions by name: WeightsActor without Ray's decorator."""

    def __init__(self) -> None:
        self._held: OrderedDict[Version, Published] = OrderedDict()

    def publish(self, version: Version, manifest: Manifest, buffer: np.ndarray) -> None:
        """Own a copy of the buffer and let go of the oldest beyond KEEP. Publishing twice is harmless."""
        self._held[version] = Published(version=version, manifest=manifest, refs=[ray.put(buffer)])
        self._held.move_to_end(version)
        while len(self._held) > KEEP:
            self._held.popitem(last=False)

    def latest(self) -> Version | None:
        """The version published last."""
        return next(reversed(self._held), None)

    def fetch(self, version: Version) -> Published | None:
        """None for a version that is no longer, or was never, held."""
        return self._held.get(version)


WeightsActor = ray.remote(num_cpus=0, max_restarts=-1)(WeightsShelf)
