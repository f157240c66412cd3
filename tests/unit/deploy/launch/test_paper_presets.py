"""The presets of the paper's table: each loads, has what its estimator needs, and holds its sources' numbers."""

import re
import shlex
from collections.abc import Iterator

import pytest

from deploy.cli import parse
from deploy.launch.checks import preflight
from deploy.runs.configs import SHIPPED, load_config
from learner.credit.registry import estimator, options_of
from services.config.tree import Config

PRESETS = {file.stem: load_config(file) for file in sorted((SHIPPED / "paper").glob("*.yaml"))}


def test_all_methods_of_the_table_are_there():
    table = {f"{env}-{size}-{method}" for env in ("alfworld", "webshop") for size in ("1.5b", "7b")
             for method in ("ppo", "rloo", "grpo", "gigpo", "gagpo")}
    assert set(PRESETS) == table | {f"alfworld-1.5b-{method}" for method in ("dapo", "gspo", "rlvmr", "gcd")} | {
        "scienceworld-1.5b-rlvmr"}


@pytest.mark.parametrize("config", PRESETS.values(), ids=PRESETS)
def test_all_paper_presets_share_batch_size_and_optimizer(config: Config):
    """128 episodes a step, the pipeline's optimizer, and an estimator with all that it needs."""
    learner = config.learner
    preflight._credit(config)
    assert learner.groups_per_step * learner.group_size == 128
    assert (learner.lr, learner.loss.kl, learner.loss.entropy, config.eval.temperature) == (1e-6, 0.01, 0.001, 0.4)
    sizes = (config.env.max_steps, config.rollout.max_prompt_tokens, learner.minibatch_rows)
    expected = {"alfworld": (50, 2048, 256), "webshop": (15, 4096, 64), "scienceworld": (30, 6000, 256)}
    own = {"alfworld-1.5b-rlvmr": (30, 6000, 256), "alfworld-1.5b-gcd": (30, 2048, 256)}
    assert sizes == own.get(config.name, expected[config.env.name])
    assert config.eval.episodes == (250 if config.env.name == "webshop" else 128)
    assert learner.judge.questions == (config.name == "alfworld-1.5b-gcd")
    assert (learner.group_size == 1) == estimator(learner.credit.estimator).needs_critic


@pytest.mark.parametrize(("name", "steps", "loss", "credit"), [
    ("alfworld-1.5b-gagpo", 160, ("sequence", "actions", 0.2, 0.2), {"gamma": 0.95, "lam": 0.8}),
    ("webshop-7b-gagpo", 160, ("sequence", "actions", 0.2, 0.2), {"gamma": 0.95, "lam": 0.8}),
    ("webshop-1.5b-gigpo", 160, ("token", "tokens", 0.2, 0.2), {"gamma": 0.95, "omega": 1, "mode": "mean_norm"}),
    ("webshop-7b-ppo", 150, ("token", "tokens", 0.2, 0.2), {"gamma": 1, "lam": 1}),
    ("alfworld-7b-gigpo", 160, ("token", "tokens", 0.2, 0.2), {"gamma": 0.95, "omega": 1, "mode": "mean_std_norm"}),
    ("alfworld-7b-grpo", 160, ("token", "tokens", 0.2, 0.2), {"mode": "mean_std_norm", "statistics": "rows"}),
    ("alfworld-7b-rloo", 150, ("token", "tokens", 0.2, 0.2), {"statistics": "rows"}),
    ("alfworld-7b-ppo", 150, ("token", "tokens", 0.2, 0.2), {"gamma": 1, "lam": 1}),
    ("alfworld-1.5b-dapo", 150, ("token", "tokens", 0.2, 0.28), {"estimator": "grpo"}),
    ("alfworld-1.5b-gcd", 200, ("token", "tokens", 0.2, 0.2), {"estimator": "grpo"}),
    ("alfworld-1.5b-rlvmr", 100, ("token", "tokens", 0.2, 0.2), {"estimator": "rlvmr", "omega": 1}),
    ("alfworld-1.5b-gspo", 200, ("sequence", "actions", 3e-4, 4e-4), {"estimator": "grpo"}),
])
def test_each_preset_has_its_papers_numbers(name: str, steps: int, loss: tuple[object, ...], credit: dict[str, object]):
    config = PRESETS[name]
    section = config.learner.loss
    assert config.steps == steps
    assert (section.ratio, section.aggregation, section.clip_low, section.clip_high) == loss
    assert config.learner.credit.model_dump().items() >= credit.items()
    assert config.learner.dynamic_sampling == (9 if name.endswith("dapo") else 0)
    placed = (config.rollout.workers, config.learner.ranks)
    assert placed == ((8, 8) if "7b" in name else (1, 1))
    assert (config.learner.critic_lr, config.learner.critic.value_clip) == (pytest.approx(1e-5), 0.5)


def tiny_commands() -> Iterator[str]:
    """Yields what the page of the papers' systems gives in its columns `tiny`: commands, and keys for alfworld-tiny.
    The page says what TOKENS stands for."""
    column, page = None, (SHIPPED.parents[1] / "docs/papers.md").read_text()
    (tokens,) = re.findall(r"TOKENS stands for `([^`]+)`", page)
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if "tiny" in cells:
            column = cells.index("tiny")
        elif column is not None and len(cells) > column:
            yield from re.findall(r"`([^`]+)`", cells[column].replace("` TOKENS", f" {tokens}`"))


@pytest.mark.parametrize("name", ["grpo", "rloo", "gigpo", "ppo", "dapo", "gspo"])
def test_the_page_and_the_preset_of_a_system_have_one_loss(name: str):
    marks = {"dapo": "dynamic_sampling", "gspo": "clip_low"}
    keys = next(text for text in tiny_commands() if marks.get(name, f"estimator={name}") in text)
    loss, its = load_config("alfworld-tiny", keys.split()).learner.loss, PRESETS[f"alfworld-1.5b-{name}"].learner.loss
    for key in ("ratio", "aggregation", "clip_low", "clip_high"):
        assert getattr(loss, key) == getattr(its, key)


def test_the_pages_keys_for_ppo_are_those_of_its_preset():
    """The defaults of γ and λ are for turns, and PPO takes them per token."""
    keys = next(text for text in tiny_commands() if "estimator=ppo" in text)
    tiny = load_config("alfworld-tiny", keys.split()).learner
    preset = PRESETS["alfworld-1.5b-ppo"].learner
    options, its = options_of(tiny.credit), options_of(preset.credit)
    assert (options.gamma, options.lam, options.values) == (its.gamma, its.lam, its.values) == (1, 1, "tokens")
    assert (tiny.loss.ratio, tiny.loss.aggregation) == (preset.loss.ratio, preset.loss.aggregation)


@pytest.mark.parametrize("text", [text for text in tiny_commands() if "=" in text or text.startswith("gagpo")])
def test_each_command_of_the_papers_page_is_one(text: str):
    words, config = shlex.split(text), "alfworld-tiny"
    if words[0] == "gagpo":
        args = parse(words[1:])
        words, config = (args.overrides, args.config) if args.command == "train" else ([], config)
    options_of(load_config(config, words).learner.credit)
