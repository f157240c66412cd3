"""Warns of settings that are allowed but probably mistakes, such as learning rates of tiny models for large ones, keys
that do nothing, or answers that the prompt cannot read; of a disk without room; and of a run's code that changed."""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from deploy.launch.checks.chat_template import has_template
from deploy.launch.planning.model_memory import checkpoint_bytes, kept_bytes, model_shape, pack_tokens
from deploy.runs.folder import RunFolder, code_of
from envservice.base import PromptTemplate
from envservice.registry import find_spec, make_template
from learner.cold_start.trajectories import read_trajectories
from learner.credit.registry import estimator, unread
from services.amounts import in_gib, number_of
from services.chat import THINK
from services.config.env import Section
from services.config.file import as_yaml
from services.config.tree import Config
from services.process.own_code import as_user_error, file_of
from services.weights.headers import read_tokenizer

TOKENIZER = "tokenizer.json"
LARGE_MODEL = 50_000_000
"""A model with at least so many parameters counts as a published one, and not as one of the tiny configs."""
HIGHEST_RATE = 1e-4
"""Highest learning rate at which all weights of such a model are usually trained."""
FULL_ENOUGH = 0.6
"""A pack of one of several ranks counts as full if it fills at least this share of the token budget."""
BILLION = 1_000_000_000
REASONING_TOKENS = 100
"""Tokens of a short thought of an instruct model. An estimate: the paper gives thought and action 512."""
EXAMPLES = ("<think></think><action>go to countertop 1</action>", "<planning>go</planning><action>go to it</action>")
"""Shortest answers of the forms that our prompts ask for."""
TAG = re.compile("<.*?>")
"""A tag of an answer's form."""
LARGE_CHECKPOINT = 1_000_000_000
"""Checkpoints of at least so many bytes should not be written every few steps."""
OFTEN = 5
"""Fewer learner steps than this between large checkpoints are a reason for a warning."""


SMALL_MODEL = {"learner.lr": 5e-6, "learner.critic.lr": 5e-5, "sft.lr": 3e-5}
"""Rates at which all weights of published models below a billion parameters are trained. GRPO of SmolLM2-135M on GSM8K
(the card of SmolLM2-135M-GRPO-Trained-For-Reasoning) and of Qwen2.5-0.5B (gardan4/AgenticRAG, TRL_TRAINING.sh) took
5e-6, another of Qwen2.5-0.5B 1e-5 (xuanduy04/trl_tool, grpo_tool.sh). Imitation of SmolLM-135M took 3e-5 (the card of
SmolLM-135M-Instruct-grammarly). A critic takes ten times the policy's rate, as below."""
LARGER_MODEL = {"learner.lr": 1e-6, "learner.critic.lr": 1e-5, "sft.lr": 1e-5}
"""From a billion parameters on. The paper and verl-agent train Qwen2.5 of 1.5 and 7 billion at 1e-6, and verl's default
for critics is 1e-5."""


def warnings(config: Config) -> list[str]:
    """Returns one line for each warning about a config. If the config names a model, reads its headers."""
    imitates = (*_slow_imitation(config), *unread_answers(config)) if config.sft.enabled else ()
    asked = [line for view in config.views for line in (*_raw_prompt(view), *_short_answers(view))]
    return [*idle_keys(config), *_no_model(config), *_large_rates(config), *asked, *imitates,
            *idle_workers(config), *_empty_packs(config),
            *_frequent_checkpoints(config), *short_of_disk(config), *_changed_code(config)]


def _changed_code(config: Config) -> list[str]:
    """Returns a line for each file of an own estimator or state key that has changed since the config's run started."""
    now = code_of(config)
    run = RunFolder(config.run_dir).identity() if now else None
    before = run.code if run else {}
    return [f"{file_of(module).name} has changed since this run started, and learner steps before were made by the old "
            "code: change it back, or start another run (name=...)"
            for module, digest in now.items() if before.get(module, digest) != digest]


def _no_model(config: Config) -> list[str]:
    """Returns a line if a GPU would train a model from scratch: model.path of a GPU's preset was forgotten."""
    if config.model.path is not None or not config.learner.gpus:
        return []
    return [f"model.path is empty, so a model of {model_shape(config.model).parameters:,} parameters is made from "
            "scratch and trained on GPUs: set model.path to a pretrained model"]


