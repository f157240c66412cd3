"""Mistakes that are refused in one line before anything heavy starts."""

import importlib.util
import json
import re
import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from ports import likely_port

from deploy.launch.checks import preflight
from deploy.launch.planning import machine
from deploy.runs.configs import load_config
from services.amounts import GIB
from services.config.tree import Config, PlacementSection
from services.errors import UserError


@pytest.fixture(autouse=True)
def generated_games(two_cpus: None, monkeypatch: pytest.MonkeyPatch):
    """Provides a machine that is the same on any test machine, and generated games."""
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)


def config(*overrides: str) -> Config:
    return load_config("alfworld-tiny", ("eval.episodes=8", "eval.panel=8", *overrides))


def refusals(*overrides: str) -> list[str]:
    with pytest.raises(UserError) as error:
        preflight.check(config(*overrides))
    return str(error.value).splitlines()


def refusal(*overrides: str) -> str:
    (only,) = refusals(*overrides)
    return only


def test_all_mistakes_come_together_after_the_warnings():
    """Those of the folder, of the batch, of the machine and of the games."""
    lines: list[str] = []
    with pytest.raises(UserError) as error:
        preflight.check(config("runs_dir=/dev/null/runs", "learner.token_budget=400", "rollout.threads=4",
                               "eval.panel=1000000", "learner.loss.is_cap=3"), report=lines.append)
    assert [line.partition(" ")[0] for line in str(error.value).splitlines()] == [
        "runs_dir=/dev/null/runs", "learner.token_budget=400", "rollout.threads=4,", "too"]
    assert lines == ["warning: learner.loss.is_cap=3.0 does nothing at learner.staleness=0"]


def test_a_plan_that_fits_passes():
    preflight.check(config())


@pytest.mark.parametrize(("override", "expected"), [
    ("rollout.workers=2", "the plan reserves 3 CPUs, and this machine has 2"),
    ("rollout.threads=4", "rollout.threads=4, and this machine has 2 CPUs; set rollout.threads=2"),
    ("rollout.kv_cache_gb=40", "GiB of memory, and 16.0 are available"),
    ("rollout.kv_cache_gb=0.0005", "holds 350 tokens, and a row of prompt and response may have 504"),
    ("learner.token_budget=400", "holds no whole row of up to 504 tokens"),
    ("env.max_sessions=100", "1 workers with 128 slots play more games than the environment servers' 100 sessions"),
    ("learner.groups_per_step=1000000", "asks for 1,000,000 and the train split has"),
    ("eval.panel=1000000", "asks for 1,000,000 and the heldout split has"),
    ("sft.enabled=false", "there is no policy to start from"),
    ("model.heads=3", "make heads that the sampler cannot serve"),
    ("model.path=absent", "there is no model at absent"),
    ("env.data=absent", "absent"),
    ("learner.lora.rank=2 learner.lora.targets=[q_porj]", "learner.lora.targets names no layer of this model (q_porj)"),
    ("learner.lora.rank=2 learner.lora.targets=[q_proj,lm_head]", "names lm_head, whose weights are the embeddings"),
    (f"redis.bodies={Path('/dev/null/bodies').as_uri()}", "/dev/null/bodies cannot be used"),
    (f"redis.bodies={Path('absent').absolute().as_uri()}", "absent is not there); check that the folder is there"),
    ("redis.url=ftp://x", "redis.url is not a Redis address"),
])
def test_a_plan_that_cannot_work_is_refused(override: str, expected: str):
    assert expected in refusal(*override.split())


@pytest.mark.parametrize(("override", "build"), [
    ("rollout.gpus=1", "rollout.gpus=1, and vLLM's build for CPUs is installed"),
    ("learner.gpus=0.5", "learner.gpus=0.5, and torch is a build for CPUs")])
def test_a_machine_without_a_gpu_lacks_its_builds_too(override: str, build: str):
    first, *others = refusals(override)
    assert first.startswith("the plan asks for 1 GPU, and there is none;")
    assert any(line.startswith(build) for line in others)


def test_sessions_that_do_not_fit_into_memory_are_not_counted():
    sessions, memory = refusals("env.name=scienceworld", "env.prompt=compact", "env.memory_gb=2")
    assert sessions.endswith("than the environment servers' 6 sessions; lower rollout.slots, or raise env.memory_gb")
    assert re.search(r"and 16\.0 are available; set rollout\.slots=32, which needs 1\d\.\d GiB$", memory)


