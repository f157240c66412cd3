"""Publishes the weights of a Hugging Face folder as a new version, for the held-out games and for `gagpo eval`."""

from __future__ import annotations

from pathlib import Path

from deploy.launch.ray_address import ray_address
from deploy.launch.topology import Topology
from deploy.members import private_ray
from rollout.engine.weights_file import weights_file
from services.records import Version

LEASE_S = 60.0


def publish_folder(parts: Topology, model: Path, *, holder: str, step: int = 0) -> Version:
    """Loads `model`, makes it the current version under a new incarnation, and returns that version.

    `step`: the learner step of the model. Holds the lease of the run's learner meanwhile, in its name: one that
    died without giving it up is no obstacle, and one that lives can publish no more. Raises RayLost if the private Ray
    dies meanwhile. The weights go through a file, because Ray ends a process that hands over a large object in the
    moment in which its raylet dies. This process must outlive that.
    """
    from services.weights.pack import pack_folder

    packed = pack_folder(model, parts.config.model.dtype)
    lease = parts.store.leases.acquire("learner", f"{holder}-learner", ttl_s=LEASE_S)
    try:
        version = Version(incarnation=parts.store.state.incarnation(lease), step=step, digest=packed.digest)
        place = None if ray_address(parts.config) is None else parts.folder  # the actor may be on another node
        with weights_file(packed.manifest, packed.buffer, packed.digest, folder=place) as file:
            private_ray.ask(lambda: parts.weights.publish_file.remote(version, packed.manifest, str(file)),
                            parts.config.learner.collective_s, f"publishing {version.short} (learner.collective_s)")
        parts.store.state.publish_version(lease, version, str(model))
    finally:
        parts.store.leases.release(lease)
    return version
