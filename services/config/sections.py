"""The sections of the config tree but for `env` and `redis`, which have code of their own, and those in tree.py.

`learner.credit` is open, because services do not know the estimators: learner/credit/registry.py checks the keys that
it does not name here, when a command reads a config.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, field_validator, model_validator

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
    """The judge task of GCD, which is trained alongside the agent's task (docs/papers.md). Evaluations never judge."""

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
    """Weight of the estimator's advantage next to the teacher's. 0: the teacher is the only signal."""

    def weight_at(self, step: int) -> float:
        """Returns the weight at learner step `step`, counted from 1; 0 without a teacher."""
        return 0.0 if self.teacher is None else decayed(self.weight, self.decay_steps, step)


COLDEST = 0.01
"""Lowest temperature. vLLM would sample at this one for any lower one, and only its own log would say so."""
Temperature = Annotated[float, Field(ge=COLDEST, le=100)]


class RolloutSection(Section):
    """The rollout workers, which sample episodes."""

    workers: int = Field(default=1, ge=1)
    """Number of rollout workers. Each has its own engine."""
    slots: int = Field(default=64, ge=1)
    """Episodes that one worker plays at once."""
    cpus: float = Field(default=1, ge=0)
    """CPUs that Ray reserves for one worker."""
    gpus: float = Field(default=0, ge=0)
    """GPUs that Ray reserves for each of the GPUs that a worker uses: 1, or a share of one. 0: it samples on CPUs."""
    tensor_parallel: int = Field(default=1, ge=1)
    """GPUs that one worker's engine is spread over. They must be in one node."""
    gpu_memory: float | None = Field(default=None, gt=0)
    """Memory that a worker may take on each of its GPUs: a value up to 1 is a share of the GPU, a larger one is GB.
    The KV cache gets what the weights leave. None: the KV cache has rollout.kv_cache_gb."""
    sleep: bool = False
    """Whether sampler and learner take turns on a GPU that they share. Weights and optimizer of the one that waits lie
    in host memory, and the KV cache is computed again. Then each may use nearly the whole GPU in its turn."""
    temperature: Temperature = 1.0
    """Sampling temperature of training episodes."""
    max_prompt_tokens: int = Field(default=2048, ge=16)
    """Longest prompt, in tokens. A longer one ends the episode."""
    max_response_tokens: int = Field(default=512, ge=1)
    """Longest answer of one turn, in tokens."""
    kv_cache_gb: float = Field(default=1.0, gt=0)
    """Size of one worker's KV cache in GB, on each of its GPUs."""
    threads: int = Field(default=2, ge=1)
    """OpenMP threads of one worker."""
    start_seconds: float = Field(default=1800, gt=0)
    """Seconds that the engine may take to load the model."""
    sample_seconds: float = Field(default=300, gt=0)
    """Seconds without a step of the engine while a request waits, after which the worker ends."""
    retry_seconds: float = Field(default=15, ge=0, le=300)
    """Pause in seconds before the second attempt of an episode that failed, give or take a quarter. The one before the
    third is four times as long, so that the attempts outlast a fault of about a minute."""
    update_seconds: float = Field(default=900, gt=0)
    """Seconds that fetching a version of the weights may take, and as many again for loading it."""
    exact: bool = False
    """One request at a time, float32, no prefix cache: a run, interrupted or not, ends with the same bits. For CPUs,
    at learner.staleness=0."""

    @property
    def row_tokens(self) -> int:
        """Tokens of the longest row: a prompt and its response."""
        return self.max_prompt_tokens + self.max_response_tokens

    @property
    def reserved_gpus(self) -> float:
        """GPUs that Ray reserves for one worker."""
        return self.gpus * self.tensor_parallel

    @model_validator(mode="after")
    def _gpus(self) -> RolloutSection:
        if self.gpus > 1:
            raise ValueError(f"gpus={self.gpus:g} would reserve more GPUs than the engine uses; "
                             f"set gpus=1 and tensor_parallel={math.ceil(self.gpus)}")
        if self.tensor_parallel > 1 and self.gpus != 1:
            raise ValueError(f"tensor_parallel={self.tensor_parallel} needs whole GPUs, and gpus={self.gpus:g}; "
                             "set gpus=1, or tensor_parallel=1")
        if self.gpu_memory is not None and not self.gpus:
            raise ValueError(f"gpu_memory={self.gpu_memory:g} does nothing on CPUs; set gpus, or use kv_cache_gb")
        if self.exact and self.gpus:
            raise ValueError("exact promises the same bits, and the sums of a GPU come in any order; "
                             "set gpus=0, or exact=false")
        return self