@pytest.mark.parametrize(("gib", "overrides", "change"), [
    (19, (), "learner.token_budget=2048"),
    (17, (), "learner.checkpointing=true"),
    (16, (), "learner.checkpointing=true and learner.token_budget=504"),
    (13, (), "learner.lora.rank=16 and learner.checkpointing=true"),
    (11, (), "learner.lora.rank=16, learner.checkpointing=true and learner.token_budget=504"),
    (19, ("rollout.kv_cache_gb=6", "learner.token_budget=1024"), "rollout.kv_cache_gb=3"),
])
def test_a_refusal_of_memory_names_the_first_change_with_which_the_plan_fits(
        gib: int, overrides: tuple[str, ...], change: str, models: dict[str, Path], monkeypatch: pytest.MonkeyPatch):
    """The change is the one to copy: with it, the same machine takes the run."""
    monkeypatch.setattr(machine, "available_memory", lambda: gib * GIB)
    given = (f"model.path={models['135m']}", "sft.enabled=false", *overrides)
    found = re.search(r"set (.*), which needs ([\d.]+) GiB$", refusals(*given)[-1])
    assert found
    assert found[1] == change
    assert float(found[2]) <= gib
    preflight.check(config(*given, *re.findall(r"[a-z_.]+=\w+", change)))


def test_a_refusal_of_memory_names_the_change_that_its_number_is_for(
        models: dict[str, Path], monkeypatch: pytest.MonkeyPatch):
    """The plan needed 44.3 GiB, and `a machine with 25.7 GiB` was advised, without the change that needs so little."""
    monkeypatch.setattr(machine, "available_memory", lambda: 4 * GIB)
    given = (f"model.path={models['135m']}", "sft.enabled=false")
    found = re.search(r"; set (.*) and use a machine with ([\d.]+) GiB available, or a smaller model$",
                      refusals(*given)[-1])
    assert found
    monkeypatch.setattr(machine, "available_memory", lambda: (float(found[2]) + 0.1) * GIB)
    preflight.check(config(*given, *re.findall(r"[a-z_.]+=\w+", found[1])))


