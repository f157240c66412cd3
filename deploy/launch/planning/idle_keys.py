"""Keys of a config that differ from their default and are ignored, each with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from envservice.registry import find_spec
from learner.credit.registry import estimator, unread
from services.config.env import Section
from services.config.file import as_yaml
from services.config.tree import Config


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
