"""Alerts, played through by promtool, and the page that says what to do about each."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from deploy.monitor.servers import SHIPPED, prometheus_config
from services.telemetry.catalogue import CATALOGUE

ROOT = Path(__file__).parents[4]
PLAYED = Path(__file__).with_name("alerts.yml")
ALERTS = [rule for group in yaml.safe_load((SHIPPED / "rules.yml").read_text())["groups"] for rule in group["rules"]]
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian: prometheus) is missing")


def promtool(*arguments: object) -> None:
    done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_alerts_fire_when_they_should_and_not_before():
    promtool("test", "rules", PLAYED)


@needs_promtool
def test_the_shipped_configuration_is_valid():
    promtool("check", "config", SHIPPED / "prometheus.yml")


@needs_promtool
def test_a_configuration_for_this_machine_is_valid(tmp_path: Path):
    token = tmp_path / "token"
    token.write_text("secret")
    config = tmp_path / "prometheus.yml"
    config.write_text(prometheus_config(tmp_path, ray=tmp_path / "ray.json", token=token))
    promtool("check", "config", config)
    jobs = {job["job_name"]: job for job in yaml.safe_load(config.read_text())["scrape_configs"]}
    assert jobs["gagpo"]["authorization"] == {"credentials_file": str(token)}
    assert "authorization" not in jobs["ray"]


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_is_played_through_knows_its_metrics_and_names_its_section(alert):
    tests = [one for test in yaml.safe_load(PLAYED.read_text())["tests"] for one in test["alert_rule_test"]]
    assert any(one["alertname"] == alert["alert"] and one["exp_alerts"] for one in tests), "never fires in the tests"
    assert set(re.findall(r"\bgagpo_[a-z_]+\b", alert["expr"])) <= CATALOGUE.keys()
    page, _, anchor = alert["annotations"]["runbook"].partition("#")
    headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert anchor in [heading.lower() for heading in headings]
    assert alert["labels"]["severity"] in ("critical", "warning")


def test_pods_get_the_labels_that_boards_and_alerts_go_by():
    """As the file's discovery gives them: `run`, and the job whose endpoints must be up."""
    monitor = yaml.safe_load((ROOT / "deploy/kubernetes/base/podmonitor.yaml").read_text())
    for endpoint in monitor["spec"]["podMetricsEndpoints"]:
        made = {one["targetLabel"]: one.get("replacement") for one in endpoint["relabelings"]}
        assert made == {"run": None, "job": "gagpo"} | ({"part": "driver"} if endpoint["port"] == "driver" else {})
    assert {job["job_name"] for job in yaml.safe_load((SHIPPED / "prometheus.yml").read_text())["scrape_configs"]} == {
        "gagpo", "ray"}
    assert any('up{job="gagpo", part!="driver"}' in alert["expr"] for alert in ALERTS)


def test_prometheus_reads_no_port_that_kuberay_names():
    """It gives every Ray container that has none a port `metrics`, for Ray's own metrics."""
    (monitor,) = yaml.safe_load_all((ROOT / "deploy/kubernetes/base/podmonitor.yaml").read_text())
    ports = {endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]}
    policies = yaml.safe_load_all((ROOT / "deploy/kubernetes/base/network.yaml").read_text())
    (policy,) = (one for one in policies if one["metadata"]["name"] == "metrics")
    assert {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]} == ports == {"driver", "env"}
