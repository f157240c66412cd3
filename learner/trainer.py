"""The learner of one rank, without Ray: groups in, new weights out.

Rank 0 calls train, canary, pack, the methods of `sender`, state_dict_for_sampler, save, load, export, offload and
onload. Ranks above 0 call follow, which does their part. In a cold start all ranks call save_part and load_part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from learner.checkpoints.export import write_export
from learner.checkpoints.state_files import HostCopy, load_state, save_state
from learner.cold_start.sft_data import TokenRow
from learner.credit.registry import estimator
from learner.credit.types import Credit, mixed_share, statistics
from learner.critic import make_critic
from learner.model.attention import takes_varlen
from learner.model.family import needs_grid
from learner.model.host_memory import HostOffload
from learner.model.lora import add_adapters
from learner.model.memory import Layout, Shape, SharedDevice, adapter_parameters, layout_of, stays_gathered, training_of
from learner.model.policy import Policy, empty_policy, frozen_reference, initial_policy, shape_in
from learner.model.probe import Probe, policy_canary
from learner.model.sharding import check_compiles, shard
from learner.model.trained_model import TrainedModel
from learner.model.utilization import forward_flops, passes, utilization
from learner.rank_group import RankGroup
from learner.rows.batch import (
    Groups,
    assign_credit,
    demonstrations_at,
    rows_of,
    rows_to_learn,
    step_mask,
    with_advantages,
)
from learner.rows.judge import judgements
from learner.rows.packing import Floats, Pack, Rows
from learner.step import Distillation, Imitation, StepOutput, Stepper, Timer
from learner.weights.rank_sender import RankSender
from services.config.tree import Config
from services.seeds import seed_for
from services.weights.canary import Canary
from services.weights.pack import Packed, unpack


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """The result of one learner step."""

    metrics: dict[str, float]
    """Losses, grad_norm, ratios, differences, sequences, tokens_trained (prompts included), credit/*, and
    seconds/{credit,pack,forward_backward,optimizer}."""
    credits: list[Credit]
    """One credit per group, in training order. With a critic, `advantages` are its means over each step's tokens."""
    logprobs: list[Floats]
    """The learner's logprobs of the response tokens of each turn before the step, in the order of rows_of."""
    utilization: float | None
    """FLOPs of the passes divided by the peak of the GPUs. None if the peak is unknown, or if rows share tokens."""
    mismatch: str = ""
    """How much learner and sampler differ on tokens of the same weights; "" if rounding explains it."""


class Learner:
    """The policy, its frozen reference, the critic if the estimator needs one, and the teacher if there is one.

    `model_path`: the initial policy, which is also the reference and the start of the critic. `probed`: whether
    learner/model/probe.py compares each batch with its sampler. `shared`: the memory that a sampler takes on this
    rank's GPU. `demonstrations`: rows for learner.imitation. Raises UserError if a folder holds no model, or for an
    unknown estimator, and ValueError for imitation without demonstrations.
    """

    def __init__(self, config: Config, model_path: Path, rank_group: RankGroup, *, probed: bool = False,
                 shared: SharedDevice | None = None, demonstrations: Sequence[TokenRow] = ()) -> None:
        section, half = config.learner, config.model.dtype == "bfloat16"
        if section.imitation.weight and not demonstrations:
            raise ValueError("no demonstrations to imitate")
        torch.set_num_threads(section.threads)
        self._demonstrations = demonstrations
        self.config = config
        self._half = half
        self.model_path = model_path
        self.rank_group = rank_group
        self.step = 0
        """Number of learner steps taken."""
        self._saving: Future[dict[str, str]] | None = None
        self._copy = HostCopy()
        policy, weights = empty_policy(model_path)
        self.shape = shape_in(policy)
        teacher_shape = None if section.distill.teacher is None else shape_in(empty_policy(section.distill.teacher)[0])
        self.layout = self._choose_layout(policy, shared, teacher_shape)
        mesh = rank_group.mesh_of(self.layout.shards)
        if section.lora.rank:
            add_adapters(policy, section.lora, seed=config.seed)
        shard(policy, policy.body, weights, mesh, layout=self.layout, half=half,
              frozen=torch.bfloat16 if half and section.lora.rank else None)
        reference, teacher = self._reference(policy, mesh), self._teacher(teacher_shape, mesh)
        models = [policy, *(model for model in (reference, teacher) if isinstance(model, Policy))]
        grid = any(needs_grid(model.hf) for model in models) or not takes_varlen(rank_group.device, half=half)
        self.sender = RankSender(policy, rank_group, dtype=getattr(torch, config.model.dtype),
                                 shards=self.layout.shards, ipc=config.transfer == "ipc")
        critic = make_critic(section, model_path, rank_group, self.layout, half=half) if self._needs_critic else None
        probe = Probe(
            rank_group=rank_group, token_budget=section.token_budget, half=half, grid=grid) if probed else None
        self.stepper = Stepper(
            policy=TrainedModel(policy, section, lr=section.lr), reference=reference, critic=critic, teacher=teacher,
            rank_group=rank_group, section=section, reduces_once=self.layout.gathered and rank_group.world > 1,
            grid=grid, pair_cost=self.shape.pair_cost, probe=probe)
        trained = self.stepper.trained_models
        self._host_offload = HostOffload(
            rank_group.device, [*(each.model for each in trained), *models[1:]],
            [each.optimizer for each in trained])

    @property
    def _needs_critic(self) -> bool:
        return estimator(self.config.learner.credit.estimator).needs_critic

    def _choose_layout(self, policy: Policy, shared: SharedDevice | None, teacher: Shape | None) -> Layout:
        section, ranks = self.config.learner, self.rank_group
        if section.compile:
            check_compiles(policy.hf, ranks.device)
        training = training_of(
            self.config, critic=self._needs_critic, adapters=adapter_parameters(self.shape, section.lora),
            teacher=0 if teacher is None else teacher.parameters)
        layout = layout_of(  # there may be fewer ranks than in the config (learner.fewest_ranks)
            replace(training, ranks=ranks.world), self.shape, checkpointing=section.checkpointing,
            per_node=ranks.per_node, device_bytes=ranks.device_bytes(min(1.0, section.gpus), shared))
        return replace(layout, compiled=section.compile)

    def _reference(self, policy: Policy, mesh: DeviceMesh) -> Callable[[Pack], tuple[Tensor, Tensor]] | None:
        section = self.config.learner
        if not section.loss.kl:
            return None
        return initial_policy(policy) if section.lora.rank else frozen_reference(
            self.model_path, mesh, layout=self.layout, half=self._half)

    def _teacher(self, shape: Shape | None, mesh: DeviceMesh) -> Policy | None:
        folder = self.config.learner.distill.teacher
        return None if folder is None or shape is None else frozen_reference(
            folder, mesh, layout=Layout(gathered=stays_gathered(shape)), half=self._half)

    @property
    def policy(self) -> Policy:
        """The model that is trained."""
        return self.stepper.policy.model

    def train(self, groups: Groups, *, incarnation: int = 0) -> StepReport:
        """Takes one learner step on complete groups, in the given order. After a LearnerFault the step does not count,
        but some of its updates may have been taken.

        `incarnation`: of the versions that this process publishes. GPUs add in no fixed order, so a replay there only
        nearly reproduces earlier weights, and tokens of another incarnation count as stale.
        """
        timer = Timer(device=self.rank_group.device)
        with timer.phase("credit"):
            credits = assign_credit(groups, self.config.learner.credit)
            judged = judgements([episode for group in groups for episode in group], self.config.learner.judge.weight)
            rows = rows_of(groups, credits, policy_step=self.step, judged=judged,
                           incarnation=incarnation if self.rank_group.device.type == "cuda" else None)
        self.rank_group.send_command("train", rows)
        output = self._train(rows, timer)
        steps = step_mask(groups, judged)
        metrics, credits = output.metrics, with_advantages(credits, output.advantages[steps])
        metrics |= {f"credit/{name}": value for name, value in statistics(credits).items()}
        mixed = mixed_share(credits, [[[step.choices for step in one.steps] for one in group] for group in groups])
        metrics["credit/mixed_share"] = math.nan if mixed is None else mixed
        metrics |= {"sequences": len(rows.lengths), "tokens_trained": int(rows.lengths.sum())}
        metrics |= {f"seconds/{name}": value for name, value in timer.seconds.items()}
        logprobs = np.split(output.logprobs, np.cumsum(rows.response_lengths)[:-1])
        return StepReport(metrics=metrics, credits=credits, mismatch=output.mismatch,
                          logprobs=[row for row, own in zip(logprobs, steps, strict=True) if own],
                          utilization=self._utilization(rows, timer.seconds["forward_backward"]))

    def _utilization(self, rows: Rows, seconds: float) -> float | None:
        if self.stepper.grid:
            return None
        imitation, distillation = self._imitation(self.step), self._distillation(self.step)
        stepper, adapters = self.stepper, self.config.learner.lora.rank > 0
        flops = forward_flops(stepper.policy.model, rows) * passes(
            reference=stepper.reference is not None, critic=stepper.critic is not None, adapters=adapters,
            updates=math.ceil(len(rows) / self.config.learner.minibatch_rows))
        if imitation is not None:
            flops += forward_flops(stepper.policy.model, imitation.rows) * passes(
                reference=False, critic=False, adapters=adapters)
        if distillation is not None and distillation.weight and stepper.teacher is not None:
            flops += forward_flops(stepper.teacher, rows)
        return utilization(flops, seconds, device=self.rank_group.device, ranks=self.rank_group.world, half=self._half)

    def canary(self) -> Canary:
        """Returns the logprobs with which samplers check that they have these weights."""
        self.rank_group.send_command("canary")
        return self._canary()

    def _canary(self) -> Canary:
        return policy_canary(self.policy, self.rank_group.device, grid=self.stepper.grid, half=self._half)

    def pack(self) -> Packed:
        """Returns the weights for the sampler, in its dtype and in host memory, with tied entries."""
        return self.sender.pack()

    def state_dict_for_sampler(self) -> Iterator[tuple[str, Tensor]]:
        """Yields (Hugging Face name, complete CPU tensor in the sampler's dtype), with tied entries."""
        packed = self.pack()
        yield from unpack(packed.manifest, packed.buffer).items()

    def offload(self) -> None:
        """Moves the states of all ranks to host memory. Until `onload`, only save and write may be called.

        Returns once all ranks have done so, because samplers then fill all their GPUs.
        """
        self.rank_group.send_command("offload")
        self._offload()

    def _offload(self) -> None:
        self._host_offload.offload()
        self.rank_group.barrier()

    def onload(self) -> None:
        """Moves the states of all ranks back to their devices. Does nothing if they are there."""
        self.rank_group.send_command("onload")
        self._host_offload.onload()

    def save(self, folder: Path) -> Future[dict[str, str]]:
        """Begins to write trained models, optimizers, random state and step into an existing folder that all ranks see.

        Returns once everything is copied to host memory, so that training can continue. The future is done when every
        rank has written its part. It has file name -> digest. Any thread may wait for it.
        """
        self.rank_group.send_command("save", folder)
        return self.save_part(folder)

    def load(self, folder: Path) -> None:
        """Loads what `save` wrote on any number of ranks."""
        self.rank_group.send_command("load", folder)
        self.load_part(folder)

    def export(self, folder: Path) -> None:
        """Writes weights in the sampler's dtype, config and tokenizer into a folder that transformers and vLLM load."""
        self.write(folder, {name: tensor.contiguous() for name, tensor in self.state_dict_for_sampler()})

    def write(self, folder: Path, tensors: Mapping[str, Tensor]) -> dict[str, str]:
        """Writes the same folder as `export`, with tensors from state_dict_for_sampler. Any thread may call it.

        Returns what write_export does.
        """
        tied = self.policy.tied_names()
        return write_export(folder, {name: tensor for name, tensor in tensors.items() if name not in tied},
                            like=self.model_path, dtype=self.config.model.dtype)

    def follow(self) -> None:
        """Does this rank's part of each command until rank 0 stops. Called on ranks above 0."""
        self.rank_group.follow({
            "train": lambda rows: self._train(rows, Timer()),
            "canary": lambda _: self._canary(),
            **self.sender.commands,
            "save": self.save_part,
            "load": self.load_part,
            "offload": lambda _: self._offload(),
            "onload": lambda _: self._host_offload.onload(),
        })
        if self._saving is not None:
            self._saving.result(self.config.learner.collective_s)

    def save_part(self, folder: Path) -> Future[dict[str, str]]:
        """Saves as `save` does, but without a command from rank 0: in a cold start all ranks call it."""
        if self._saving is not None:
            self._saving.result(self.config.learner.collective_s)  # raises an error on all ranks
        self._saving = save_state(self._state(), folder, copy=self._copy, group=self.rank_group.writers,
                                  wait_s=self.config.learner.collective_s)
        return self._saving

    def load_part(self, folder: Path) -> None:
        """Loads as `load` does, but without a command from rank 0: in a cold start all ranks call it."""
        stepper, state = self.stepper, self._state()
        load_state(state, folder)
        stepper.policy.load(state)
        if stepper.critic is not None:
            stepper.critic.trained_model.load(state["critic"])
        torch.set_rng_state(state["random"])
        self.step, *skipped = state["step"].tolist()
        for each, count in zip(stepper.trained_models, skipped, strict=True):
            each.skipped_in_a_row = count

    def _train(self, rows: Rows, timer: Timer) -> StepOutput:
        step = self.step + 1
        output = self.stepper.take(
            rows, timer, power=self.config.learner.loss.power_at(step, self.config.steps),
            imitation=self._imitation(step), distillation=self._distillation(step))
        self.step = step
        return output

    def _imitation(self, step: int) -> Imitation | None:
        """Returns the demonstrations of a learner step, the same on all ranks and in a replay; None at weight 0."""
        section = self.config.learner.imitation
        if not (weight := section.weight_at(step)):
            return None
        rows = demonstrations_at(self._demonstrations, step, count=section.rows,
                                 seed=seed_for(self.config.seed, "imitation"))
        return Imitation(rows=rows_to_learn(rows, prompts=False), weight=weight)

    def _distillation(self, step: int) -> Distillation | None:
        section = self.config.learner.distill
        return None if section.teacher is None else Distillation(weight=section.weight_at(step), credit=section.credit)

    def _state(self) -> dict[str, Any]:
        stepper = self.stepper
        skipped = [each.skipped_in_a_row for each in stepper.trained_models]
        state = {**stepper.policy.state(), "random": torch.get_rng_state(), "step": torch.tensor([self.step, *skipped])}
        if stepper.critic is not None:
            state["critic"] = stepper.critic.trained_model.state()
        return state
