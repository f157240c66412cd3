"""Settings that are allowed but hardly meant: keys without effect, learning rates of tiny models for large ones,
workers that would play nothing, a cold start on answers that the prompt cannot read, and a run's code that changed."""

from __future__ import annotations

import math

from deploy.launch.planning.disk import short_of_disk
from deploy.launch.planning.idle_keys import idle_keys
from deploy.launch.planning.model_memory import model_shape, pack_tokens
from deploy.runs.folder import RunFolder
from deploy.runs.own_code import code_of
from envservice.base import PromptTemplate
from envservice.registry import make_template
from learner.cold_start.trajectories import read_trajectories
from learner.credit.registry import estimator
from services.amounts import number_of
from services.chat import THINK
from services.config.tree import Config
from services.process.own_code import as_user_error, file_of

LARGE_MODEL = 50_000_000
"""Parameters from which on a model counts as a published one, and not as one of the tiny configs."""
HIGHEST_RATE = 1e-4
"""Highest learning rate at which all weights of such a model are usually trained."""
FULL_ENOUGH = 0.6
"""Share of the token budget from which on a pack of one of several ranks counts as full."""


def warnings(config: Config) -> list[str]:
    """Returns one line for each warning about a config. If the config names a model, reads its headers."""
    imitates = (*_slow_imitation(config), *unread_answers(config)) if config.sft.enabled else ()
    return [*idle_keys(config), *_large_rates(config), *imitates, *idle_workers(config), *_empty_packs(config),
            *short_of_disk(config), *_changed_code(config)]


def _changed_code(config: Config) -> list[str]:
    """Returns a line for each file of an own estimator or state key that has changed since the config's run started."""
    now = code_of(config)
    known = RunFolder(config.run_dir).known() if now else None
    before = known.code if known else {}
    return [f"{file_of(module).name} has changed since this run started, and learner steps before were made by the old "
            "code: change it back, or start another run (name=...)"
            for module, digest in now.items() if before.get(module, digest) != digest]


def _large(config: Config) -> int:
    """Returns the parameters of the model that the config names, 0 for one of a tiny config."""
    parameters = 0 if config.model.path is None else model_shape(config.model).parameters
    return parameters if parameters >= LARGE_MODEL else 0


def _slow_imitation(config: Config) -> list[str]:
    """Returns a line if a cold start would train a large model on the CPU, where one update takes minutes."""
    if not (parameters := _large(config)) or config.learner.gpus:
        return []
    return [f"sft.enabled trains the {parameters:,} parameters of {config.model.path} on the CPU, where one update of "
            f"{number_of(config.sft.batch_rows, 'row')} takes minutes: give the learner GPUs (learner.gpus), which "
            "train a cold start too"]


def _large_rates(config: Config) -> list[str]:
    """Returns a line for each learning rate of a tiny model that would train a large one. Adapters take high rates, but
    a critic has none: all its weights are trained, at ten times their rate unless it has its own."""
    learner, sft = config.learner, config.sft
    if not (parameters := _large(config)):
        return []
    rates = {} if learner.lora.rank else {"learner.lr": (learner.lr, 1e-6)}
    critic = estimator(learner.credit.estimator).needs_critic
    rates |= {"learner.critic.lr": (learner.critic_lr, 1e-5)} if critic else {}
    imitates = sft.enabled and not (learner.lora.rank and config.imitates_on_ranks)
    rates |= {"sft.lr": (sft.lr, 1e-5)} if imitates else {}
    return [f"{key}={rate:g} is for tiny models, and {config.model.path} has {parameters:,} parameters: "
            f"try {key}={usual:g}" for key, (rate, usual) in rates.items() if rate > HIGHEST_RATE]


def idle_workers(config: Config) -> list[str]:
    """Returns a line if the first workers that ask would take all episodes of training, so that others play none."""
    learner, workers, slots = config.learner, config.rollout.workers, config.rollout.slots
    episodes = learner.groups_per_step * learner.group_size * (1 + learner.staleness)
    busy, share = math.ceil(episodes / slots), math.ceil(episodes / workers)
    if busy >= workers or slots <= share:
        return []
    return [f"rollout.slots={slots} lets {busy} of {workers} workers take all {episodes:,} episodes that are under way "
            f"at once, and the others play none: try rollout.slots={share}"]


def _empty_packs(config: Config) -> list[str]:
    """Returns a line if several ranks share an update that is too small to fill a pack of each. Ranks gather all
    weights for each pack, so half-empty packs double the time of that."""
    learner = config.learner
    if learner.ranks == 1:
        return []
    tokens, rows = pack_tokens(config, learner.minibatch_rows), learner.minibatch_rows
    share = tokens / learner.token_budget
    if share >= FULL_ENOUGH:
        return []
    enough = 8 * math.ceil(rows * FULL_ENOUGH / share / 8)
    return [f"learner.minibatch_rows={rows} over {number_of(learner.ranks, 'rank')} fills about {100 * share:.0f}% of "
            f"a pack: try fewer ranks, or learner.minibatch_rows={enough}, with which a step has fewer updates"]


def unread_answers(config: Config) -> list[str]:
    """Returns a line if sft.file shows answers that env.prompt takes for malformed. The answers of an agent and of the
    judge have forms of their own."""
    if config.sft.file is None or config.agent.name or config.learner.judge.questions:
        return []
    template = make_template(config.env)
    with as_user_error(f"the prompt {config.env.prompt!r} of {config.env.name} failed on an answer",
                       f"fix {config.env.name}"):
        said = [example.response for example in read_trajectories(config.sft.file, chat=template.chat).examples]
        unread = [answer for answer in said if not _reads(template, answer)]
    if not unread:
        return []
    return [f"env.prompt={config.env.prompt} finds {len(unread):,} of {number_of(len(said), 'answer')} in "
            f"{config.sft.file} malformed, such as {unread[0]!r:.60}: a policy that imitates them takes invalid turns"]


def _reads(template: PromptTemplate, answer: str) -> bool:
    """Returns whether an answer is well formed, perhaps behind the tag with which a chat template opens it."""
    return any(template.parse(opened + answer).valid for opened in ("", THINK))