class SupervisionSection(Section):
    """How long the controller waits before it restarts a process or ends the run."""

    reach_seconds: float = Field(default=10, ge=0)
    """Seconds in which an external Redis and the servers of env.urls must answer a run for the first time. After that
    their address counts as wrong. Give it more where they are started together with the run."""
    start_seconds: float = Field(default=1800, gt=0)
    """Seconds from the start of a process to its first heartbeat, without the wait for a place on the cluster."""
    place_seconds: float = Field(default=3600, gt=0)
    """Seconds without a running process of a role and without a place for one on the Ray cluster after which the run
    ends. Until then it waits for nodes, for example from an autoscaler."""
    drain_seconds: float = Field(default=900, gt=0)
    """Seconds in which a process that is no longer wanted may finish its episodes. Then it is stopped, and others play
    its tickets again."""
    leave_seconds: float = Field(default=20, ge=0)
    """Seconds after SIGTERM in which the learner may finish its step and write a checkpoint. Whoever sends the signal
    should kill no sooner than some ten seconds later. 0: it leaves at once. After Ctrl-C it has
    learner.collective_s for that; Ctrl-C again ends at once."""
    silence_seconds: float = Field(default=180, gt=0)
    """Seconds without a heartbeat after which a worker or learner is restarted."""
    longest_pause_seconds: float = Field(default=300, ge=0)
    """Longest pause in seconds between restarts of a process that dies repeatedly. Pauses start at 1 s and grow."""
    stall_seconds: float = Field(default=3600, gt=0)
    """Seconds without any progress (a count of the store, a turn, a weight update, a learner step) after which the run
    ends. The wait for a process that is starting does not count."""


LEAST_MIXED = 0.1
"""If a smaller share of the turns is in states that unlike turns share, no estimator needs a warning."""


class CreditSection(Section):
    """How the return of an episode is credited to its turns. docs/algorithms.md has the formulas. The estimator and
    the state key add keys of their own, which have tables below."""

    # Attribute docstrings: `gagpo credit --help` prints them. Defaults are validated because those of a user's own
    # estimator may be wrong.
    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True, validate_default=True)

    estimator: str = "gagpo"
    """Name of the credit estimator, or `module:Name` of your own."""
    gamma: float = Field(default=0.95, ge=0, le=1)
    """Discount γ per turn."""
    penalty: float = Field(default=0.1, ge=0)
    """Amount subtracted for an invalid turn; penalty_mode says from what."""
    penalty_mode: Literal["local", "reward", "none"] = "local"
    """Where the penalty is subtracted: from the step's own advantage (local), from its reward, or nowhere."""
    state_key: str = "observation"
    """Which turns count as the same state and share a value, or `module:Name` of your own key."""
    stay: bool = False
    """Whether a turn after an action that changed nothing is in the state of the turn before it, whatever its text. The
    environment says what changed nothing: ALFWorld answers "Nothing happens.", WebShop shows the same page."""


Bounds = tuple[int, int]


class AutoscaleSection(Section):
    """Bounds between which the run chooses its numbers of processes. Without bounds a number changes only by
    `gagpo scale`."""

    rollout: Bounds | None = None
    """Fewest and most rollout workers, for example [1, 8]. None: no autoscaling."""
    env: Bounds | None = None
    """Fewest and most environment servers that the run starts. None: no autoscaling. A run of a live environment is
    refused with it: sessions of a server that leaves cannot be rebuilt."""
    ticket_wait_seconds: float = Field(default=30.0, gt=0)
    """More rollout workers are started if tickets wait for longer than this on average."""
    session_fill: float = Field(default=0.8, gt=0, le=1)
    """More environment servers are started if more than this share of their sessions is in use."""
    request_seconds: float = Field(default=1.0, gt=0)
    """More environment servers are started if requests take longer than this on average."""
    pause_seconds: float = Field(default=120.0, ge=1)
    """Seconds between two decisions about a role. A decision rests on all that was measured since the last one."""

    @field_validator("rollout", "env")
    @classmethod
    def _ordered(cls, bounds: Bounds | None) -> Bounds | None:
        if bounds is not None and not 1 <= bounds[0] <= bounds[1]:
            raise ValueError("it should be two numbers, the smaller one first and at least 1")
        return bounds


