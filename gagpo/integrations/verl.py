"""Step-level credit inside verl: our estimators in its registry, and rows that are steps.

    from gagpo.integrations.verl import StepManager, register
    register(gamma=0.95)

In a module of your own, `my_credit.py`, these lines reach the process that trains, which imports that module by

    +actor_rollout_ref.rollout.agent.agent_loop_manager_class=my_credit.StepManager algorithm.adv_estimator=gagpo

An agent loop returns a list with one AgentLoopOutput for each step. Its `reward_score` is what the step alone earned.
"""

from __future__ import annotations

from typing import Any

import ray
import torch
import transfer_queue  # pyright: ignore[reportMissingImports]
from verl.trainer.ppo.core_algos import register_adv_est  # pyright: ignore[reportMissingImports]
from verl.trainer.ppo.v1.agent_loop_tq import (  # pyright: ignore[reportMissingImports]
    AgentLoopManagerTQ,
    AgentLoopWorkerTQ,
)
from verl.utils.tensordict_utils import list_of_dict_to_tensordict  # pyright: ignore[reportMissingImports]

from gagpo.integrations.steps import STEP_LEVEL, TokenStep, advantage_function, check_trainer, step_uids
from services.errors import UserError

TRIED = "0.9"
"""The version of verl whose private methods this module overrides."""


def register(*names: str, **options: Any) -> None:
    """Registers estimators by name, all that compare steps by their states if none is named.

    `options`: keys of `learner.credit`, such as `gamma=0.95`. Call it in the process that runs the trainer. The
    trainer's own γ and λ are not read. Raises UserError for an unknown name or option, and what verl raises for a name
    that it has already.
    """
    for name in names or STEP_LEVEL:
        register_adv_est(name)(advantage_function(name, options))


class StepWorker(AgentLoopWorkerTQ.__ray_actor_class__):
    """An agent loop worker whose rows are steps: each has a StepUid and its own reward.

    `extra_fields` of an output may have `observation`, `action` and `invalid` of its step. An output without a
    `reward_score` earned nothing, except for the last one, which then gets its reward from verl's reward function.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        # Ray sends inherited methods by value, and `super()` of such a copy of verl's fails. This one it sends by name.
        super().__init__(*args, **named)

    async def _agent_loop_postprocess(self, output: Any, validate: bool, **prompt: Any) -> None:
        """Has verl store the outputs of a session, and then replaces their ids and rewards.

        No reader sees the rows in between: a prompt is finished once all its sessions have been stored.
        """
        outputs = output if isinstance(output, list) else [output]
        if outputs:
            outputs[-1].extra_fields.setdefault("reward_extra_info", {})  # verl copies it from the last to the others
        if validate or not outputs:
            return await super()._agent_loop_postprocess(outputs, validate, **prompt)
        group, session = prompt["uid"], prompt["session_id"]
        if outputs[-1].reward_score is None and self.reward_loop_worker_handles is None:
            raise UserError(f"session {session} of prompt {group} has no reward",
                            "set reward_score of the agent loop's outputs, or use a reward function")
        uids = step_uids(group, str(session), [
            TokenStep(prompt=each.prompt_ids, response=each.response_ids, mask=each.response_mask,
                      fields=each.extra_fields) for each in outputs], self.tokenizer)
        rewards = [each.reward_score or 0.0 for each in outputs]  # verl is about to overwrite all but the last one
        await super()._agent_loop_postprocess(outputs, validate, **prompt)
        rewards[-1] = outputs[-1].reward_score
        await transfer_queue.async_kv_batch_put(
            keys=[f"{group}_{session}_{turn}" for turn in range(len(outputs))], partition_id="train",
            fields=list_of_dict_to_tensordict([
                {"uid": uid, "rm_scores": on_last_token(reward, len(each.response_ids))}
                for uid, reward, each in zip(uids, rewards, outputs, strict=True)]))
        return None


class StepManager(AgentLoopManagerTQ):
    """verl's manager of agent loops with StepWorker as its workers.

    Raises UserError for another version of verl, and for an estimator that is not ours.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        check_trainer("verl", TRIED, self.config.algorithm.adv_estimator)
        self.agent_loop_workers_class = ray.remote(StepWorker)


def on_last_token(reward: float, length: int) -> torch.Tensor:
    """Returns the rewards of a row's tokens, [length]: all of it at the last one."""
    scores = torch.zeros(length)
    scores[-1] = reward
    return scores
