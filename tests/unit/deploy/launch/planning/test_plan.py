"""The plan that --dry-run prints."""

import json

import pytest

from deploy.launch.planning import plan
from deploy.launch.planning.model_memory import SCRATCH_VOCABULARY, STORED, check_object_store, model_shape
from deploy.runs.configs import load_config
from services.amounts import GIB
from services.config.tree import Config, ModelSection
from services.errors import UserError
from services.weights.actor import KEEP


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)


def config(*overrides: str) -> Config:
    return load_config("alfworld-tiny", ("learner.groups_per_step=4", "learner.group_size=5", *overrides))


def test_upper_bounds_follow_from_the_batch():
    """4 groups x 5 members x 30 turns, each of at most 480 + 24 tokens."""
    made = plan.make_plan(config("env.max_steps=30", "rollout.max_prompt_tokens=480", "rollout.max_response_tokens=24"))
    assert (made.episodes_per_step, made.rows_per_step, made.tokens_per_step) == (20, 600, 600 * 504)


@pytest.mark.parametrize(("overrides", "rows"), [
    (["agent.name=rollout.agents.conversation:agent", "agent.max_calls=40"], 40),
    (["learner.judge.questions=2", "learner.judge.answers=3"], 30 + 3 * (2 + 1))])
def test_upper_bounds_count_all_answers_of_an_episode(overrides: list[str], rows: int):
    """Each call of the model by an agent is a row. A won episode has one question more than `questions`."""
    assert plan.make_plan(config("env.max_steps=30", *overrides)).rows_per_step == 20 * rows


def test_reservations_add_up():
    made = plan.make_plan(config("rollout.workers=2", "rollout.cpus=3", "learner.ranks=4", "learner.gpus=0.5"))
    assert (made.cpus, made.gpus) == (2 * 3 + 4 * 1, 2.0)


def test_a_critic_takes_memory_of_its_own():
    """16 bytes per parameter beside the policy's 20, on one rank, 12 of the copy that a checkpoint is made of, and
    24 of the file that is written."""
    plain, critic = (next(process.memory_gib for process in plan.make_plan(made).processes
                          if process.name == "learner rank")
                     for made in (config(), config("learner.credit.estimator=ppo")))
    assert (critic - plain) * GIB == pytest.approx(52 * model_shape(config().model).parameters)


def test_the_object_store_has_to_hold_an_old_version_and_a_new_one_twice():
    """With less room Ray would write versions to a disk."""
    chosen = config("model.dtype=bfloat16")
    size = 2 * model_shape(chosen.model).parameters
    actor = next(process for process in plan.make_plan(chosen).processes if process.name == "weights actor")
    assert actor.memory_gib == pytest.approx(0.2 + 3 * size / GIB)
    assert STORED == KEEP + 1
    check_object_store(chosen, [0.0, 3 * size])
    with pytest.raises(UserError) as refused:
        check_object_store(chosen, [0.0, 3 * size - 1])
    assert str(refused.value).endswith(f"or start its Ray with --object-store-memory={3 * size}")


