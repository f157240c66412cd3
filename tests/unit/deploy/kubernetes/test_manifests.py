"""The Kubernetes manifests: rendered by kubectl, checked against the API's schemas, KubeRay's CRDs and our config."""

from __future__ import annotations

import copy
import os
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import jsonschema
import kubernetes_validate
import pytest
import yaml
from manifests import OVERLAYS, ROOT, Resource, needs_kubectl, only, overlay, pods, rendered

from deploy.launch.planning.warnings import idle_workers
from deploy.runs.configs import load_config

KUBERNETES = "1.34"
"""Version of the API whose schemas are used."""
CRDS = os.environ.get("KUBERAY_CRDS", "")
SECRETS = {"gagpo-redis", "gagpo-env-token"}
"""The Secrets that docs/tasks/kubernetes.md tells the operator to make."""
UNCHECKED = {"PodMonitor"}
"""Kinds of other projects whose schema is in no package that we install."""

pytestmark = [pytest.mark.long, needs_kubectl]
with_crds = pytest.mark.skipif(not CRDS, reason="needs KubeRay's CRDs in the folder $KUBERAY_CRDS")


def amount(quantity: str) -> int:
    """Returns the bytes of an amount of memory, as Redis or Kubernetes writes it."""
    return int(quantity[:-2]) * {"mb": 1 << 20, "gb": 1 << 30, "Mi": 1 << 20, "Gi": 1 << 30}[quantity[-2:]]


