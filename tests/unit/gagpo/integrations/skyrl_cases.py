"""Credit per step in SkyRL's own trainer: its generator plays, and its batch gets the advantages of `gagpo.credit`.

Only the model's answers are given. scripts/third-party.txt has the packages.
"""

import asyncio
import sys
import typing
from types import SimpleNamespace
from typing import Any

import pytest
import typing_extensions
from third_party import SITE

sys.path += [str(SITE)] if SITE else []  # last: torch and transformers stay those of .venv
if sys.version_info < (3, 12):  # pydantic then refuses SkyRL's types, which are made with typing.TypedDict
    typing.TypedDict = typing_extensions.TypedDict
pytest.importorskip("skyrl.train.trainer", reason="SkyRL is not installed (scripts/setup --test)",
                    exc_type=ImportError)

import skyrl_gym
from byte_tokenizer import byte_tokenizer
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.generators.base import TrajectoryID
from skyrl.train.generators.skyrl_gym_generator import SkyRLGymGenerator
from skyrl.train.trainer import RayPPOTrainer
from skyrl_gym.envs.base_text_env import BaseTextEnv

import gagpo
from gagpo.integrations.skyrl import StepCredit, register
from gagpo.integrations.steps import StepUid
from services.errors import UserError

OPTIONS = {"gamma": 0.9}
PLAYS = {"a_0": ["east", "east"], "a_1": ["west"], "b_0": ["east", "west", "east"], "b_1": ["east", "east"]}
"""The answers of the model in each trajectory, by its session."""
GROUPS = {
    "a": [[("start", 0), ("room 1", 10)], [("start", -1)]],
    "b": [[("start", 0), ("room 1", 0), ("room 0", 0)], [("start", 0), ("room 1", 10)]]}
"""The same as states and rewards."""


class Rooms(BaseTextEnv):
    """Won in room 2, lost in room -1."""

    def __init__(self, env_config: Any = None, extras: Any = None) -> None:
        super().__init__()
        self.room = self.turn = 0

    def step(self, action: str) -> dict[str, Any]:
        self.room, self.turn = self.room + (1 if "east" in action else -1), self.turn + 1
        return {"observations": [{"role": "user", "content": f"room {self.room}"}], "metadata": {},
                "reward": {2: 10.0, -1: -1.0}.get(self.room, 0.0),
                "done": self.room in (2, -1) or self.turn == 3}


class Model:
    """Stands for the servers that sample: it says what PLAYS has."""

    def __init__(self) -> None:
        self.turns = dict.fromkeys(PLAYS, 0)

    async def generate(self, asked: Any, model: str | None = None) -> dict[str, Any]:
        (session,) = asked["session_ids"]
        text = PLAYS[session][self.turns[session]]
        self.turns[session] += 1
        return {"responses": [text], "response_ids": [[*byte_tokenizer().encode(text), 1]], "stop_reasons": ["stop"]}

    async def finish_session(self, session: str) -> None:
        pass


class Trainer(StepCredit, RayPPOTrainer):
    pass


@pytest.fixture(scope="module", autouse=True)
def registered():
    skyrl_gym.register(id="rooms", entry_point=Rooms)
    register(**OPTIONS)


def trainer(**changes: Any) -> Trainer:
    settings = {"trainer.algorithm.advantage_estimator": "gagpo", "generator.step_wise_trajectories": "true",
                "trainer.train_batch_size": "2", "trainer.policy_mini_batch_size": "2",
                "generator.n_samples_per_prompt": "2", "generator.sampling_params.logprobs": "null",
                "generator.inference_engine.enable_ray_prometheus_stats": "false",
                "trainer.enable_ray_gpu_monitor": "false", **changes}
    cfg = SkyRLTrainConfig.from_cli_overrides([f"{name}={value}" for name, value in settings.items()])
    tokenizer = byte_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token
    generator = SkyRLGymGenerator(cfg.generator, cfg.environment.skyrl_gym, Model(), tokenizer)
    made = Trainer(cfg=cfg, tracker=None, tokenizer=tokenizer, train_dataset=None, eval_dataset=None,
                   inference_engine_client=None, generator=generator)
    made.dispatch = SimpleNamespace(get_lcm_dp_size=lambda: 3)  # so that 8 rows are filled up to 9
    return made