def test_parameters_of_a_model_from_scratch_are_those_of_the_real_one():
    """The formula against the sum over transformers' own module."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    for tie in (True, False):
        section = ModelSection(hidden=64, layers=2, heads=2, intermediate=96, tie_embeddings=tie)
        real = Qwen2ForCausalLM(Qwen2Config(
            vocab_size=SCRATCH_VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=2, tie_word_embeddings=tie))
        assert model_shape(section).parameters == sum(weight.numel() for weight in real.parameters())


def test_sessions_that_are_processes_take_their_memory():
    """Eight slots share two servers: four JVMs of 320 MiB each."""
    chosen = ("env.servers=2", "rollout.slots=8", "rollout.workers=1")
    server, light = (
        next(one for one in plan.make_plan(config(*chosen, name)).processes if one.name == "environment server")
        for name in ("env.name=scienceworld", "env.name=search"))
    assert server.count == 2
    assert server.memory_gib == pytest.approx(light.memory_gib + 4 * 320 / 1024)


def test_servers_that_run_already_are_not_started():
    names = {process.name for process in plan.make_plan(config(
        "redis.url=redis://store:6379/0", "ray.address=head:6379", "env.urls=[http://env:8000]")).processes}
    assert names == {"controller", "weights actor", "rollout worker", "learner rank"}


def test_ray_address_of_the_environment_counts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    assert not plan.make_plan(config()).private_ray


def test_the_text_names_what_runs_and_hides_passwords():
    text = plan.describe(config("redis.url=redis://:secret@store:6379/0"))
    assert "redis at store:6379/0" in text
    assert "secret" not in text
    assert "rollout worker" in text
    assert text.endswith("nothing was started")


@pytest.mark.parametrize(("overrides", "line"), [
    ((), "gagpo, states by observation, gamma 0.95, lam 0.8"),
    (("learner.credit.estimator=grpo", "learner.credit.penalty=0.5"), "grpo, penalty 0.5"),
    (("learner.credit.estimator=gigpo", "learner.credit.state_key=prompt"), "gigpo, states by prompt, gamma 0.95")])
def test_the_text_says_which_credit_trains(overrides: tuple[str, ...], line: str):
    """Nothing confirmed an estimator of the user's own, or a key of it."""
    assert f"\ncredit        {line}\n" in plan.describe(config(*overrides))


@pytest.mark.parametrize(("overrides", "line"), [
    ((), "imitates a scripted player for 1 epoch, trained by this process, on the CPU"),
    (("model.path=7b", "learner.gpus=1", "learner.ranks=4", "sft.minutes=30"),
     "imitates a scripted player for 30 min, trained by 4 learner ranks"),
    (("sft.enabled=false",), None)])
def test_the_text_says_who_makes_the_cold_start(overrides: tuple[str, ...], line: str | None, models, two_cpus):
    overrides = tuple(one.replace("7b", str(models["7b"])) for one in overrides)
    text = plan.describe(load_config("alfworld-tiny", overrides))
    told = [one.removeprefix("cold start").strip() for one in text.splitlines() if one.startswith("cold start")]
    assert told == ([] if line is None else [line])


def test_an_environment_that_cannot_describe_its_games_is_told_in_one_line(tmp_path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "undescribed.py").write_text(
        "from dataclasses import replace\nfrom toy_environment import SPEC as TOY\n"
        "SPEC = replace(TOY, describe=lambda env: {}['missing'])\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match=r"^describe of undescribed:SPEC failed \(KeyError: .*; fix undescribed"):
        plan.describe(config("env.name=undescribed:SPEC", "env.prompt=full"))


def test_the_dictionary_is_json_with_a_format():
    made = json.loads(json.dumps(plan.as_dict(config())))
    assert made["format"] == 1
    assert made["tokens_per_step"] == 20 * 30 * 504
    assert made["config"]["learner"]["groups_per_step"] == 4


@pytest.mark.parametrize(("ranks", "rows", "tokens"), [
    (24, 256, 6827), (24, 512, 13653), (8, 256, 10240), (3, 256, 13653), (1, 256, 16384)])
def test_tokens_per_pack_follow_from_rows_and_ranks(ranks: int, rows: int, tokens: int):
    """Rows of 640 tokens, a quarter of 2,560. 256 of them on 8 ranks are 20,480 tokens each, in two packs."""
    made = plan.make_plan(load_config("alfworld-32b", [f"learner.ranks={ranks}", f"learner.minibatch_rows={rows}"]))
    assert made.pack_tokens == tokens


def test_the_plan_prints_how_full_packs_are():
    """600 rows of 126 tokens, a quarter of 504, in updates of 256: 32,256 tokens on one rank."""
    made = plan.describe(config("rollout.max_prompt_tokens=480", "rollout.max_response_tokens=24",
                                "learner.minibatch_rows=256", "learner.token_budget=20000"))
    assert ("packs         about 16,128 of 20,000 tokens on each rank (81%), if rows have a quarter of the longest "
            "one's\n") in made