def _large(config: Config) -> int:
    """Returns the number of parameters of model.path; 0 if there is none, or fewer than LARGE_MODEL."""
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
    """Returns a line for each learning rate that suits a tiny model, if the model is large. Adapters take high rates. A
    critic has no adapters: all its weights are trained, by default at ten times the policy's rate."""
    learner, sft = config.learner, config.sft
    if not (parameters := _large(config)):
        return []
    rates = {} if learner.lora.rank else {"learner.lr": learner.lr}
    if estimator(learner.credit.estimator).needs_critic:
        rates["learner.critic.lr"] = learner.critic_lr
    if sft.enabled and not (learner.lora.rank and config.imitates_on_ranks):
        rates["sft.lr"] = sft.lr
    usual = SMALL_MODEL if parameters < BILLION else LARGER_MODEL
    return [f"{key}={rate:g} is for tiny models, and {config.model.path} has {parameters:,} parameters: "
            f"try {key}={usual[key]:g}" for key, rate in rates.items() if rate > HIGHEST_RATE]


def _raw_prompt(config: Config) -> list[str]:
    """Returns a line if a model that was trained to chat would read raw text, and nothing teaches it the form."""
    env, path = config.env, config.model.path
    if path is None or config.sft.enabled or config.agent.name or make_template(env).chat:
        return []
    if config.model.chat_template is None and not has_template(path):
        return []
    spec = find_spec(env.name)
    chats = [name for name in spec.prompts if make_template(env.model_copy(update={"prompt": name})).chat]
    other = f"set env.prompt to one that chats ({', '.join(chats)}), or " if chats else ""
    shown = "make a cold start first (sft.enabled=true)" if spec.teacher else \
        "imitate trajectories first (sft.enabled=true sft.file=FILE)"
    return [f"env.prompt={env.prompt} is raw text without instructions, and {path} is a model with a chat template "
            f"that has never seen it: {other}{shown}"]


def _short_answers(config: Config) -> list[str]:
    """Returns a line if a published model's answers would be cut before they have the form that the prompt asks for.

    In a conversation the answer also needs room for a thought, unless a cold start demonstrates short ones. A template
    that accepts answers without tags asks for no form, and gets no warning.
    """
    env, path, limit = config.env, config.model.path, config.rollout.max_response_tokens
    if path is None or not _large(config) or config.agent.name or not (path / TOKENIZER).exists():
        return []
    template = make_template(env)
    with as_user_error(f"env.prompt={env.prompt} failed to parse an answer", "read any text in `parse`"):
        example = next((text for text in EXAMPLES if template.parse(text).valid
                        and not template.parse(TAG.sub("", text)).valid), None)
    if example is None:
        return []
    form = len(read_tokenizer(path / TOKENIZER).encode(example, add_special_tokens=False).ids)
    needed = form + (REASONING_TOKENS if template.chat and not config.sft.enabled else 0)
    if limit >= needed:
        return []
    return [f"rollout.max_response_tokens={limit} leaves {max(0, limit - form)} tokens for a thought, since the form "
            f"of env.prompt={env.prompt} takes {form}: answers would be cut before their action; try "
            f"rollout.max_response_tokens={512 if template.chat else 2 * form}"]


def short_of_disk(config: Config) -> list[str]:
    """Returns a line if the disk of runs_dir has no room for the checkpoints that are still to come. If neither
    runs_dir nor its parent exists here, it belongs to another machine and gets no warning."""
    place = next((folder for folder in (config.runs_dir, config.runs_dir.absolute().parent) if folder.is_dir()), None)
    if place is None:
        return []
    kept = _bytes_below(config.run_dir / "checkpoints")
    needed, disk = kept_bytes(config), shutil.disk_usage(place)
    if needed - kept <= disk.free or not disk.total:  # one of the kernel, such as /proc, is no disk
        return []
    return [f"checkpoints may take {in_gib(needed)}, and {config.runs_dir} has {in_gib(disk.free)} free: choose "
            f"another runs_dir, or lower checkpoint.keep={config.checkpoint.keep}"]


