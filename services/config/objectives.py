"""The objectives of the learner: the sections `loss`, `critic`, `judge`, `imitation` and `distill` of `learner`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from services.config.env import Section


class LossSection(Section):
    """The policy objective."""

    ratio: Literal["sequence", "token"] = "sequence"
    """One importance ratio per action (sequence) or per token. `ppo` needs token if its critic values tokens."""
    power: float = Field(default=0.0, ge=-10, le=10)
    """p of the power mean of an action's token ratios that is its ratio, under ratio sequence (HölderPO). 0: the
    geometric mean."""
    power_last: float | None = Field(default=None, ge=-10, le=10)
    """p at the run's last learner step, towards which it changes by the same amount each step. None: it stays."""
    aggregation: Literal["actions", "tokens"] = "actions"
    """How the policy term is averaged: over actions (each action is the mean of its tokens) or over all tokens."""
    clip_low: float = Field(default=0.2, gt=0)
    """The ratio is clipped below at 1 - clip_low."""
    clip_high: float = Field(default=0.2, gt=0)
    """The ratio is clipped above at 1 + clip_high."""
    kl: float = Field(default=0.01, ge=0)
    """Weight of the k3 estimate of the KL divergence to the initial policy. With 0 no reference model is loaded."""
    entropy: float = Field(default=0.001, ge=0)
    """Weight of the entropy bonus."""
    correction: Literal["decoupled", "coupled", "none"] = "decoupled"
    """How tokens that an older policy sampled enter the policy term. decoupled: the ratio is clipped against the policy
    before the step, and importance weights correct for who sampled (AReaL). coupled: the clipped ratio is taken against
    the policy that sampled (PPO). none: as if the policy before the step had sampled them."""
    corrected_rows: Literal["stale", "all"] = "stale"
    """Rows that are corrected: those with a token of an older policy, or all, also at staleness 0. All is for samplers
    whose logprobs differ from the learner's, as in bfloat16."""
    is_cap: float = Field(default=2.0, gt=0)
    """Upper bound of the importance weight of a token."""

    def power_at(self, step: int, steps: int) -> float:
        """Returns p of learner step `step` of `steps`, counted from 1."""
        if self.power_last is None or steps < 2:
            return self.power
        share = min(max((step - 1) / (steps - 1), 0.0), 1.0)
        return self.power + share * (self.power_last - self.power)


class CriticSection(Section):
    """The value model of estimators that learn one (PPO): the policy's first weights with a scalar head."""

    lr: float | None = Field(default=None, gt=0)
    """Learning rate of the critic's AdamW. None: ten times `learner.lr`, as in verl-agent's scripts. A critic that is
    not faster than the policy leaves Turn-PPO without gain (lab/experiments/peers/README.md)."""
    value_clip: float = Field(default=0.5, gt=0)
    """Largest change of a value in one step that its loss counts. Changes beyond it are clipped."""


class JudgeSection(Section):
    """The judge task of GCD, which is trained beside the agent's task (docs/papers.md). Evaluations never judge."""

    questions: int = Field(default=0, ge=0)
    """Bad actions of one training episode that the policy is asked to judge, at most. A won episode also asks about its
    last action, which counts as good. 0: no judge task."""
    answers: int = Field(default=4, ge=2)
    """Answers that are sampled to each question and compared with one another."""
    weight: float = Field(default=1.0, gt=0)
    """Factor on the advantages of judgements. 1: an answer weighs as much as a turn (`aggregation: tokens`: as its
    tokens)."""
    correction: bool = False
    """Whether the policy sums up the mistakes that it judged bad, and training prompts carry this summary (prompt
    correction of GCD). Prompts of evaluations do not."""


def decayed(weight: float, decay_steps: int | None, step: int) -> float:
    """Returns a weight at learner step `step`, counted from 1: it falls linearly and is 0 after `decay_steps` steps.

    None: it stays. A weight of 1 over 4 steps is 1, 3/4, 1/2, 1/4, 0, ...
    """
    return weight if decay_steps is None else weight * max(0.0, 1 - (step - 1) / decay_steps)


class ImitationSection(Section):
    """Imitation during RL: the next-token loss on the answers that a cold start imitates (sft.file, else a scripted
    player), in the same updates as the policy loss."""

    weight: float = Field(default=0.0, ge=0)
    """Weight of the loss at the first learner step. 0: no imitation."""
    rows: int = Field(default=64, ge=1)
    """Demonstrated turns of one learner step, divided evenly among its updates."""
    decay_steps: int | None = Field(default=None, ge=1)
    """Learner steps over which the weight falls linearly to 0. None: it stays."""

    def weight_at(self, step: int) -> float:
        """Returns the weight at learner step `step`, counted from 1."""
        return decayed(self.weight, self.decay_steps, step)


class DistillSection(Section):
    """On-policy distillation: a teacher scores the tokens that the policy sampled."""

    teacher: Path | None = None
    """Hugging Face folder of the teacher, whose tokenizer must be that of model.path. None: no distillation."""
    weight: float = Field(default=1.0, gt=0)
    """Weight of log π_teacher - log π of a token in its advantage, at the first learner step."""
    decay_steps: int | None = Field(default=None, ge=1)
    """Learner steps over which the weight falls linearly to 0. None: it stays."""
    credit: float = Field(default=1.0, ge=0)
    """Weight of the estimator's advantage beside it. 0: the teacher is the only signal."""

    def weight_at(self, step: int) -> float:
        """Returns the weight at learner step `step`, counted from 1; 0 without a teacher."""
        return 0.0 if self.teacher is None else decayed(self.weight, self.decay_steps, step)
