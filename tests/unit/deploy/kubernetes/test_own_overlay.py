"""The commands and patches of docs/tasks/kubernetes.md for an overlay of one's own, rendered by kubectl."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from manifests import OVERLAYS, PAGE, ROOT, needs_kubectl, only, overlay, pods, rendered

from deploy.runs.configs import load_config

pytestmark = [pytest.mark.long, needs_kubectl]


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_page_makes_the_volume_that_the_run_asks_for(name: str):
    """It made that of the base, whose size and access a later step may not change."""
    line = next(line for line in PAGE.read_text().splitlines() if "# 4. the volume" in line)
    key, _, value = line.partition(" -l ")[2].split(")")[0].partition("=")
    chosen = [one for one in overlay(name) if one["metadata"].get("labels", {}).get(key) == value]
    assert chosen == [only(overlay(name), "PersistentVolumeClaim")]


def test_a_run_of_another_name_has_its_label_by_the_patch_of_the_page(tmp_path: Path):
    """By the label boards and alerts separate runs: those of a copied overlay were all `alfworld`."""
    shutil.copytree(ROOT, tmp_path / "kubernetes")
    mine = tmp_path / "kubernetes" / "overlays" / "mine"
    shutil.copytree(ROOT / "overlays" / "1x8", mine)
    run, made = mine / "run.yaml", mine / "kustomization.yaml"
    run.write_text(run.read_text().replace("name: alfworld", "name: mine"))
    _, _, patch = PAGE.read_text().partition("\n## The name of the run\n")[2].partition("\n```\n")
    made.write_text(made.read_text() + patch.partition("```")[0])
    labels = [pod["metadata"]["labels"] for pod in pods(rendered(str(mine)))]
    assert [one["gagpo-run"] for one in labels if "gagpo-run" in one] == [load_config(run).name] * 3
