"""Credit per step in verl: an agent loop's rows go through verl's own worker, padding and trainer.

The model's answers are given, and a dictionary stands for the processes of TransferQueue: what is put into it goes
through the package's own encoding, as between processes. scripts/third-party.txt has the packages.
"""

import asyncio
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from third_party import SITE

sys.path += [str(SITE)] if SITE else []  # last: torch and transformers stay those of .venv
pytest.importorskip("verl.trainer.ppo.v1", reason="verl is not installed (scripts/setup --test)",
                    exc_type=ImportError)

import torch
import transfer_queue
from byte_tokenizer import byte_tokenizer
from hydra import compose, initialize_config_module
from ray import cloudpickle
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from transfer_queue.storage.managers.simple_storage_manager import AsyncSimpleStorageManager
from transfer_queue.utils.serial_utils import decode, encode
from transformers import Qwen2Config
from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size
from verl.trainer.ppo.v1 import get_trainer_cls
from verl.utils.import_utils import load_class_from_fqn

import gagpo
from gagpo.integrations.verl import StepManager, StepWorker
from services.errors import UserError

OPTIONS = {"gamma": 0.9, "penalty": 0.5}
MODULE = '''
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

from gagpo.integrations.verl import StepManager, register

register(gamma=0.9, penalty=0.5)
PLAYS = {"a": [["east", "east"], ["west"]], "b": [["east", "west", "east"], ["east", "fly", "east"]]}


class Rooms(AgentLoopBase):
    """Won in room 2, lost in room -1. The last step of an episode is rewarded, and a useless action costs."""

    async def run(self, sampling_params, *, session_id, raw_prompt, **prompt):
        room, outputs = 0, []
        ids = self.tokenizer.encode(raw_prompt[0]["content"])
        for action in PLAYS[raw_prompt[0]["name"]][session_id]:
            response = [*self.tokenizer.encode(action), self.tokenizer.eos_token_id]
            room += {"east": 1, "west": -1}.get(action, 0)
            outputs.append(AgentLoopOutput(
                prompt_ids=ids, response_ids=response, response_mask=[1] * len(response), num_turns=2,
                metrics=AgentLoopMetrics(), reward_score=-1.0 if action == "fly" else None,
                extra_fields={"invalid": action == "fly", "min_global_steps": 1, "max_global_steps": 1}))
            ids = [*ids, *response, *self.tokenizer.encode(f"room {room}")]
        outputs[-1].reward_score = {2: 10.0, -1: -2.0}.get(room, 0.0)
        return outputs
'''
GROUPS = {
    "a": [[("start", 0, False), ("room 1", 10, False)], [("start", -2, False)]],
    "b": [[("start", 0, False), ("room 1", 0, False), ("room 0", 0, False)],
          [("start", 0, False), ("room 1", -1, True), ("room 1", 10, False)]]}
"""The plays as states, rewards and whether the output was malformed."""


def expected() -> dict[str, float]:
    """Maps the key of each row, but for its prompt's uid, to its advantage."""
    advantages = {}
    for name, episodes in GROUPS.items():
        credit = gagpo.credit({"episodes": [
            {"steps": [{"state": state, "reward": reward, "invalid": invalid} for state, reward, invalid in steps]}
            for steps in episodes]}, **OPTIONS)
        advantages |= {f"{name}_{k}_{t}": each for k, episode in enumerate(credit.advantages)
                       for t, each in enumerate(episode)}
    return advantages


class Store:
    """The functions of TransferQueue that verl and we call, over a dictionary."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self.tags: dict[str, dict[str, Any]] = {}

    def put(self, keys: list[str], partition_id: str, fields: Any = None, tags: Any = None) -> KVBatchMeta:
        for name, column in () if fields is None else fields.items():
            values = column.unbind() if isinstance(column, torch.Tensor) else column.tolist()
            for key, value in zip(keys, values, strict=True):
                self.rows.setdefault(key, {})[name] = decode(encode(value))
        for key, tag in zip(keys, tags or [], strict=False):
            self.tags[key] = tag
        return KVBatchMeta(keys=list(keys), tags=[self.tags[key] for key in keys], partition_id=partition_id)

    async def put_soon(self, keys: list[str], partition_id: str, fields: Any = None, tags: Any = None) -> KVBatchMeta:
        return self.put(keys, partition_id, fields, tags)

    def get(self, keys: list[str], partition_id: str, select_fields: list[str] | None = None) -> TensorDict:
        first = self.rows[keys[0]]
        return TensorDict({name: AsyncSimpleStorageManager._pack_field_values([self.rows[key][name] for key in keys])
                           for name in select_fields or first if name in first}, batch_size=len(keys))


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    made = Store()
    for name, function in (("init", lambda *_: None), ("kv_batch_put", made.put), ("kv_batch_get", made.get),
                           ("async_kv_batch_put", made.put_soon)):
        monkeypatch.setattr(transfer_queue, name, function)
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Has the user's module, the config of its agent loop, and a model's folder."""
    made = tmp_path_factory.mktemp("verl")
    (made / "my_credit.py").write_text(MODULE)
    (made / "loops.yaml").write_text("- name: rooms\n  _target_: my_credit.Rooms\n")
    sys.path.append(str(made))
    tokenizer = byte_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.save_pretrained(made / "model")
    Qwen2Config(vocab_size=260, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
                intermediate_size=16, architectures=["Qwen2ForCausalLM"]).save_pretrained(made / "model")
    return made


