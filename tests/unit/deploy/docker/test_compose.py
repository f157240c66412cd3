"""The compose file for one host: its run, its addresses and its limits. Nothing is started."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from deploy.runs.configs import load_config

FOLDER = Path(__file__).parents[4] / "deploy" / "docker" / "compose"
CONFIG = load_config(FOLDER / "run.yaml")
FILE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = FILE["services"]
END_S = 10
"""The other processes of a run end within so many seconds."""


def seconds(text: str) -> int:
    return int(re.fullmatch(r"(\d+)s", text)[1])


def test_the_run_finds_its_services_by_their_names():
    named = {urlsplit(url).hostname for url in (CONFIG.redis.url or "", *CONFIG.env.urls)}
    assert named == SERVICES.keys() - {"trainer"}
    assert [urlsplit(url).port for url in CONFIG.env.urls] == [8100]
    assert f"127.0.0.1:{CONFIG.metrics.port}:{CONFIG.metrics.port}" in SERVICES["trainer"]["ports"]


def test_results_and_the_store_outlive_the_containers():
    assert any(volume.endswith(f":{CONFIG.runs_dir}") for volume in SERVICES["trainer"]["volumes"])
    settings = (FOLDER / "redis.conf").read_text()
    folder = re.search(r"^dir (\S+)$", settings, re.MULTILINE)[1]
    (store,) = (volume.split(":")[0] for volume in SERVICES["redis"]["volumes"] if volume.endswith(f":{folder}"))
    assert store in FILE["volumes"]
    assert settings == (FOLDER.parents[1] / "kubernetes/base/redis.conf").read_text()


def test_the_trainer_is_given_the_time_for_its_checkpoint():
    assert seconds(SERVICES["trainer"]["stop_grace_period"]) >= CONFIG.supervision.leave_seconds + END_S
    assert SERVICES["trainer"]["command"] == ["gagpo", "train", "--resume", "--config", "/etc/gagpo/run.yaml"]


@pytest.mark.parametrize("name", SERVICES)
def test_every_container_is_bounded_as_in_kubernetes(name: str):
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges"]
    assert service["user"] == "10001:10001"
    assert all(re.fullmatch(r"\$\{GAGPO_\w+:\?.+\}", secret) for secret in service["environment"].values())


@pytest.mark.attack
def test_only_the_trainer_has_a_way_out_and_games_reach_no_store():
    networks = {name: set(service["networks"]) for name, service in SERVICES.items()}
    assert all(FILE["networks"][name] == {"internal": True} for name in ("store", "games"))
    assert networks == {"redis": {"store"}, "environment": {"games"}, "trainer": {"store", "games", "metrics"}}
