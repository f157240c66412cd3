"""The `placement` section: which nodes of a Ray cluster the processes run on."""

from __future__ import annotations

from pydantic import field_validator

from services.config.env import Section

RAYS_OWN = ("CPU", "GPU", "memory", "object_store_memory")
"""Resources that Ray counts itself. They are amounts that a process takes, so they mark no nodes."""


class PlacementSection(Section):
    """Which nodes of a Ray cluster the processes run on. Each key names a custom resource that marks these nodes, as
    in `ray start --resources '{"gpu_node": 1}'`. None: any node."""

    rollout: str | None = None
    """Custom resource of the nodes that rollout workers run on."""
    learner: str | None = None
    """Custom resource of the nodes that learner ranks run on."""
    environment: str | None = None
    """Custom resource of the nodes that environment servers run on, if the run starts them on a cluster."""
    weights: str | None = None
    """Custom resource of the node that holds the published weights. None: the node with the largest object store."""

    @field_validator("rollout", "learner", "environment", "weights")
    @classmethod
    def _custom(cls, resource: str | None) -> str | None:
        if resource == "" or resource in RAYS_OWN:
            raise ValueError(f"{resource!r} marks no nodes: it should be a resource of your own, as in `ray start "
                             """--resources '{"gpu_node": 1}'`; rollout.gpus and learner.gpus ask for GPUs""")
        return resource