def generated(trained: Trainer) -> Any:
    """Returns what SkyRL's generator makes of the plays."""
    sessions = [TrajectoryID(name[0], int(name[2])) for name in PLAYS]
    return asyncio.run(trained.generate({
        "prompts": [[{"role": "user", "content": "start"}] for _ in PLAYS], "env_classes": ["rooms"] * len(PLAYS),
        "env_extras": [{} for _ in PLAYS], "sampling_params": None, "trajectory_ids": sessions,
        "batch_metadata": None}))


def batch(trained: Trainer, output: Any) -> Any:
    """Returns the batch as the loss gets it, by the steps that RayPPOTrainer.train takes."""
    uids = [each.instance_id for each in output["trajectory_ids"]]
    output, uids = trained.postprocess_generator_output(output, uids)
    data = trained.convert_to_training_input(output, uids)
    data["values"] = None  # of fwd_logprobs_values_reward without a critic
    return trained.compute_advantages_and_returns(data)


def expected() -> list[float]:
    advantages = []
    for episodes in GROUPS.values():
        credit = gagpo.credit({"episodes": [
            {"steps": [{"state": state, "reward": reward} for state, reward in steps]} for steps in episodes]},
            **OPTIONS)
        advantages += [each for episode in credit.advantages for each in episode]
    return advantages


def test_every_step_gets_its_own_advantage():
    """The ninth row fills the batch: a copy of the first one, which counts once."""
    trained = trainer()
    data = batch(trained, generated(trained))
    assert data["advantages"].shape == data["response_mask"].shape
    assert data["advantages"].equal(data["returns"])
    rows = [advantages[mask.bool()].unique() for advantages, mask in
            zip(data["advantages"], data["response_mask"], strict=True)]
    assert [len(row) for row in rows] == [1] * 9
    assert [row.item() for row in rows] == pytest.approx([*expected(), expected()[0]], abs=1e-5)
    assert len({round(each, 4) for each in expected()}) > 4


def test_the_logged_rewards_are_still_those_of_trajectories():
    """The last steps earned 10, -1, 0 and 10."""
    trained = trainer()
    data = batch(trained, generated(trained))
    assert trained.all_metrics["loss/avg_final_rewards"] == data.metadata["metrics"]["avg_final_rewards"] == 4.75
    assert data.metadata["is_last_step"] == [False, True, True, False, False, True, False, True, True]
    assert trained.all_metrics["reward/avg_raw_reward"] == 4.75


def test_a_row_knows_what_the_model_read_and_said():
    trained = trainer()
    data = trained.convert_to_training_input(*trained.postprocess_generator_output(
        output := generated(trained), [each.instance_id for each in output["trajectory_ids"]]))
    uids = data.metadata["uids"][:8]
    assert uids == ["a"] * 3 + ["b"] * 5
    assert [(uid.episode, uid.turn, uid.action) for uid in uids[:4]] == [
        ("0", 0, "east"), ("0", 1, "east"), ("1", 0, "west"), ("2", 0, "east")]
    assert [uid.observation.strip().splitlines()[-1] for uid in uids[:2]] == [
        "[user]start[assistant]", "[user]room 1[assistant]"]


def test_ids_of_the_generators_own_stay():
    trained = trainer()
    output = generated(trained)
    for number, each in enumerate(output["trajectory_ids"]):
        turn = number - max(i for i in range(number + 1) if i == 0 or output["is_last_step"][i - 1])
        output["trajectory_ids"][number] = TrajectoryID(
            StepUid(each.instance_id, str(each.repetition_id), turn, f"state {number}"), each.repetition_id)
    uids = [each.instance_id for each in output["trajectory_ids"]]
    data = trained.convert_to_training_input(*trained.postprocess_generator_output(output, uids))
    assert [uid.observation for uid in data.metadata["uids"][:8]] == [f"state {number}" for number in range(8)]


@pytest.mark.parametrize(("changes", "message"), [
    ({"generator.step_wise_trajectories": "false"},
     "generator.step_wise_trajectories is False, and credit needs rows that are steps; "
     "generator.step_wise_trajectories=true"),
    ({"generator.merge_stepwise_output": "true"}, "generator.merge_stepwise_output is True"),
    ({"generator.apply_overlong_filtering": "true"}, "generator.apply_overlong_filtering is True"),
    ({"trainer.algorithm.advantage_estimator": "rloo"}, "the estimator rloo of skyrl takes steps for episodes"),
])
def test_a_setting_by_which_rows_are_no_steps_is_refused(changes: dict[str, str], message: str):
    with pytest.raises(UserError) as refused:
        trainer(**changes)
    assert message in str(refused.value)