@cache
def crd_schema(kind: str) -> Resource:
    crd = yaml.safe_load((Path(CRDS) / f"ray.io_{kind.lower()}s.yaml").read_text())
    (version,) = (one for one in crd["spec"]["versions"] if one["name"] == "v1")
    schema = closed(version["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}
    return schema


def closed(schema: Resource) -> Resource:
    """Returns a CRD's schema as JSON Schema in which an unknown field is an error, as with strict field validation."""
    schema = {key: value for key, value in schema.items() if key not in ("format", "default")}
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    if "items" in schema:
        schema["items"] = closed(schema["items"])
    if "properties" in schema:
        schema["properties"] = {name: closed(one) for name, one in schema["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            schema["additionalProperties"] = False
    elif isinstance(schema.get("additionalProperties"), dict):
        schema["additionalProperties"] = closed(schema["additionalProperties"])
    return schema


def validate(resource: Resource) -> None:
    """Raises jsonschema.ValidationError for an unknown field, a missing one, or a value of the wrong type."""
    if resource["apiVersion"].startswith("ray.io/"):
        jsonschema.Draft202012Validator(crd_schema(resource["kind"])).validate(resource)
    else:
        _validate_core(yaml.safe_dump(resource))


@cache
def _validate_core(text: str) -> None:
    """Validates one resource. Cached, because overlays share most of theirs and loading the schemas takes long."""
    kubernetes_validate.validate(yaml.safe_load(text), KUBERNETES, strict=True)


@pytest.mark.parametrize("folder", [*(f"overlays/{name}" for name in OVERLAYS), "standing"])
def test_core_kinds_have_valid_fields_only(folder: str):
    for one in rendered(folder):
        if one["kind"] not in UNCHECKED and not one["apiVersion"].startswith("ray.io/"):
            validate(one)


@with_crds
@pytest.mark.parametrize("folder", [*(f"overlays/{name}" for name in OVERLAYS), "standing"])
def test_ray_kinds_have_valid_fields_only(folder: str):
    found = [one for one in rendered(folder) if one["apiVersion"].startswith("ray.io/")]
    assert [one["kind"] for one in found] == ["RayCluster" if folder == "standing" else "RayJob"]
    validate(found[0])


MISSPELT: dict[str, tuple[str, Callable[[Resource], Resource], str]] = {
    "deployment": ("Deployment", lambda one: one["spec"], "strategy"),
    "container": ("Deployment", lambda one: one["spec"]["template"]["spec"]["containers"][0], "resources"),
    "autoscaler": ("HorizontalPodAutoscaler", lambda one: one["spec"], "maxReplicas"),
    "network": ("NetworkPolicy", lambda one: one["spec"], "policyTypes"),
    "ray job": ("RayJob", lambda one: one["spec"], "backoffLimit"),
    "ray workers": ("RayJob", lambda one: one["spec"]["rayClusterSpec"]["workerGroupSpecs"][0], "minReplicas"),
    "ray container": ("RayJob", lambda one: one["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"][
        "containers"][0], "securityContext"),
}


@pytest.mark.parametrize("case", MISSPELT)
def test_a_misspelt_field_fails(case: str):
    kind, place, name = MISSPELT[case]
    if kind == "RayJob" and not CRDS:
        pytest.skip("needs KubeRay's CRDs in the folder $KUBERAY_CRDS")
    resource = copy.deepcopy(next(one for one in overlay("1x8") if one["kind"] == kind))
    at = place(resource)
    at[name + "x"] = at.pop(name)
    with pytest.raises(jsonschema.ValidationError):
        validate(resource)


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_run_fits_the_cluster(name: str):
    """The run's config is valid, and its addresses, folders, ports and GPUs are those of the manifests."""
    resources = overlay(name)
    config = load_config(ROOT / "overlays" / name / "run.yaml")
    services = {one["metadata"]["name"]: one["spec"]["ports"][0]["port"] for one in resources
                if one["kind"] == "Service"}
    ray = only(resources, "RayJob")["spec"]["rayClusterSpec"]
    head = ray["headGroupSpec"]["template"]
    for url in (config.redis.url, *config.env.urls):
        assert urlsplit(url).port == services[urlsplit(url).hostname]
    assert idle_workers(config) == [], "a cluster whose workers stand idle is paid for all the same"
    assert config.rollout.workers * config.rollout.slots <= _fewest_servers(resources) * config.env.max_sessions
    assert config.name == head["metadata"]["labels"]["gagpo-run"]
    assert any(config.run_dir.is_relative_to(mount["mountPath"])
               for mount in head["spec"]["containers"][0]["volumeMounts"] if mount["name"] == "shared")
    assert {"name": "driver", "containerPort": config.metrics.port} in head["spec"]["containers"][0]["ports"]
    gpus = sum(group["replicas"] * int(group["template"]["spec"]["containers"][0]["resources"]["limits"].get(
        "nvidia.com/gpu", 0)) for group in ray["workerGroupSpecs"])
    assert gpus == config.rollout.workers * config.rollout.gpus + config.learner.ranks * config.learner.gpus
    assert only(resources, "RayJob")["spec"]["entrypoint"] == "gagpo train --resume --config /etc/gagpo/run.yaml"


def _fewest_servers(resources: list[Resource]) -> int:
    """The environment servers at the start, each with an address of its own behind the name of their Service."""
    service = only(resources, "Service", "gagpo-env")["spec"]
    assert service["clusterIP"] == "None"
    if any(one["kind"] == "HorizontalPodAutoscaler" for one in resources):
        return only(resources, "HorizontalPodAutoscaler")["spec"]["minReplicas"]
    return only(resources, "Deployment")["spec"]["replicas"]


@pytest.mark.parametrize("name", OVERLAYS)
def test_pods_have_the_containers_security_and_requests(name: str):
    for pod in pods(overlay(name)):
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            assert container["securityContext"] == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                                                    "capabilities": {"drop": ["ALL"]}}
            assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
            assert "memory" in container["resources"]["limits"]
            named = {one["valueFrom"]["secretKeyRef"]["name"] for one in container.get("env", ()) if "valueFrom" in one}
            assert named <= SECRETS


@pytest.mark.parametrize("name", OVERLAYS)
def test_pods_with_gpus_may_run_on_nodes_that_are_tainted_for_them(name: str):
    """Managed clusters taint such nodes, so that other pods keep away from them: our other pods do too."""
    for pod in pods(overlay(name)):
        asks = any("nvidia.com/gpu" in one["resources"]["limits"] for one in pod["spec"]["containers"])
        assert pod["spec"].get("tolerations", []) == [
            {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}] * asks


@pytest.mark.parametrize("name", OVERLAYS)
def test_no_image_of_this_machine_is_asked_of_a_registry(name: str):
    """Kubernetes asks for an image with the tag `latest` at each start, and `localhost/` is no registry."""
    for pod in pods(overlay(name)):
        for container in pod["spec"]["containers"]:
            if container["image"].startswith("localhost/"):
                assert container.get("imagePullPolicy") == "IfNotPresent" or not container["image"].endswith(":latest")


@pytest.mark.parametrize("name", OVERLAYS)
def test_every_selector_finds_a_pod(name: str):
    resources = overlay(name)
    labels = [pod["metadata"]["labels"] for pod in pods(resources)]

    def finds(wanted: dict[str, str]) -> bool:
        return any(wanted.items() <= found.items() for found in labels)

    for one in resources:
        spec = one.get("spec", {})
        if one["kind"] == "Service":
            assert finds(spec["selector"])
        elif one["kind"] in ("PodDisruptionBudget", "PodMonitor"):
            assert finds(spec["selector"]["matchLabels"])
        elif one["kind"] == "HorizontalPodAutoscaler":
            assert only(resources, "Deployment", spec["scaleTargetRef"]["name"])
        elif one["kind"] == "NetworkPolicy":
            assert finds(spec["podSelector"].get("matchLabels", {}))


def test_everything_is_denied_by_default_and_servers_have_no_way_out():
    policies = [one["spec"] for one in overlay("1x8") if one["kind"] == "NetworkPolicy"]
    assert {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]} in policies
    out = [spec for spec in policies if "Egress" in spec["policyTypes"] and spec["podSelector"]]
    assert not any("environment" in str(spec["podSelector"]) for spec in out)


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_store_keeps_below_its_memory(name: str):
    container = only(overlay(name), "StatefulSet")["spec"]["template"]["spec"]["containers"][0]
    (bound,) = (one["value"] for one in container["env"] if one["name"] == "MAXMEMORY")
    assert amount(bound) < amount(container["resources"]["requests"]["memory"])


NAMESPACE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
"""The command that asks a driver to leave asks every driver that it sees."""
FAKE = """#!/bin/sh
trap 'sleep 0.5; echo $1 left; exit' TERM
echo $1 up
while :; do sleep 0.1; done
"""


@pytest.mark.parametrize("name", OVERLAYS)
def test_rays_objects_have_room_in_shared_memory(name: str):
    """Without a size of its own the store of objects takes 30% of the pod's memory, at most 95% of /dev/shm or 10 GB,
    and lies on the disk of the node if /dev/shm is smaller."""
    ray = only(overlay(name), "RayJob")["spec"]["rayClusterSpec"]
    for group in (ray["headGroupSpec"], *ray["workerGroupSpecs"]):
        spec = group["template"]["spec"]
        (shm,) = (volume["emptyDir"]["sizeLimit"] for volume in spec["volumes"] if volume["name"] == "shm")
        memory = amount(spec["containers"][0]["resources"]["limits"]["memory"])
        usual = min(0.3 * memory, max(10e9, 0.95 * amount(shm)))
        assert float(group["rayStartParams"].get("object-store-memory", usual)) <= amount(shm)


def test_a_head_that_ends_asks_its_driver_and_nobody_else_and_waits_for_its_end(tmp_path: Path):
    if shutil.which("unshare") is None or subprocess.run([*NAMESPACE, "true"], check=False).returncode:
        pytest.skip("namespaces of processes are not allowed here")
    (head,) = (one for pod in pods(overlay("1x8")) for one in pod["spec"]["containers"] if one["name"] == "ray-head")
    program, said = tmp_path / "bin" / "gagpo", tmp_path / "said"
    program.parent.mkdir()
    program.write_text(FAKE)
    program.chmod(0o700)
    script = ('for one in train status; do "$0" $one & done; until [ $(wc -l <"$1") = 2 ]; do sleep 0.1; done; '
              'shift; "$@"; echo asked')
    with said.open("w") as out:
        subprocess.run([*NAMESPACE, "sh", "-c", script, str(program), str(said),
                        *head["lifecycle"]["preStop"]["exec"]["command"]], stdout=out, timeout=60, check=True)
    assert said.read_text().splitlines()[2:] == ["train left", "asked"]