def _bytes_below(folder: Path) -> int:
    """Returns the bytes of all files below a folder, of which the run may remove some meanwhile."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                total += Path(place, name).stat().st_size
    return total


def _frequent_checkpoints(config: Config) -> list[str]:
    """Returns a line if large checkpoints are written every few steps."""
    size, every = checkpoint_bytes(config), config.checkpoint.every
    count = config.steps // every
    if size < LARGE_CHECKPOINT or every >= OFTEN or count < 2:
        return []
    return [f"each checkpoint writes {size / 1e9:.1f} GB, and checkpoint.every={every} writes "
            f"{size * count / 1e9:,.0f} GB in {number_of(config.steps, 'step')}: try checkpoint.every=10"]


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
    weights for each pack, so half-empty packs double the time of gathering."""
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
        answers = [example.response for example in read_trajectories(config.sft.file, chat=template.chat).examples]
        unread = [answer for answer in answers if not _reads(template, answer)]
    if not unread:
        return []
    return [f"env.prompt={config.env.prompt} finds {len(unread):,} of {number_of(len(answers), 'answer')} in "
            f"{config.sft.file} malformed, such as {unread[0]!r:.60}: a policy that imitates them takes invalid turns"]


def _reads(template: PromptTemplate, answer: str) -> bool:
    """Returns whether an answer is well formed, perhaps behind the tag with which a chat template opens it."""
    return any(template.parse(opened + answer).valid for opened in ("", THINK))


def idle_keys(config: Config) -> list[str]:
    """Returns one line for each key that differs from its default and is ignored."""
    reasons: dict[str, tuple[Any, str]] = {}
    for key, value, why in (*_of_the_estimator(config), *_of_parts_that_are_off(config)):
        reasons.setdefault(key, (value, why))
    return [f"{key}={as_yaml(value)} does nothing {why}" for key, (value, why) in reasons.items()]


def _of_the_estimator(config: Config) -> Iterator[tuple[str, Any, str]]:
    learner, name = config.learner, config.learner.credit.estimator
    given = learner.credit.model_dump(mode="json")
    for key, why in unread(learner.credit, given).items():
        yield f"learner.credit.{key}", given[key], why
    silent = [entry.name for entry in config.env.entries if not find_spec(entry.name).says_unchanged]
    if learner.credit.stay and silent:
        yield "learner.credit.stay", True, f"in {' and '.join(silent)}, which never says that an action changed nothing"
    if not estimator(name).needs_critic:
        for key, value in _changed(learner.critic).items():
            yield f"learner.critic.{key}", value, f"under the estimator {name}"


def _of_parts_that_are_off(config: Config) -> Iterator[tuple[str, Any, str]]:
    learner, loss, epochs = config.learner, config.learner.loss, config.sft.epochs
    on_policy = learner.staleness == 0 and loss.corrected_rows == "stale"
    for name, section, keys, off, why in (
        ("learner", learner, ("task_sampling",), learner.group_size == 1, "at learner.group_size=1"),
        ("learner.loss", loss, ("correction", "is_cap"), on_policy, "at learner.staleness=0"),
        ("learner.loss", loss, ("is_cap",), loss.correction != "decoupled",
         f"under learner.loss.correction={loss.correction}"),
        ("learner.loss", loss, ("power", "power_last"), loss.ratio == "token", "under learner.loss.ratio=token"),
        ("learner.loss", loss, ("corrected_rows",), loss.correction == "none", "under learner.loss.correction=none"),
        ("learner.judge", learner.judge, ("answers", "weight", "correction"), not learner.judge.questions,
         "at learner.judge.questions=0"),
        ("learner.imitation", learner.imitation, ("rows", "decay_steps"), not learner.imitation.weight,
         "at learner.imitation.weight=0"),
        ("learner.distill", learner.distill, ("weight", "decay_steps", "credit"), learner.distill.teacher is None,
         "without learner.distill.teacher"),
        ("learner.lora", learner.lora, ("alpha", "targets"), not learner.lora.rank, "at learner.lora.rank=0"),
        ("eval", config.eval, ("episodes",), config.eval.on_panel, "at eval.on_panel=true"),
        ("eval", config.eval, ("panel_temperatures", "panel_samples", "compare_cold_start"), not config.eval.panel,
         "at eval.panel=0"),
        ("sft", config.sft, ("minutes",), epochs is not None, f"with sft.epochs={epochs}"),
        ("agent", config.agent, ("max_calls",), config.agent.name is None, "without agent.name"),
    ):
        for key, value in _changed(section).items():
            if off and key in keys:
                yield f"{name}.{key}", value, why


def _changed(section: Section) -> dict[str, Any]:
    """Returns the keys of a section that differ from their defaults, with their values."""
    defaults = type(section)().model_dump(mode="json")
    return {key: value for key, value in section.model_dump(mode="json").items() if value != defaults[key]}