@pytest.mark.parametrize(("overrides", "expected"), [
    (("learner.credit.estimator=gagp",), "there is no credit estimator 'gagp'"),
    (("learner.credit.estimator=own_credit:Broken",), "own_credit:Broken failed on a made-up group (ValueError: no"),
    (("learner.credit.estimator=ppo",), "its own advantage, and learner.loss.ratio=sequence has one ratio per action"),
    (("learner.group_size=1",), "learner.group_size=1 leaves estimator gagpo nothing to compare"),
    (("learner.credit.estimator=reinforce_pp_baseline", "learner.group_size=1"), "leaves estimator reinforce_pp_base"),
    (("learner.credit.estimator=ppo", "learner.loss.ratio=token", "learner.judge.questions=1",
      "sft.judgements=0.1"),
     "estimator ppo has a critic, and there is no judge task for that"),
    (("learner.judge.questions=2", "agent.name=operator:setitem", "sft.judgements=0.1"),
     "operator:setitem plays, and there is no judge task for that"),
    (("learner.credit.estimator=ppo", "learner.loss.ratio=token", "learner.group_size=1",
      "learner.dynamic_sampling=1"), "that is every group"),
])
def test_an_estimator_that_lacks_what_it_needs_is_refused(
        overrides: tuple[str, ...], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "own_credit.py").write_text(
        "from learner.credit.estimator import WithinGroup\n\nclass Broken(WithinGroup):\n"
        "    def group(self, group, options):\n        raise ValueError('no')\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert expected in refusal(*overrides)


def test_the_engines_exact_state_is_a_state_key():
    preflight.check(config("learner.credit.state_key=environment", "env.alfworld.exact_state=true"))


@pytest.mark.parametrize("estimator", ["ppo", "reinforce_pp"])
def test_a_critic_and_a_baseline_over_the_batch_need_no_group_to_compare_with(estimator: str):
    preflight.check(config(f"learner.credit.estimator={estimator}", "learner.loss.ratio=token", "learner.group_size=1"))


@pytest.mark.parametrize(("override", "expected"), [
    ("learner.staleness=1", "with learner.staleness=1 episodes continue under weights that come at any moment; "
                            "set learner.staleness=0, or rollout.exact=false"),
    ("learner.gpus=0.5", "with learner.gpus=0.5 the sums of a GPU come in any order"),
])
def test_settings_that_break_the_promise_of_exact_are_refused(override: str, expected: str):
    assert expected in refusals("rollout.exact=true", override)[0]


def test_a_redis_that_does_not_answer_is_refused():
    url = f"redis://127.0.0.1:{likely_port()}/0"
    assert "Redis cannot be reached" in refusal("supervision.reach_seconds=0", f"redis.url={url}")


def test_a_server_that_does_not_answer_is_refused():
    url = f"http://127.0.0.1:{likely_port()}"
    assert refusal("supervision.reach_seconds=0", f"env.urls=[{url}]") == (
        f"no environment server answers at {url} (ConnectError: All connection attempts failed); "
        "start one with `gagpo serve-env`, or leave env.urls out")


class Retriever(BaseHTTPRequestHandler):
    """Knows one form of a request, that of the path: `/query` or `/queries`; elsewhere it answers two lines of 404."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        known = self.path[1:] in ("query", "queries") and self.path[1:] in body
        reply = json.dumps({"result": [[{"document": {"contents": "a fact"}, "score": 1.0}]]}) if known else "no\nsuch"
        self.send_response(200 if known else 404)
        self.send_header("content-length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


def test_a_retriever_is_asked_once_in_both_forms_and_a_wrong_url_is_refused():
    with ThreadingHTTPServer(("127.0.0.1", 0), Retriever) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        url, played = f"http://127.0.0.1:{server.server_port}", (
            "env.name=search", "env.prompt=compact", "env.max_steps=4")
        try:
            preflight.check_parts(config(*played, f"env.search.url=[{url}/query,{url}/queries]"))
            said = refusal(*played, f"env.search.url=[{url}/query,{url}]")
        finally:
            server.shutdown()
            thread.join(timeout=60)
    fix = "give env.search.url in full, such as [http://HOST:8000/retrieve], or leave it out"
    assert said == f"no retriever answers at {url} ({url} answered 404: no such); {fix}"
    assert refusal(*played, "env.search.url=['http://[']").endswith(fix)


def test_on_a_ray_that_runs_already_the_machine_is_its_own_business(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(preflight, "check_ray", lambda _: None)  # no cluster runs here
    preflight.check(config("rollout.workers=2", "rollout.gpus=1", "ray.address=10.0.0.1:6379"))


@pytest.mark.parametrize("role", PlacementSection.model_fields)
def test_marks_of_nodes_need_a_cluster(role: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(preflight, "check_ray", lambda _: None)  # no cluster runs here
    marked = f"placement.{role}=gpu_node"
    assert refusal(marked) == (f"{marked} marks nodes of a Ray cluster, and this run starts its own; "
                               f"set ray.address or $RAY_ADDRESS, or placement.{role}=null")
    preflight.check_parts(config(marked, "ray.address=10.0.0.1:6379"))
    preflight.check_parts(config(marked, "hardware=8x80"), planned=True)


def test_a_model_folder_that_is_whole_passes(model: Path):
    preflight.check(config(f"model.path={model}"))


def test_rows_longer_than_the_model_are_refused(model: Path):
    text = refusal(f"model.path={model}", "rollout.max_prompt_tokens=700")
    assert "prompt and response may take 724 tokens, and the model has 600 positions" in text


def test_heads_that_the_sampler_cannot_serve_on_a_cpu_are_refused(model: Path):
    (model / "config.json").write_text(json.dumps({"hidden_size": 64, "num_attention_heads": 4}))
    assert f"the model at {model} has heads of size 16, which the sampler" in refusal(f"model.path={model}")


def test_a_broken_model_config_is_named(model: Path):
    (model / "config.json").write_text("{")
    assert f"{model / 'config.json'} is damaged" in refusal(f"model.path={model}")


def test_broken_game_data_is_named(tmp_path: Path):
    for split in ("train", "valid_seen", "valid_unseen"):
        for index in range(8):
            trial = tmp_path / "json_2.1.1" / split / f"pick_and_place_simple-Mug-None-Shelf-{index}" / "trial_T1"
            trial.mkdir(parents=True)
            (trial / "game.tw-pddl").write_text('{"pddl_problem": "", "solvable": true}')
    text = refusal(f"env.data={tmp_path}", "learner.groups_per_step=1", "eval.episodes=1", "eval.panel=1")
    assert "is broken" in text
    assert "pick_and_place_simple" in text


def test_an_evaluation_is_not_held_to_the_panels_of_a_training_run():
    """Its tasks may come from a split with more games than the held-out one."""
    wanted = config("eval.panel=900")
    with pytest.raises(UserError, match="heldout split has"):
        preflight.check(wanted)
    preflight.check_parts(wanted)


def test_a_folder_that_cannot_be_written_is_refused_and_nothing_is_left(tmp_path: Path):
    (tmp_path / "file").write_text("")
    said = refusal(f"runs_dir={tmp_path}/file/runs")
    assert said == (f"runs_dir={tmp_path}/file/runs cannot be written (Not a directory: {tmp_path}/file); "
                    "set runs_dir to a folder that you may write to")
    assert "cannot be written" in refusal("runs_dir=/proc/runs")
    preflight.check(config(f"runs_dir={tmp_path}/new/runs"))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_port_in_use_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert refusal(f"metrics.port={port}") == (
            f"metrics.port={port} is in use on 127.0.0.1; choose another, or metrics.port=0 for a free one")


def test_an_address_of_another_machine_for_the_metrics_is_refused_and_planned():
    assert refusal("metrics.host=192.0.2.1").startswith("metrics.host=192.0.2.1 is no address of this machine; ")
    preflight.check(config("metrics.host=192.0.2.1", "hardware=8x80"), planned=True)


def test_a_dead_ray_is_refused_from_the_config_and_from_the_environment(monkeypatch: pytest.MonkeyPatch):
    address = f"127.0.0.1:{likely_port()}"
    expected = (f"no Ray cluster answers at {address} ([Errno 111] Connection refused); "
                "start a cluster, or unset RAY_ADDRESS")
    assert refusal(f"ray.address={address}").startswith(expected)
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert refusal().startswith(expected)


def test_a_module_that_breaks_when_it_is_imported_is_refused_in_one_line(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "broken_game.py").write_text("from json import no_such_name\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert refusal("env.name=broken_game:SPEC").startswith(
        "the environment broken_game:SPEC cannot be imported (ImportError: cannot import name 'no_such_name'")


@pytest.mark.parametrize(("code", "said"), [
    ("import random\nrandom.nosuch\n", "(AttributeError: module 'random' has no attribute 'nosuch'); fix own_game"),
    ("from services.errors import UserError\nraise UserError('no server answers', 'start it')\n",
     "no server answers; start it"),
    ("SPCE = 1\n", "own_game.py; set env.name to module:attribute of your environment")])
def test_a_mistake_inside_a_module_is_not_told_as_a_missing_name(
        code: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "own_game.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    assert said in refusal("env.name=own_game:SPEC")


@pytest.mark.parametrize(("line", "said"), [
    ("raise KeyError('question')", "is broken (KeyError: 'question' (in reset, raising.py:5)); fix raising:SPEC"),
    ("return {'text': 'hi'}, {}", "is broken (its reset returned dict {'text': 'hi'} as text, in (text, info)); fix")])
def test_a_game_of_ones_own_that_fails_is_refused_in_one_line(
        line: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: Path):
    (tmp_path / "raising.py").write_text(
        "from envservice.adapters.gymnasium import text_spec\n\nclass Game:\n    def reset(self, *, seed):\n"
        f"        {line}\n\nSPEC = text_spec(Game, name='raising')\n")
    monkeypatch.syspath_prepend(tmp_path)
    refused = refusal("env.name=raising:SPEC", "env.prompt=full", "sft.enabled=false", f"model.path={model}")
    assert said in refused
    assert "\n" not in refused


def test_a_family_for_which_vllm_needs_a_package_is_refused_by_name(tmp_path: Path):
    """Set-up removes torchvision, as its CPU build does not fit. With it, the model is refused for its weights."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_5_text", "vocab_size": 8}))
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / "tokenizer.json").write_text("{}")
    refused = refusal(f"model.path={tmp_path}", "sft.enabled=false")
    if importlib.util.find_spec("torchvision") is None:
        assert "of the family qwen3_5_text, for which vLLM needs torchvision, and scripts/setup removes it" in refused
    else:
        assert "torchvision" not in refused
