"""The root of the config tree; its `env` section is services/config/env.py. Light: imports pydantic only.

Config files lie in deploy/configs/, and services/config/file.py reads them.

Every key is listed by tests/architecture/test_config_keys.py, so that a new one is a reviewed decision.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from services.config.env import EnvSection, Section
from services.config.redis import RedisSection
from services.config.sections import (
    AutoscaleSection,
    CreditSection,
    CriticSection,
    DistillSection,
    ImitationSection,
    JudgeSection,
    LoraSection,
    LossSection,
    PromptingSection,
    RolloutSection,
    SftSection,
    StorageSection,
    SupervisionSection,
    Temperature,
)

RAYS_OWN = ("CPU", "GPU", "memory", "object_store_memory")
"""Resources that Ray counts itself. They are amounts that a process takes, so they mark no nodes."""


class PlacementSection(Section):
    """Which nodes of a Ray cluster the processes run on. Each key names a custom resource that marks these nodes, as
    in `ray start --resources '{"gpu_node": 1}'`. None: any node."""

    rollout: str | None = None
    """Custom resource of the nodes that rollout workers run on."""
    learner: str | None = None
    """Custom resource of the nodes that learner ranks run on."""
    environment: str | None = None
    """Custom resource of the nodes that environment servers run on, if the run starts them on a cluster."""
    weights: str | None = None
    """Custom resource of the node that holds the published weights. None: the node with the largest object store."""

    @field_validator("rollout", "learner", "environment", "weights")
    @classmethod
    def _custom(cls, resource: str | None) -> str | None:
        if resource == "" or resource in RAYS_OWN:
            raise ValueError(f"{resource!r} marks no nodes: it should be a resource of your own, as in `ray start "
                             """--resources '{"gpu_node": 1}'`; rollout.gpus and learner.gpus ask for GPUs""")
        return resource


class WeightsSection(Section):
    """How new weights reach the samplers."""

    transfer: Literal["auto", "host", "nccl", "ipc"] = "auto"
    """`host`: through host memory. `nccl`: between separate GPUs, each rank sends its shards. `ipc`: within a GPU that
    learner and sampler share. auto: `ipc` or `nccl` if the GPUs have room for it, else `host`."""
    seconds: float = Field(default=60.0, gt=0)
    """Deadline in seconds of one transfer by `nccl` or `ipc`. A version that is late goes through host memory."""


Beta = Annotated[float, Field(ge=0, lt=1)]


class ModelSection(Section):
    """The policy: a local Hugging Face folder, or a small Qwen2 made from scratch by the cold start."""

    path: Path | None = None
    """The model to train: a Hugging Face folder, a name of the hub (`Qwen/Qwen2.5-1.5B-Instruct`) whose model is in
    huggingface_hub's cache, a GGUF file, or `package:NAME` for the GGUF file in an installed Python package. None: the
    cold start makes a model from scratch."""
    revision: str | None = None
    """Commit, tag or branch of a model of the hub. None: its main branch, as it was when it was fetched."""
    download: bool = False
    """Whether a model of the hub is fetched over the network, if need be. false: it must be in the cache."""
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
    """Number format of the sampler and of exports. With bfloat16 the learner computes in bfloat16 too,
    and keeps its weights in float32."""
    chat_template: Path | None = None
    """A file with the Jinja template of conversations. None: the one that comes with the model's tokenizer."""
    chat_template_kwargs: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Variables of the chat template, such as `{enable_thinking: false}`."""
    system_prompt: str | None = None
    """System message before every conversation. None: only the template's own, if it has one."""


class LearnerSection(Section):
    """The learner: the ranks that train together."""

    ranks: int = Field(default=1, ge=1)
    """Processes that train together."""
    fewest_ranks: int | None = Field(default=None, ge=1)
    """Fewest ranks that train if the cluster has no room for all of them, for example after the loss of a node.
    None: the learner waits for room for all. The number of ranks changes no gradient."""
    cpus: float = Field(default=1, ge=0)
    """CPUs that Ray reserves for one rank."""
    gpus: float = Field(default=0, ge=0)
    """GPUs that Ray reserves for one rank."""
    threads: int = Field(default=2, ge=1)
    """Torch threads of one rank, and of a cold start in one process."""
    groups_per_step: int = Field(default=16, ge=1)
    """Groups that one learner step trains on."""
    group_size: int = Field(default=8, ge=1)
    """Episodes of one group, all of the same task. 1 is only for estimators that compare no group: `ppo`, with its
    critic, and `reinforce_pp`, whose baseline is over the batch."""
    staleness: int = Field(default=0, ge=0)
    """Learner steps by which the weights of an episode may be older than the learner's. 0: on-policy."""
    lr: float = Field(default=1e-6, gt=0)
    """Learning rate of AdamW."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """Betas of AdamW."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Weight decay of AdamW."""
    grad_clip: float = Field(default=1.0, gt=0)
    """Norm to which gradients are clipped."""
    minibatch_rows: int = Field(default=256, ge=1)
    """Rows (turns) per optimizer update."""
    token_budget: int = Field(default=16384, ge=64)
    """Tokens per packed forward pass."""
    checkpointing: bool | Literal["auto"] = "auto"
    """Whether each layer keeps only its input and computes the rest again in the backward pass: less memory, a third
    more computation. auto: only if training does not fit into the GPU's memory otherwise."""
    compile: bool = False
    """Whether torch compiles each layer, which fuses its small operations. The first learner step waits for the
    compiler. No GPU has measured it yet."""
    offload: bool = False
    """Whether AdamW's moments, 8 bytes per parameter, lie in pinned host memory instead of the GPU's."""
    dynamic_sampling: int = Field(default=0, ge=0)
    """DAPO: a group whose episodes all have the same reward is replaced by a new one, at most dynamic_sampling times
    groups_per_step groups per learner step. 0: never."""
    task_sampling: Literal["uniform", "contrast"] = "uniform"
    """How the tasks of training groups are chosen. uniform: all equally often. contrast: more of the task types whose
    recent groups were both won and lost, fewer of those that are always won or always lost."""
    step_attempts: int = Field(default=3, ge=1)
    """Number of failed attempts at a learner step, or at a cold start on the ranks without a new checkpoint, after
    which the run ends with the reason."""
    overdue_s: float = Field(default=1800.0, gt=0)
    """Seconds after the last finished group until the open groups that only this learner step can use are dropped."""
    wait_s: float = Field(default=7200.0, gt=0)
    """Seconds without a newly finished group, for one evaluation, or for a GPU that a rollout worker keeps, after which
    the learner gives up."""
    collective_s: float = Field(default=1800.0, gt=0)
    """Deadline in seconds for the ranks to connect, for each collective (loading and saving a model included), for the
    weights actor to take a version, and for the disk of the run's folder to take checkpoints, the archive's files and
    the data of a private Redis, and to be read."""
    credit: CreditSection = CreditSection()
    critic: CriticSection = CriticSection()
    judge: JudgeSection = JudgeSection()
    loss: LossSection = LossSection()
    imitation: ImitationSection = ImitationSection()
    distill: DistillSection = DistillSection()
    lora: LoraSection = LoraSection()

    @model_validator(mode="after")
    def _check_ranks(self) -> LearnerSection:
        if self.gpus > 1:
            raise ValueError(f"gpus={self.gpus:g} reserves more GPUs than a rank uses; "
                             f"set gpus=1 and ranks={self.ranks * round(self.gpus)}")
        if (self.fewest_ranks or 1) > self.ranks:
            raise ValueError(f"fewest_ranks={self.fewest_ranks} is more than ranks={self.ranks}; "
                             f"set fewest_ranks={self.ranks} or lower, or remove it")
        return self

    @property
    def critic_lr(self) -> float:
        """Returns the learning rate of the critic."""
        return 10 * self.lr if self.critic.lr is None else self.critic.lr


class AgentSection(Section):
    """Who plays the episodes."""

    name: str | None = None
    """`module:attribute` of an async function of (task, llm, env), docs/tasks/own-agent.md. None: the model is asked
    once in every turn, by env.prompt."""
    max_calls: int = Field(default=64, ge=1)
    """Most calls of the model in one episode of an agent. One more call ends the episode."""
    seconds: float = Field(default=3600.0, gt=0)
    """Longest time of one episode of an agent in seconds. After it the episode is tried again. Time in which the agent
    waits for environment servers that are all unavailable does not count, nor time in which the engine sleeps or loads
    weights. Environment servers hold a session that cannot be rebuilt for as long, if nobody uses it."""


class EvalSection(Section):
    """Evaluations. Each plays its tasks with one exact version of the weights."""

    every: int = Field(default=5, ge=0)
    """Learner steps between evaluations on the validation split; 0: none."""
    episodes: int = Field(default=128, ge=1)
    """Games of one evaluation: a fixed task set of the validation split."""
    temperature: Temperature = 0.4
    """Sampling temperature of evaluations."""
    panel: int = Field(default=0, ge=0)
    """Held-out games of the before/after table at the end of the run. 0: no table."""
    panel_temperatures: tuple[Temperature, ...] = (1.0, 0.4)
    """Sampling temperatures of the before/after table, each once."""
    panel_samples: int = Field(default=1, ge=1)
    """Episodes per held-out game and temperature."""
    on_panel: bool = False
    """Evaluations during training play the held-out games of the table instead of validation games, for planned
    experiments that average the last ones. The best checkpoint is then chosen by the games of the table."""
    compare_cold_start: bool = False
    """Also trains a second cold start for as many minutes as RL took, and adds it to the before/after table. Needs
    sft.enabled: without a cold start there is no more of it."""

    @field_validator("panel_temperatures")
    @classmethod
    def _distinct(cls, temperatures: tuple[float, ...]) -> tuple[float, ...]:
        if twice := [one for one in temperatures if temperatures.count(one) > 1]:
            raise ValueError(f"{twice[0]} is there twice, and its games would be played twice")
        return temperatures

    @property
    def games(self) -> int:
        """Number of games of one evaluation during training."""
        return self.panel if self.on_panel else self.episodes


class CheckpointSection(Section):
    """Learner state on disk."""

    every: int = Field(default=5, ge=1)
    """Learner steps between checkpoints. Of an evaluated step between two of them the weights alone are written."""
    keep: int = Field(default=2, ge=1)
    """Number of newest checkpoints to keep. The best weights by evaluation are kept too."""


class RaySection(Section):
    """The Ray cluster that the run uses."""

    address: str | None = None
    """Address of a Ray cluster. None: $RAY_ADDRESS, or a private local Ray if that is unset."""
    start_seconds: float = Field(default=300, gt=0)
    """Seconds in which a private Ray must start. Ray's own limit is 30 s, so a busy machine may need several starts."""


class MetricsSection(Section):
    """Where the run's metrics are sent."""

    host: str = "127.0.0.1"
    """Address on which `gagpo train` serves the run's metrics."""
    port: int = Field(default=0, ge=0, le=65535)
    """Port of the metrics. 0: a free port, which is written to the run's file for Prometheus."""
    sinks: tuple[Literal["tensorboard", "wandb"], ...] = ()
    """Trackers that also get the rows of metrics.jsonl and evaluations.jsonl. Each needs its own package."""


CPU = "cpu"
"""The value of `hardware` for a machine without GPUs."""


class Config(Section):
    """The configuration of a whole run."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)
    """The run's name, and the name of its folder: a word of letters, digits, dots, dashes and underscores."""
    runs_dir: Path = Path("runs")
    """Folder of the run folders. On a cluster: an absolute path on shared storage."""
    seed: int = Field(default=0, ge=0)
    """Seed of everything random in the run."""
    steps: int = Field(ge=1, le=1_000_000_000)
    """Learner steps of the run."""
    hardware: str | None = None
    """GPUs that the config is meant for: `8x80` is eight GPUs of 80 GB. --dry-run checks that the run fits on them.
    None: the GPUs of this machine. `cpu`: none, so that a config for GPUs runs on a machine without them: it sets the
    keys that place workers and ranks, and makes the KV cache and the passes as small as the machine's memory asks."""
    shared: bool = False
    """Whether other users may read the run's folder, as far as the umask allows. false: only its owner may."""
    env: EnvSection = EnvSection()
    model: ModelSection = ModelSection()
    sft: SftSection = SftSection()
    agent: AgentSection = AgentSection()
    rollout: RolloutSection = RolloutSection()
    learner: LearnerSection = LearnerSection()
    weights: WeightsSection = WeightsSection()
    eval: EvalSection = EvalSection()
    prompting: PromptingSection = PromptingSection()
    checkpoint: CheckpointSection = CheckpointSection()
    storage: StorageSection = StorageSection()
    redis: RedisSection = RedisSection()
    ray: RaySection = RaySection()
    placement: PlacementSection = PlacementSection()
    autoscale: AutoscaleSection = AutoscaleSection()
    supervision: SupervisionSection = SupervisionSection()
    metrics: MetricsSection = MetricsSection()

    @field_validator("hardware", mode="before")
    @classmethod
    def _gpus(cls, text: object) -> object:
        # YAML reads 80, and also 0x80, as a number.
        if text not in (None, CPU) and not (isinstance(text, str) and re.fullmatch("[1-9][0-9]*x[1-9][0-9]*", text)):
            raise ValueError(f"{text!r} names no GPUs; write their number and the GB of each, such as 8x80, or cpu")
        return text

    @model_validator(mode="after")
    def _check_exact(self) -> Config:
        if self.rollout.exact and self.model.dtype != "float32":
            raise ValueError(f"rollout.exact needs float32, and model.dtype is {self.model.dtype}; "
                             "set model.dtype=float32")
        if self.rollout.exact and self.learner.judge.correction:
            raise ValueError("rollout.exact repeats a run, and with learner.judge.correction prompts depend on which "
                             "episode ends first; set one of them to false")
        return self

    @model_validator(mode="after")
    def _check_list(self) -> Config:
        """Refuses what does not work with a list of environments."""
        if not self.env.more:
            if self.env.weight != 1:
                raise ValueError(f"env.weight={self.env.weight:g} is for a list of environments, and env is one; "
                                 "leave it out")
            return self
        for key, chosen, fix in (
            ("agent.name", self.agent.name, "leave it out"),
            ("sft.file", self.sft.file, "leave it out: the environments' own players demonstrate"),
            ("learner.judge.correction", self.learner.judge.correction, "set it to false"),
            ("learner.task_sampling", self.learner.task_sampling != "uniform" and self.learner.task_sampling,
             "set it to uniform: the weights of the list decide"),
        ):
            if chosen:
                raise ValueError(f"{key}={chosen} does not work with a list of environments; {fix}")
        return self

    @property
    def views(self) -> tuple[Config, ...]:
        """Returns the config once for each environment of the run, with that one alone as `env`."""
        return tuple(self.model_copy(update={"env": entry}) for entry in self.env.entries)

    @property
    def run_dir(self) -> Path:
        """Returns runs_dir / name."""
        return self.runs_dir / self.name

    @property
    def transfer(self) -> Literal["host", "nccl", "ipc"]:
        """Returns weights.transfer, or what `auto` means for this placement if the GPUs have room for it."""
        rollout, learner, way = self.rollout, self.learner, self.weights.transfer
        if way != "auto":
            return way
        if not (rollout.gpus and learner.gpus) or rollout.sleep:
            return "host"
        return "ipc" if self.shares_gpus else "nccl"

    @property
    def shares_gpus(self) -> bool:
        """Whether rollout workers and learner ranks share GPUs, one of each on every GPU."""
        return bool(self.rollout.gpus and self.learner.gpus) and self.rollout.gpus + self.learner.gpus <= 1

    @property
    def imitates(self) -> bool:
        """Whether demonstrations are shown to the model, in a cold start or during RL."""
        return self.sft.enabled or self.learner.imitation.weight > 0

    @property
    def imitates_on_ranks(self) -> bool:
        """Whether a cold start trains where the learner trains. A new small model does so in one process, on a CPU."""
        return self.model.path is not None and (self.learner.gpus > 0 or self.learner.ranks > 1)

    def evaluates(self, step: int) -> bool:
        """Returns whether `step` is evaluated: every eval.every learner steps, and after the last."""
        return self.eval.every > 0 and (step % self.eval.every == 0 or step == self.steps)
