"""The one config tree; its `env` is services/config/env.py. Light: pydantic only.

Config files lie in deploy/configs/, and services/config/file.py reads them.

Every key is listed by tests/architecture/test_config_keys.py, so that a new one is a reviewed decision.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from services.config.env import EnvSection, Section
from services.config.objectives import CriticSection, LossSection
from services.config.redis import RedisSection
from services.config.rollout import RolloutSection, SupervisionSection, Temperature

EXPLORE_TOKEN_VARIABLE = "GAGPO_EXPLORE_TOKEN"  # noqa: S105 - the variable's name
"""Environment variable with the token of the explorer, where others than this machine may look."""


Beta = Annotated[float, Field(ge=0, lt=1)]


class ModelSection(Section):
    """The policy: a local Hugging Face folder, or a small Qwen2 made from scratch by the cold start."""

    path: Path | None = None
    """A local Hugging Face folder with the model to train. None: the cold start makes a model from scratch."""
    hidden: int = Field(default=64, ge=8)
    """Width of a model made from scratch."""
    layers: int = Field(default=3, ge=1)
    """Layers of a model made from scratch."""
    heads: int = Field(default=2, ge=1)
    """Attention heads of a model made from scratch."""
    intermediate: int = Field(default=160, ge=8)
    """Width of the feed-forward layers of a model made from scratch."""
    tie_embeddings: bool = True
    """Whether a model made from scratch shares its input and output embeddings."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format of the sampler and of exports. With bfloat16 the learner computes in it too,
    over float32 weights."""


class SftSection(Section):
    """The cold start: demonstrations by a scripted player, then next-token training."""

    enabled: bool = True
    """Whether a cold start comes before RL. Without it, model.path must name a model."""
    minutes: float = Field(default=4.0, gt=0, le=100_000)
    """Optimisation time; making demonstrations and the tokenizer comes on top."""
    demos_per_game: int = Field(default=3, ge=1)
    """Demonstrations of each training game."""
    noise: float = Field(default=0.15, ge=0, lt=1)
    """Share of demonstrated steps that are random or corrupted: executed, not trained on."""
    jump: float = Field(default=0.2, ge=0, le=1)
    """ALFWorld: probability that the scripted player searches a random place next."""
    batch_rows: int = Field(default=16, ge=1)
    """Rows of one update."""
    lr: float = Field(default=3e-3, gt=0)
    """Learning rate of AdamW."""
    prompt_loss: float = Field(default=0.5, ge=0)
    """Weight of the next-token loss on the prompt."""


class CreditSection(Section):
    """Which step earned it: reference in docs/algorithms.md."""

    estimator: str = "gagpo"
    """learner/credit/registry.py lists them."""
    gamma: float = Field(default=0.95, ge=0, le=1)
    """Discount γ per turn."""
    lam: float = Field(default=0.8, ge=0, le=1)
    """λ of GAE."""
    penalty: float = Field(default=0.1, ge=0)
    """Subtracted for an invalid step, as penalty_mode says."""
    penalty_mode: Literal["local", "reward", "none"] = "local"
    """Where the penalty is subtracted: from the step's own advantage (local), from its reward, or nowhere."""
    normalize: Literal["group", "batch", "none"] = "group"
    """GAGPO and its variants: advantages are normalised over each group, over the batch of all groups of a learner
    step, or not at all."""
    ddof: Literal[0, 1] = 1
    """1: sample standard deviation. 0: population standard deviation."""
    bootstrap: bool = False
    """GAGPO: an episode cut at its last turn ends in the value of the state it was cut in, where the group knows it."""
    broadcast: float = Field(default=0.0, ge=0)
    """GAGPO: weight of an episode-level term, GRPO's advantage, added to every step."""
    prior: float = Field(default=2.0, ge=0)
    """GAGPO leave-one-out: steps of other episodes that the value one step before weighs as much as."""
    mode: Literal["mean_std_norm", "mean_norm"] = "mean_std_norm"
    """GiGPO and GRPO: whether deviations are divided by their spread."""
    statistics: Literal["rows", "trajectories"] = "rows"
    """GRPO, RLOO, group baselines, GiGPO's episode term: means over the steps of a group, or over its episodes."""
    omega: float = Field(default=1.0, ge=0)
    """GiGPO: weight of the step-level term."""
    state_key: Literal["observation", "prompt", "normalized", "similarity", "embedding"] = "observation"
    """Which steps share a value; learner/credit/state_keys.py."""
    similarity: float = Field(default=0.95, gt=0, lt=1)
    """Threshold of the keys `similarity` and `embedding`."""

    @model_validator(mode="after")
    def _cut(self) -> CreditSection:
        if self.bootstrap and self.state_key == "prompt":
            raise ValueError("bootstrap needs a key of the text that an episode was cut off in, and state_key=prompt "
                             "has none: no prompt was made of it")
        return self


