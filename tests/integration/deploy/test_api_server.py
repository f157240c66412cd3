"""A real Kubernetes API server takes the manifests, by the commands of docs/tasks/kubernetes.md."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.toys.api_server import Kubectl, api_server, needs_api_server
from tests.toys.manifests import OVERLAYS, PAGE, ROOT, Resource, overlay, pods

CRDS = os.environ.get("KUBERAY_CRDS", "")
POD_MONITOR: Resource = {
    "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
    "metadata": {"name": "podmonitors.monitoring.coreos.com"},
    "spec": {"group": "monitoring.coreos.com", "scope": "Namespaced",
             "names": {"kind": "PodMonitor", "plural": "podmonitors"},
             "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {
                 "type": "object", "x-kubernetes-preserve-unknown-fields": True}}}]}}
"""Declares the kind, without the schema of its project."""

pytestmark = [pytest.mark.long, needs_api_server,
              pytest.mark.skipif(not CRDS, reason="needs KubeRay's CRDs in the folder $KUBERAY_CRDS")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    """Provides a server that knows KubeRay's kinds."""
    with api_server(tmp_path_factory.mktemp("api-server")) as made:
        made.apply(POD_MONITOR, *(yaml.safe_load(path.read_text()) for path in sorted(Path(CRDS).glob("*.yaml"))))
        assert made.call("wait", "--for=condition=Established", "--all", "crd", "--timeout=60s")[0] == 0
        yield made


@pytest.fixture
def kubectl(server: Kubectl) -> Iterator[Kubectl]:
    """Provides the server with the namespace, without what another overlay says of it for good."""
    assert server.call("apply", "-f", str(ROOT / "base" / "namespace.yaml"))[0] == 0
    assert server.call("-n", "gagpo", "create", "serviceaccount", "default")[0] == 0  # a controller makes it elsewhere
    yield server
    for kind in ("statefulsets", "secrets", "serviceaccounts", "persistentvolumeclaims"):
        assert server.call("-n", "gagpo", "delete", kind, "--all", "--wait=false")[0] == 0
    # A controller lets a claim go once no pod uses it, and there is none.
    server.call("-n", "gagpo", "patch", "pvc", "gagpo-shared", "--type=merge",
                "-p", '{"metadata": {"finalizers": null}}')


def steps_of_the_page(name: str) -> list[list[str]]:
    """Returns the arguments of kubectl's steps 3 to 5 for an overlay."""
    block = PAGE.read_text().partition("```sh\n")[2].partition("```")[0]
    lines = [line.partition("  #")[0].strip().removesuffix(")") for line in block.splitlines()]
    commands = [line.partition("kubectl ")[2] for line in lines if "kubectl" in line and "--watch" not in line]
    return [command.replace('"$(openssl rand -hex 32)"', "secret").replace(
        "-k mine", f"-k deploy/kubernetes/overlays/{name}").split() for command in commands]


def create_pod(kubectl: Kubectl, name: str, spec: Resource) -> tuple[int, str]:
    """Asks whether the namespace takes such a pod. A StatefulSet's volumes, which it gives to each pod, are empty."""
    mounted = [mount["name"] for one in spec["containers"] for mount in one.get("volumeMounts", ())]
    there = spec.get("volumes", [])
    missing = [{"name": one, "emptyDir": {}} for one in mounted if one not in [volume["name"] for volume in there]]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "gagpo"},
           "spec": spec | {"volumes": [*there, *missing]}}
    return kubectl.call("create", "--dry-run=server", "-f", "-", text=yaml.safe_dump(pod))


@pytest.mark.parametrize("name", OVERLAYS)
def test_it_takes_an_overlay_and_its_pods_without_a_warning(kubectl: Kubectl, name: str):
    """Its own checks go beyond the schemas, and it refuses pods that the restricted profile does not allow."""
    steps = steps_of_the_page(name)
    assert [step[0] for step in steps] == ["apply", "-n", "-n", "apply", "apply"]
    for step in steps:
        status, said = kubectl.call(*step, folder=ROOT.parents[1])
        assert (status, "Warning" in said) == (0, False), said
    for number, pod in enumerate(pods(overlay(name))):
        status, said = create_pod(kubectl, f"pod-{number}", pod["spec"])
        assert (status, "Warning" in said) == (0, False), said



def test_it_refuses_a_pod_outside_the_restricted_profile_and_a_misspelt_field(kubectl: Kubectl):
    """So a pass of the other test means something."""
    status, said = create_pod(kubectl, "free", {"containers": [{"name": "one", "image": "gagpo-trainer"}]})
    assert status != 0
    assert "violates PodSecurity \"restricted" in said
    job = yaml.safe_load((ROOT / "base" / "rayjob.yaml").read_text())
    job["spec"]["backoffLimitx"] = 1
    status, said = kubectl.call("-n", "gagpo", "create", "--dry-run=server", "-f", "-", text=yaml.safe_dump(job))
    assert status != 0
    assert "unknown field \"spec.backoffLimitx\"" in said
