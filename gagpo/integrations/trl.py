"""Step-level credit inside TRL: its GRPOTrainer with an estimator of ours.

    from gagpo.integrations.trl import GagpoTrainer
    trainer = GagpoTrainer(model, ..., environment_factory=Game, credit={"estimator": "gagpo", "gamma": 0.95})

A step is a segment of tokens that the model sampled, by TRL's tool mask. Its state is the environment's `credit_state`,
if the environment has one, and otherwise what the model read last: the prompt, or the results of its tools. The last
step of an episode has the weighted sum of the reward functions. Every token of a step gets the step's advantage.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object  # pyright: ignore[reportMissingImports]
from pydantic import ValidationError
from trl import GRPOTrainer  # pyright: ignore[reportMissingImports]

from gagpo.integrations.rollout_log import RolloutLog
from gagpo.integrations.segments import Sequenced, Span, episode_of, gaps, observed, spans_of
from gagpo.integrations.steps import refuse_unsaid
from learner.credit.registry import estimator, options_of, unread
from learner.credit.types import statistics
from learner.rows.batch import assign_credit
from services.config.refusals import refusal
from services.config.sections import CreditSection
from services.errors import UserError
from services.records import Episode, Ticket, Version
from services.rewards import LARGEST_REWARD, within_reward_limit

TRIED = "1.16"
"""The version of TRL whose private methods this module overrides."""
METRICS = ("group_size_mean", "singleton_share", "active_share", "advantage_std")
"""Values of learner.credit.types.statistics that TRL logs as `credit/NAME`."""
STATES = "credit_states"
"""Key of a `rollout_func`: the text before each step, [B][T]."""


class GagpoTrainer(GRPOTrainer):  # pyright: ignore[reportGeneralTypeIssues]  # TRL is installed for its tests alone
    """TRL's GRPOTrainer, whose advantages are an estimator's of ours.

    `credit`: keys of `learner.credit`, such as {"estimator": "gigpo", "gamma": 0.9}. All other arguments are TRL's.
    `scale_rewards` is not read: the option `normalize` takes its place. Episodes and their credit are in
    OUTPUT_DIR/gagpo, for `gagpo explore` and `gagpo credit`. Raises UserError for an option that is unknown or that
    nothing in TRL could fill, for arguments of TRL that cannot work with it, and for another version of TRL.
    """

    def __init__(self, *args: Any, credit: Mapping[str, Any] | None = None, **named: Any) -> None:
        if not version("trl").startswith(f"{TRIED}."):
            raise UserError(f"trl {version('trl')} is installed, and this was tried with {TRIED}",
                            "pip install 'gagpo[trl]'")
        if named.get("rollout_func") is not None and (named.get("tools") or named.get("environment_factory")):
            raise UserError("rollout_func together with tools or environment_factory: TRL then leaves its env_mask out",
                            "call the tools in rollout_func, and give env_mask")
        self.credit = read_options(credit or {})
        super().__init__(*args, **named)
        if self.multi_objective_aggregation != "sum_then_normalize":
            raise UserError(f"multi_objective_aggregation={self.multi_objective_aggregation}: steps have one reward, "
                            "the weighted sum", "leave sum_then_normalize")
        self._snapshots: list[list[Any]] = []
        self._sequences: list[Sequenced] = []
        self._batches: tuple[int, int] = (0, 0)
        self._log_folder: RolloutLog | None = None
        if self.accelerator.is_main_process:
            self._log_folder = RolloutLog(Path(self.args.output_dir) / "gagpo", model=self.model.config._name_or_path,
                                          credit=self.credit)

    def _generate_single_turn(self, *args: Any, **named: Any) -> Any:
        """Notes the environments' states, which the model is about to act in. An episode takes part in the first
        calls of a batch, one for each of its steps."""
        if self.environments is not None:
            self._snapshots.append([getattr(one, "credit_state", None) for one in self.environments])
        return super()._generate_single_turn(*args, **named)

    def _generate(self, prompts: list[Any]) -> Any:
        """Notes the episodes of this process."""
        self._snapshots = []
        generated = super()._generate(prompts)
        prompt_ids, completion_ids, masks, completions, logprobs, extra, *_ = generated
        given = extra.get(STATES)
        self._sequences = []
        for i, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
            mask = None if masks is None else masks[i]
            own = [states[i] for states in self._snapshots]
            sequence = Sequenced(
                prompt=prompt_ids[i], completion=completion_ids[i], mask=mask,
                observations=observed(prompt, completion), actions=[],
                states=given[i] if given is not None else own if own and own[0] is not None else None,
                logprobs=None if logprobs is None else logprobs[i])
            self._sequences.append(self._with_texts(sequence))
        return generated

    def _with_texts(self, sequence: Sequenced) -> Sequenced:
        """Returns the episode with its actions as text, and with the text between them if a `rollout_func` played it:
        TRL then knows no messages."""
        def texts(spans: Sequence[Span]) -> list[str]:
            return [text.strip() for text in self._tokenizer.batch_decode(
                [sequence.completion[start:end] for start, end in spans], skip_special_tokens=True)]

        spans = spans_of(sequence)
        observations = sequence.observations
        if self.rollout_func is not None:
            observations = [observations[0], *texts(gaps(spans))]
        return replace(sequence, actions=texts(spans), observations=observations)

    def _calculate_rewards(self, *args: Any) -> Any:
        """Notes the rewards of all processes, [B] with NaN for an episode that no function scores."""
        each = super()._calculate_rewards(*args)
        weighed = (each * self.reward_weights.to(each.device)).nansum(dim=1)
        self._rewards = weighed.masked_fill(torch.isnan(each).all(dim=1), torch.nan).tolist()
        return each

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Replaces TRL's advantages [B] by those of each token, [B, T]."""
        output = super()._generate_and_score_completions(inputs)
        mode = "train" if self.model.training else "eval"
        sequences: list[Sequenced] = gather_object(self._sequences)
        size = self.num_generations if mode == "train" else self.num_generations_eval
        step, part = self._next_batch() if mode == "train" else (self.state.global_step, "eval")
        rows = [self._episode(sequence, i, size, step, part) for i, sequence in enumerate(sequences)]
        groups = [[row for row in rows[i:i + size] if row is not None] for i in range(0, len(rows), size)]
        alone = 0 if getattr(estimator(self.credit.estimator), "needs_group", True) is False else 1
        groups = [group for group in groups if len(group) > alone]  # alone, an episode has nothing to be compared with
        credits = assign_credit(groups, self.credit) if groups else []
        advantages = {(episode.ticket.group, episode.ticket.k): credit.advantages[i]
                      for group, credit in zip(groups, credits, strict=True) for i, episode in enumerate(group)}
        of_rows = [advantages.get((row.ticket.group, row.ticket.k), zeros) if row else zeros
                   for sequence, row in zip(sequences, rows, strict=True)
                   for zeros in [[0.0] * len(spans_of(sequence))]]
        first = self.accelerator.process_index * len(inputs)
        local = slice(first, first + len(inputs))
        output["advantages"] = token_advantages(
            [spans_of(sequence) for sequence in sequences[local]], of_rows[local], output["completion_ids"])
        self._replace_logged(of_rows)
        if credits:
            found = statistics(credits)
            for name in METRICS:
                self._metrics[mode][f"credit/{name}"].append(found[name])
        if mode == "train" and self._log_folder is not None and groups:
            self._log_folder.write(step, part, groups, credits)
        return output

    def _episode(self, sequence: Sequenced, row: int, size: int, step: int, part: str) -> Episode | None:
        """Returns the episode of a row of all processes; None if no function gave it a reward."""
        reward = self._rewards[row]
        if math.isnan(reward):
            return None
        number, k = divmod(row, size)
        group = f"train/{step:08d}/{part and f'{part}-'}{number:04d}"
        if not within_reward_limit(reward):
            raise UserError(f"the reward of episode {k} of {group} is {reward:g}",
                            f"correct the function that gives it: a reward is a number up to {LARGEST_REWARD:g}")
        spans = spans_of(sequence)
        prompt = hashlib.blake2b(np.array(sequence.prompt, np.int32).tobytes(), digest_size=4).hexdigest()
        ticket = Ticket(group=group, k=k, size=size, task=f"prompt/{prompt}", seed=row, kind="train",
                        temperature=self.temperature, max_steps=len(spans))
        return episode_of(sequence, ticket, Version(incarnation=1, step=self.state.global_step), reward)

    def _next_batch(self) -> tuple[int, str]:
        """Returns the learner step that this batch of episodes is for, and its name in that step: "" for the first."""
        step, number = self.state.global_step + 1, self._batches[1] + 1
        self._batches = (step, number if step == self._batches[0] else 1)
        return step, "" if self._batches[1] == 1 else str(self._batches[1])

    def _replace_logged(self, of_rows: Sequence[Sequence[float]]) -> None:
        """Puts the mean of an episode's advantages where TRL has logged its own for its table of completions."""
        logged = self._logs["advantages"]
        for _ in range(min(len(of_rows), len(logged))):
            logged.pop()
        logged.extend(fmean(row) if row else 0.0 for row in of_rows)  # 0 for an episode without a step