class LoraSection(Section):
    """Trains adapters of low rank next to frozen weights (LoRA). Checkpoints hold the adapters; samplers and exports
    get merged weights. The model without its adapters is the reference, so the KL term takes no memory."""

    rank: int = Field(default=0, ge=0)
    """Rank of the adapters; 0: all weights are trained."""
    alpha: float = Field(default=32.0, gt=0)
    """The adapter's output is multiplied by alpha / rank."""
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    """Names of the linear layers that get an adapter, wherever they are in the model."""


class PromptingSection(Section):
    """`gagpo eval --policy`: models that are asked and not trained."""

    concurrency: int = Field(default=8, ge=1)
    """Episodes that are played at once."""
    trials: int = Field(default=3, ge=1)
    """Reflexion: most trials of one task. The last one counts; a trial that wins ends the task."""
    memory: int = Field(default=3, ge=1)
    """Reflexion: number of newest reflections that the next trial reads."""
    key_file: Path | None = None
    """File whose first line is the key of the endpoint. None: $GAGPO_ENDPOINT_KEY, if it is set."""
    call_seconds: float = Field(default=300.0, gt=0)
    """Longest time of one request to the endpoint; then it is sent again."""
    wait_seconds: float = Field(default=900.0, gt=0)
    """Longest time that one call may wait for an endpoint that fails or limits the rate (status 429, Retry-After). Then
    the evaluation stops, and the same command continues it later. One that has never answered: 10 s. Steps wait as long
    for a service that the environment asks, such as a retriever."""
    step_seconds: float = Field(default=300.0, gt=0)
    """Longest time of one step of the environment."""


class SftSection(Section):
    """The cold start: demonstrations by a scripted player, then next-token training on them."""

    enabled: bool = True
    """Whether a cold start runs before RL. If not, model.path must name a model."""
    file: Path | None = None
    """JSON lines of trajectories to imitate (docs/tasks/trajectories.md). None: a scripted player demonstrates."""
    minutes: float = Field(default=4.0, gt=0, le=100_000)
    """Minutes of optimisation. Making the demonstrations and the tokenizer takes extra time."""
    epochs: int | None = Field(default=None, ge=1)
    """Passes over the rows, in place of `minutes`. None: `minutes` counts."""
    demos_per_game: int = Field(default=3, ge=1)
    """Number of demonstrations of each training game."""
    noise: float = Field(default=0.15, ge=0, lt=1)
    """Share of demonstrated turns that are noise: random, or a mistake that agents make. They are executed but not
    trained on."""
    judgements: float = Field(default=0.0, ge=0, le=1)
    """Share of demonstrated turns about which a judgement is shown too (learner.judge): the player's action is good,
    noise in its place is bad, by a coin. Not with sft.file, whose steps may have judgements of their own."""
    jump: float = Field(default=0.2, ge=0, le=1)
    """ALFWorld: probability that the scripted player searches a random place next."""
    batch_rows: int = Field(default=16, ge=1)
    """Rows of one update."""
    lr: float = Field(default=3e-3, gt=0)
    """Learning rate of AdamW."""
    prompt_loss: float = Field(default=0.5, ge=0)
    """Weight of the next-token loss on the prompt."""


SCHEMES = ("s3", "gs", "file")


def folder_url(url: str) -> str:
    """Returns the URL of a folder without a slash at its end. Raises ValueError if it is none, or holds a secret."""
    parts = urlsplit(url)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError("it should have neither credentials nor options: they come from the environment")
    if parts.scheme not in SCHEMES or not (parts.netloc or parts.scheme == "file"):
        raise ValueError(f"{url!r} is no folder of an object store, such as s3://bucket/runs")
    if parts.scheme == "file" and (parts.netloc or not parts.path.startswith("/")):
        raise ValueError(f"{url!r} names no absolute folder; write `file://` and then the folder with its first slash")
    return url.rstrip("/")


class StorageSection(Section):
    """An object store that keeps a copy of the run's checkpoints, archive and results."""

    url: str | None = None
    """Folder of an object store, such as s3://bucket/runs or gs://bucket/runs. The run is copied to a folder of its
    name below it, and `--resume` fetches it from there if the run's own folder is gone. None: no copy. Credentials come
    from the environment, as the store's own tools read them."""
    outage_seconds: float = Field(default=900.0, ge=1)
    """Seconds that the run waits for an object store that fails. After them it ends; --resume continues it."""

    @field_validator("url")
    @classmethod
    def _address(cls, url: str | None) -> str | None:
        return None if url is None else folder_url(url)
