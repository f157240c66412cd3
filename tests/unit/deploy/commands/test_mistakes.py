"""Mistakes of a newcomer end in one line: what is wrong, the value seen, how to fix it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from deploy.cli import main
from deploy.runs.configs import find_config, load_config
from services.config.file import dump_config


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starts in a folder with the run `mine`, which has not trained yet, and some modules of the user's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    config = load_config("alfworld-tiny", ["name=mine"])
    dump_config(config, config.run_dir / "config.yaml")
    Path("leaving_module.py").write_text("import sys\nsys.exit('bye')\n")
    Path("number_module.py").write_text("SPEC = 3\n")
    Path("untaught.py").write_text(
        "from envservice.adapters.gymnasium import text_spec\n\nclass Game:\n    pass\n\n"
        "SPEC = text_spec(Game, name='untaught', max_steps=3)\n")
    Path("table_module.py").write_text(
        "from learner.credit.gagpo import Gagpo\n\nclass Own(Gagpo):\n    class Options(Gagpo.Options):\n"
        "        table: int = 3\n")
    Path("misspelt.py").write_text(
        "from rollout.agents.program import AgentProgram\n\nagent = AgentProgram('pyhton', 'my_program.py')\n"
        "none = AgentProgram()\nscript = AgentProgram('python3', '-u', 'my_porgram.py', 'out.py')\n")
    Path("logged.jsonl").write_text('{"episodes": [{"steps": [{"state": "a", "reward": 1}]}]}\nno json\n')
    Path("empty.json").touch()
    for model in ("half", "lr=3e-4"):
        Path(model).mkdir()
        Path(model, "config.json").write_text('{"model_type": "qwen2"}')


DRY = ["train", "--config", "alfworld-tiny", "--dry-run"]


@pytest.mark.parametrize(("arguments", "line"), [
    (["train", "alfworld-tiny"], "neither --config nor a run is given; give --config alfworld-tiny, or --resume RUN"),
    (["train", "--config", "runs/mine"], "runs/mine is a folder, not a config file; give runs/mine/config.yaml, or "
     "continue a run by --resume"),
    (["train", "--resume", "s3://"], "--resume: 's3://' is no folder of an object store, such as s3://bucket/runs; "
     "give storage.url and the run's name: s3://BUCKET/PATH/NAME"),
    (["train", "--resume", "mine", "--skip-step", "0"],
     "argument --skip-step: it must be at least 1, not 0; see `gagpo train --help`"),
    (["eval", "--policy", "react", "--endpoint", "http://host/v1", "--which", "best"],
     "--which is given with --endpoint; leave it out: it chooses a checkpoint of a run"),
    (["eval", "lr=3e-4", "--config", "alfworld-tiny", "--policy", "react", "env.history=3"],
     "the model at CWD/lr=3e-4 has no weights; set model.path to a complete Hugging Face folder"),
    (["eval", "mine", "--episodes", "-3"],
     "argument --episodes: it must be at least 0, not -3; see `gagpo eval --help`"),
    (["eval", "mine", "--episodes", "x"],
     "argument --episodes: it must be a whole number, not 'x'; see `gagpo eval --help`"),
    (["eval", "mine", "--temperature", "-1"],
     "argument --temperature: it must be above 0, not -1; see `gagpo eval --help`"),
    (["eval", "mine", "--max-steps", "-2"],
     "argument --max-steps: it must be at least 1, not -2; see `gagpo eval --help`"),
    (["scale", "mine", "env=100000"],
     "'env=100000' is no number of processes; write rollout=N or env=N, with N from 1 to 99999"),
    ([*DRY, "--steps", "3"], "unrecognised argument --steps; did you mean steps=VALUE, without dashes?"),
    (["train", "--config", "runs"], "runs is a folder, not a config file; give the path of a YAML file"),
    (["train", "--dryrun"], "unrecognised argument --dryrun; did you mean --dry-run?"),
    ([*DRY, "--learner.lr=3e-4"],
     "unrecognised argument --learner.lr=3e-4; did you mean learner.lr=VALUE, without dashes?"),
    ([*DRY, "--lr", "3e-4"], "unrecognised argument --lr; did you mean sft.lr=VALUE or learner.lr=VALUE or "
     "learner.critic.lr=VALUE, without dashes?"),
    ([*DRY, "--group-size=4"],
     "unrecognised argument --group-size=4; did you mean learner.group_size=VALUE, without dashes?"),
    ([*DRY, "sft={minutes:5}"], "sft is a section, and 'sft={minutes:5}' would replace all of it; "
     "give its keys one by one: sft.minutes=VALUE"),
    (["train", "--config", "alfworld-tiny", "--cold-start", "empty.json"],
     "--cold-start empty.json cannot be written (Not a directory: CWD/empty.json); give another folder"),
    (["train", "--config", "alfworld-1.5b", "--cold-start", "cold"],
     "there is no policy to start from: model.path is empty and sft.enabled is false; set model.path, or "
     "sft.enabled=true"),
    ([*DRY, "env.name=leaving_module:SPEC"],
     "the environment leaving_module:SPEC cannot be imported (SystemExit: bye); fix leaving_module"),
    ([*DRY, "env.name=number_module:SPEC"],
     "number_module:SPEC is of type int, not an EnvironmentSpec; see envservice/spec.py"),
    ([*DRY, "agent.name=misspelt:agent"], "the agent misspelt:agent starts the program 'pyhton', and there is none; "
     "correct its name in AgentProgram, or install it"),
    ([*DRY, "agent.name=misspelt:none"], "the agent misspelt:none starts the program '', and there is none; correct "
     "its name in AgentProgram, or install it"),
    ([*DRY, "agent.name=misspelt:script"], "the agent misspelt:script starts my_porgram.py, and there is no such file "
     "in CWD; correct its name in AgentProgram, or give its full path"),
    ([*DRY, "agent.name=number_module:SPEC"], "number_module:SPEC is of type int, not a function; give agent.name an "
     "async function of (task, llm, env)"),
    ([*DRY, "model.chat_template=absent.jinja"],
     "there is no file absent.jinja; set model.chat_template to a file with a Jinja template"),
    (["serve-agent", "half"],
     "the model at CWD/half has no weights; set model.path to a complete Hugging Face folder"),
    (["serve-agent", "half", "--out", "absent/episodes.jsonl"],
     "absent/episodes.jsonl cannot be written; choose another file with --out"),
    (["eval", "half", "--policy", "react", "--config", "alfworld-tiny"],
     "the model at CWD/half has no weights; set model.path to a complete Hugging Face folder"),
    (["audit", "min"], "min is not the folder of a run; did you mean runs/mine?"),
    (["audit", "mine"], "runs/mine has no run.json: its run has not begun; try again once it trains"),
    (["report", "mine"], "runs/mine has no run.json: its run has not begun; try again once it trains"),
    (["export", "min", "out"], "min is not the folder of a run; did you mean runs/mine?"),
    (["report", "mine", "--out", "empty.json"], "empty.json cannot be written (Not a directory: CWD/empty.json); name "
     "a folder that you may write to with --out"),
    (["eval", "--policy", "react", "--endpoint", "http://127.0.0.1:9/v1", "--model", "m", "--episodes", "1", "--out",
      "half"], "half is a folder; name a file in it with --out"),
    (["eval", "--policy", "react", "--endpoint", "http://127.0.0.1:9/v1", "--model", "m", "--out", "half",
      "eval.panel=1", "env.max_steps=3"], "half is a folder; name a file in it with --out"),
    (["eval", "--policy", "react", "--endpoint", "http://127.0.0.1:9/v1", "--model", "m", "--episodes", "1", "--out",
      "empty.json/x"], "empty.json/x cannot be written (Not a directory: CWD/empty.json); choose another file with "
     "--out"),
    (["report", "min"], "min is not the folder of a run; did you mean runs/mine?"),
    (["report", "mine", "--steps", "a,b"],
     "argument --steps: write learner steps as 60,120, not as 'a,b'; see `gagpo report --help`"),
    (["explore", "mine", "runs/mine"], "a run is given twice; name each run once"),
    (["explore", "runs"], "runs is not the folder of a run; give one of runs/mine"),
    (["monitor", "absent"], "there is no folder absent; give the folder that holds the runs"),
    (["monitor", "runs", "--port", "-5"],
     "there is no port -5; choose a --port from 1 to 65535, or 0 for a free one"),
    (["monitor", "runs", "--ray", "absent.json"], "--ray absent.json is no JSON file; give "
     "prom_metrics_service_discovery.json in the temporary folder of Ray's head"),
    (["play"], "TASK is missing; give a task id, as `gagpo play --tasks SPLIT` prints it"),
    (["play", "env.history=3", "--config", "alfworld-tiny"], "TASK is missing: env.history=3 stands in its place; "
     "give a task id, as `gagpo play --tasks SPLIT` prints it"),
    (["play", "alfworld-gen/valid/look-0001", "--tasks", "train"], "--tasks train lists a split, and "
     "alfworld-gen/valid/look-0001 is one task; leave one of them out"),
    (["play", "--tasks", "train", "--max-steps", "3"], "--max-steps does nothing with --tasks; leave it out"),
    (["play", "x", "--prompts", "2", "--seed", "3"], "--seed does nothing with --prompts; leave it out"),
    (["play", "x", "--seed", "3"], "--seed does nothing without --agent; leave it out"),
    (["play", "x", "--temperature", "1"], "--temperature does nothing without --agent; leave it out"),
    (["train", "--config", "alfworld-tiny", "--continue-from", "half"],
     "--continue-from is for a cold start; give --cold-start with it, or set model.path"),
    (["train", "--config", "alfworld-tiny", "--cold-start", "cold", "--dry-run"],
     "--dry-run does nothing with --cold-start; leave it out"),
    (["eval", "eval.temperature=1"],
     "no model is given; give a folder or a run, or --policy and --endpoint"),
    (["train", "--config", "alfworld-tiny", "--cold-start", "cold", "env.name=untaught:SPEC", "env.max_steps=3",
      "env.prompt=full"],
     "untaught:SPEC has no demonstrations for a cold start; give its spec a teacher, or name a file of trajectories by "
     "sft.file, or set model.path and sft.enabled=false"),
    (["train", "--config", "alfworld-tiny", "--cold-start", "cold", "model.path=half"],
     "the model at half has no weights; set model.path to a complete Hugging Face folder"),
    (["train", "--config", "alfworld-tiny", "--cold-start", "cold", "--continue-from", "half"],
     "the model at half has no weights; set model.path to a complete Hugging Face folder"),
    (["play", "alfworld/valid_seen/x"], "alfworld/valid_seen/x is an official game and ALFWORLD_DATA is not set; "
     "run `pip install --no-deps alfworld==0.4.2 && alfworld-download`, and set ALFWORLD_DATA to its folder"),
    (["play", "alfworld-gen/valid/look-0001", "learner.credit.lamb=1"], "unknown key learner.credit.lamb: the "
     "estimator gagpo has none of this name; did you mean learner.credit.lam?"),
    (["credit", "logged.jsonl"],
     "logged.jsonl line 2: JSON is malformed: invalid character (byte 4); see gagpo credit --help for the form"),
    (["credit", "empty.json"], "empty.json is empty; see gagpo credit --help for the form"),
    (["credit", "logged.jsonl", "--estimator", "table_module:Own"], "table is an option of your own estimator or state "
     "key, and means something else to `gagpo credit`; rename it in its Options"),
    (["credit", "logged.jsonl", "--lamda", "1"], "unrecognised argument --lamda; did you mean --lam?"),
], ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else "")
def test_a_mistake_is_one_line(arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]):
    line = line.replace("CONFIG", str(find_config("alfworld-tiny"))).replace("CWD", str(Path.cwd()))
    assert main(arguments) == 2
    assert capsys.readouterr() == ("", f"error: {line}\n")
    assert not Path("absent").exists(), "nothing was made"


def test_a_shared_folder_by_a_relative_address_is_refused(capsys: pytest.CaptureFixture[str]):
    assert main([*DRY, "redis.bodies=file://shared"]) == 2
    assert "redis.bodies: 'file://shared' names no absolute folder; write `file://` and then" in capsys.readouterr().err


@pytest.mark.parametrize("protocol", [[], ["--openenv"]], ids=["own", "openenv"])
@pytest.mark.parametrize(("module", "line"), [
    ("unopened", "the environment unopened:SPEC cannot be opened (KeyError: 'maps' (in <lambda>, unopened.py:4)); fix "
     "unopened"),
    ("misnamed", "the environment misnamed:SPEC has replay='always'; choose one of pure, transcript, live"),
])
def test_a_server_of_a_broken_environment_ends_with_one_line(module: str, line: str, protocol: list[str]):
    """One ended with a traceback, and the other served."""
    Path("unopened.py").write_text(
        "from dataclasses import replace\nimport untaught\n\n"
        "SPEC = replace(untaught.SPEC, open=lambda env: {}['maps'])\n")
    Path("misnamed.py").write_text(
        "from dataclasses import replace\nimport untaught\n\ndef opened(env):\n    made = untaught.SPEC.open(env)\n"
        "    made.replay = 'always'\n    return made\n\nSPEC = replace(untaught.SPEC, open=opened)\n")
    command = [sys.executable, "-m", "deploy.cli", "serve-env", "--env", f"{module}:SPEC", "--port", "0", *protocol]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    said = [one for one in ended.stderr.splitlines() if '"event": "started"' not in one]
    assert (ended.returncode, ended.stdout, said) == (2, "", [f"error: {line}"])