def token_advantages(spans: Sequence[Sequence[Span]], of_steps: Sequence[Sequence[float]],
                     completion_ids: torch.Tensor) -> torch.Tensor:
    """Returns the advantage of each token, [B, T] as `completion_ids`: that of its step, 0 outside steps.

    `spans`, `of_steps`: the steps of each episode and their advantages, [B][steps].
    """
    tokens = torch.zeros(completion_ids.shape, device=completion_ids.device)
    for row, (places, advantages) in enumerate(zip(spans, of_steps, strict=True)):
        for (start, end), advantage in zip(places, advantages, strict=True):
            tokens[row, start:end] = advantage
    return tokens


def read_options(given: Mapping[str, Any]) -> CreditSection:
    """Returns the options of an estimator from keys of `learner.credit`.

    Warns of one that does nothing. Raises UserError for an unknown one, and for one that needs what TRL does not have.
    """
    try:
        options = options_of(CreditSection(**given), "option ")
    except ValidationError as error:
        raise refusal(error, "the options", "option ") from None
    if estimator(options.estimator).needs_critic:
        raise UserError(f"option estimator {options.estimator}: it needs a critic, which GRPOTrainer does not have",
                        "choose another one")
    refuse_unsaid(options, "TRL's episodes", "credit_state")
    if {"penalty", "penalty_mode"} & given.keys():
        raise UserError("option penalty: TRL's episodes do not say which outputs were malformed",
                        "leave it out, and let a reward function subtract it")
    for name, why in unread(options, given).items():
        warnings.warn(f"{name} does nothing {why}", stacklevel=3)
    return options