def config_of(folder: Path, *changes: str) -> Any:
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=[
            "algorithm.adv_estimator=gagpo", f"actor_rollout_ref.model.path={folder / 'model'}",
            "actor_rollout_ref.rollout.name=vllm", "actor_rollout_ref.rollout.n=2",
            "actor_rollout_ref.rollout.agent.num_workers=1",
            "actor_rollout_ref.rollout.agent.default_agent_loop=rooms",
            f"actor_rollout_ref.rollout.agent.agent_loop_config_path={folder / 'loops.yaml'}",
            "+actor_rollout_ref.rollout.agent.agent_loop_manager_class=my_credit.StepManager", *changes])


def played(config: Any, store: Store) -> KVBatchMeta:
    """Returns the rows of both prompts, in any order and filled up to ten."""
    worker, prompts = StepWorker(config, SimpleNamespace()), [(name, k) for name in GROUPS for k in range(2)]

    async def play() -> None:
        for name, k in prompts:
            await worker._run_agent_loop(
                {}, {"step": 1, "sample_index": 0, "rollout_n": 0, "validate": False}, agent_name="rooms", trace=False,
                session_id=k, uid=name, index=0, global_steps=1,
                raw_prompt=[{"role": "user", "content": "start", "name": name}])

    asyncio.run(play())
    keys = [*store.rows]
    random.Random(0).shuffle(keys)
    rows = KVBatchMeta(keys=keys, tags=[store.tags[key] for key in keys], partition_id="train")
    return upsample_batch_to_divisible_size(rows, 10, 1)


def test_every_step_gets_its_own_reward_and_advantage(folder: Path, store: Store):
    """Rows that fill the batch get nothing. verl alone gives every row of a session the reward of its last one."""
    config = config_of(folder)
    name = config.actor_rollout_ref.rollout.agent.agent_loop_manager_class
    assert load_class_from_fqn(name, "AgentLoopManager") is StepManager  # its module has registered the estimator
    rows = played(config, store)
    trained = object.__new__(get_trainer_cls("sync"))
    trained.config = config
    trained._compute_advantage(rows, {})
    padding = next(key for key in store.rows if key.startswith("pad"))
    assert not store.rows[padding]["advantages"].any()
    found = {key: row for key, row in store.rows.items() if key != padding}
    rewards = {f"{name}_{k}_{t}": reward for name, episodes in GROUPS.items() for k, steps in enumerate(episodes)
               for t, (_, reward, _) in enumerate(steps)}
    assert {key: row["rm_scores"].sum().item() for key, row in found.items()} == rewards
    assert {key: row["uid"] for key, row in found.items()} == {key: key[0] for key in rewards}
    assert all(row["advantages"].equal(row["returns"]) for row in found.values())
    assert {key: row["advantages"].unique().item() for key, row in found.items()} == pytest.approx(expected(), abs=1e-5)


def test_the_class_that_ray_sends_runs_our_methods_and_those_of_verl(folder: Path):
    """Ray sends what a class inherits by value, and `super()` of such a copy fails."""
    made = StepManager(config_of(folder), SimpleNamespace()).agent_loop_workers_class
    sent = cloudpickle.loads(cloudpickle.dumps(made.__ray_metadata__.modified_class))
    assert issubclass(sent, StepWorker)
    assert sent.__init__.__wrapped__ is StepWorker.__init__


def test_another_estimator_is_refused(folder: Path):
    with pytest.raises(UserError, match="the estimator grpo of verl takes steps for episodes; choose one of gagpo"):
        StepManager(config_of(folder, "algorithm.adv_estimator=grpo"), SimpleNamespace())