class LearnerSection(Section):
    """The gang that trains."""

    ranks: int = Field(default=1, ge=1)
    """Processes that train together."""
    cpus: float = Field(default=1, ge=0)
    """CPUs that Ray reserves for one rank."""
    gpus: float = Field(default=0, ge=0)
    """GPUs that Ray reserves for one rank."""
    threads: int = Field(default=2, ge=1)
    """Torch threads of one rank, and of the cold start."""
    groups_per_step: int = Field(default=16, ge=1)
    """Groups of one learner step."""
    group_size: int = Field(default=8, ge=1)
    """Episodes of one task; 1 only where a critic gives each something to be compared with."""
    staleness: int = Field(default=0, ge=0)
    """Learner steps by which an episode's weights may be behind. 0: on-policy."""
    lr: float = Field(default=1e-6, gt=0)
    """Learning rate of AdamW."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """Betas of AdamW."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Weight decay of AdamW."""
    grad_clip: float = Field(default=1.0, gt=0)
    """Norm that gradients are clipped to."""
    minibatch_rows: int = Field(default=256, ge=1)
    """Steps (rows) per optimizer update."""
    token_budget: int = Field(default=16384, ge=64)
    """Tokens per packed forward pass."""
    dynamic_sampling: int = Field(default=0, ge=0)
    """DAPO: groups whose episodes all earn the same are replaced, at most so many times groups_per_step a step;
    0: never."""
    step_attempts: int = Field(default=3, ge=1)
    """Times that a learner step is tried before the run ends and says why it failed."""
    overdue_s: float = Field(default=1800.0, gt=0)
    """Seconds after the last finished group until groups that only this step can use are dropped as hanging."""
    wait_s: float = Field(default=7200.0, gt=0)
    """Seconds that the learner waits without any newly finished group, or for one evaluation, before it gives up."""
    collective_s: float = Field(default=1800.0, gt=0)
    """Seconds for the ranks to meet, and for each collective: loading a model and writing a checkpoint count too."""
    credit: CreditSection = CreditSection()
    critic: CriticSection = CriticSection()
    loss: LossSection = LossSection()


class EvalSection(Section):
    """Evaluation tickets at one exact version."""

    every: int = Field(default=5, ge=0)
    """Learner steps between evaluations on the validation split; 0: none."""
    episodes: int = Field(default=128, ge=1)
    """Games of one evaluation: a fixed task set of the validation split."""
    temperature: Temperature = 0.4
    """Sampling temperature of evaluations."""
    panel: int = Field(default=0, ge=0)
    """Held-out games of the before/after table at the end; 0: no table."""
    panel_temperatures: tuple[Temperature, ...] = (1.0, 0.4)
    """Sampling temperatures of the before/after table."""
    panel_samples: int = Field(default=1, ge=1)
    """Episodes per held-out game and temperature."""
    compare_cold_start: bool = False
    """Also spend the minutes that RL took on more cold start, and add it to the table."""


class CheckpointSection(Section):
    """Learner state on disk."""

    every: int = Field(default=5, ge=1)
    """Learner steps between checkpoints. Every evaluated step has a checkpoint too."""
    keep: int = Field(default=2, ge=1)
    """Newest checkpoints kept, beside the best by evaluation."""


class RaySection(Section):
    """The cluster. None: $RAY_ADDRESS, and without that a private local one."""

    address: str | None = None
    """Address of a Ray cluster. None: $RAY_ADDRESS, and if that is unset a private local Ray."""


class MetricsSection(Section):
    """Where the run's figures go."""

    host: str = "127.0.0.1"
    """Address on which `gagpo train` serves the run's metrics."""
    port: int = Field(default=0, ge=0, le=65535)
    """0: a free one, which the run's file for Prometheus names."""
    sinks: tuple[Literal["tensorboard", "wandb"], ...] = ()
    """Where the rows of metrics.jsonl and evaluations.jsonl go besides; each needs its package."""
    traces: str | None = None
    """OTLP/HTTP receiver of a trace of each ticket, `http://127.0.0.1:4318`; None: nothing is traced."""

    @field_validator("traces")
    @classmethod
    def _receiver(cls, url: str | None) -> str | None:
        if url is not None and not (urlsplit(url).scheme in ("http", "https") and urlsplit(url).hostname):
            raise ValueError(f"{url!r} is no address of an OTLP/HTTP receiver, such as http://127.0.0.1:4318")
        return url


class Config(Section):
    """A whole run."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)
    """The run's name, and the name of its folder: a word of letters, digits, dots, dashes and underscores."""
    runs_dir: Path = Path("runs")
    """Folder of the run folders. On a cluster: an absolute path on shared storage."""
    seed: int = 0
    """Seed of everything that is drawn at random."""
    steps: int = Field(ge=1, le=1_000_000_000)
    """Learner steps."""
    shared: bool = False
    """Whether others may look into the run's folder, as far as the umask allows. Else it is its owner's alone."""
    env: EnvSection = EnvSection()
    model: ModelSection = ModelSection()
    sft: SftSection = SftSection()
    rollout: RolloutSection = RolloutSection()
    learner: LearnerSection = LearnerSection()
    eval: EvalSection = EvalSection()
    checkpoint: CheckpointSection = CheckpointSection()
    redis: RedisSection = RedisSection()
    ray: RaySection = RaySection()
    supervision: SupervisionSection = SupervisionSection()
    metrics: MetricsSection = MetricsSection()

    @property
    def run_dir(self) -> Path:
        """runs_dir / name."""
        return self.runs_dir / self.name

    def evaluates(self, step: int) -> bool:
        """Whether the version of `step` is evaluated: every eval.every learner steps, and after the last."""
        return self.eval.every > 0 and (step % self.eval.every == 0 or step == self.steps)
