"""A server that lists the tools of an agent's environment, asked before anything starts."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from counter import counter_spec

from deploy.cli import main
from deploy.launch.checks import preflight
from deploy.runs.configs import load_config
from envservice.adapters.openenv import server_tools
from services.errors import UserError

SPEC = replace(counter_spec(), tools=lambda: server_tools("http://127.0.0.1:1", seconds=20))
ENVIRONMENT = (f"env.name={__name__}:SPEC", "env.prompt=full", "env.max_steps=8", "env.history=0", "sft.enabled=false")
AWAY = (f"the tools of {__name__}:SPEC cannot be listed (http://127.0.0.1:1 failed to step: ConnectionRefusedError "
        "[Errno 111] Connection refused); start the server that offers them, or correct its URL")


def test_a_run_of_an_agent_is_refused_while_the_tools_cannot_be_listed(two_cpus: None, model: Path):
    run = load_config("alfworld-tiny", (
        *ENVIRONMENT, f"model.path={model}", "agent.name=rollout.agents.conversation:agent"))
    with pytest.raises(UserError) as raised:
        preflight.check_parts(run)
    assert str(raised.value) == AWAY


def test_a_run_that_goes_on_waits_for_the_server_of_its_tools(two_cpus: None, model: Path, monkeypatch):
    asked = []

    def away_twice():
        asked.append(1)
        if len(asked) < 3:
            raise ConnectionRefusedError("away")
        return []

    monkeypatch.setattr(sys.modules[__name__], "SPEC", replace(counter_spec(), tools=away_twice))
    run = load_config("alfworld-tiny", (
        *ENVIRONMENT, f"model.path={model}", "agent.name=rollout.agents.conversation:agent"))
    said: list[str] = []
    preflight.check_parts(run, before=run, report=said.append)
    assert len(asked) == 3
    (line,) = said
    assert line.startswith(f"the tools of {__name__}:SPEC cannot be listed (ConnectionRefusedError: away")
    assert line.endswith(f"waiting for it for up to {run.env.outage_seconds:g} s")


def test_a_run_without_an_agent_needs_no_server_of_tools(two_cpus: None, model: Path):
    preflight.check_parts(load_config("alfworld-tiny", (*ENVIRONMENT, f"model.path={model}")))


def test_serve_agent_asks_for_the_tools_before_it_loads_a_model(model: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["serve-agent", str(model), "--config", "alfworld-tiny", *ENVIRONMENT]) == 2
    assert capsys.readouterr().err == f"error: {AWAY}\n"
