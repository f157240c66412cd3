"""The Kubernetes manifests as kubectl renders them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2] / "deploy" / "kubernetes"
PAGE = ROOT.parents[1] / "docs" / "tasks" / "kubernetes.md"
"""Has the commands by which a user applies them."""
OVERLAYS = ("kind-cpu", "1x8", "4x8", "large")
Resource = dict[str, Any]

needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl to render the manifests")


@cache
def rendered(folder: str) -> tuple[Resource, ...]:
    done = subprocess.run(["kubectl", "kustomize", str(ROOT / folder)], capture_output=True, text=True, timeout=60,
                          check=False)
    assert done.returncode == 0, done.stderr
    return tuple(yaml.safe_load_all(done.stdout))


def overlay(name: str) -> tuple[Resource, ...]:
    return rendered(f"overlays/{name}")


def only(resources: tuple[Resource, ...], kind: str, name: str | None = None) -> Resource:
    (found,) = (one for one in resources if one["kind"] == kind and name in (None, one["metadata"]["name"]))
    return found


def pods(resources: tuple[Resource, ...]) -> Iterator[Resource]:
    """Yields every pod template, those of the RayJob included."""
    for one in resources:
        spec = one.get("spec", {})
        if one["kind"] in ("Deployment", "StatefulSet"):
            yield spec["template"]
        elif one["kind"] == "RayJob":
            yield spec["submitterPodTemplate"]
            yield spec["rayClusterSpec"]["headGroupSpec"]["template"]
            yield from (group["template"] for group in spec["rayClusterSpec"]["workerGroupSpecs"])
