"""An exported policy: a Hugging Face folder that says what it is and how to use it.

    README.md                model card: run, step, score with its interval, prompt format, stop strings
    generation_config.json   stop ids and sampling, so that `generate` and vLLM end answers as gagpo does
    gagpo.yaml               the part of the run's config by which `gagpo eval FOLDER` plays it
    chat_template.jinja      the run's own template, if its config names one in model.chat_template
    adapter/                 the adapters alone, if the run trained some for a model that others can have

Not exported: optimizer state, and the rest of the config: addresses, files of tokens, and what only training reads.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from deploy.runs.configs import light_config
from deploy.runs.folder import RunFolder, is_own
from deploy.runs.model_sources import origin
from deploy.runs.policies import EXPORTED_CONFIG
from learner.checkpoints.export import GENERATION, special_tokens, write_adapter
from services.amounts import number_of
from services.config.file import dump_config
from services.config.tree import Config
from services.errors import UserError
from services.files import read_bounded, write_whole
from services.telemetry.evaluations import TRAINED, on_curve
from services.telemetry.metrics_file import read_evaluations

ADAPTER = "adapter"
_ENV: dict[str, Any] = {
    "name": True, "data": True, "max_steps": True, "prompt": True, "history": True, "weight": True, "alfworld": True,
    "webshop": True, "search": {"topk", "turns"}, "scienceworld": True}
PLAYED: dict[str, Any] = {
    "name": True, "seed": True, "steps": True, "agent": True, "env": {**_ENV, "more": {"__all__": _ENV}},
    "model": {"dtype", "chat_template_kwargs", "system_prompt"},
    "rollout": {"slots", "gpus", "tensor_parallel", "kv_cache_gb", "max_prompt_tokens", "max_response_tokens"},
    "eval": {"temperature", "panel"}}
"""The keys that say how a policy plays. No other key is exported, because folders go to other people and the config has
addresses of a cluster and paths of secrets."""


def export(run: RunFolder, step: int, model: Path, out: Path) -> None:
    """Copies the model of a learner step to `out` and adds the files above. Raises UserError if `out` exists."""
    if out.exists():
        raise UserError(f"{out} exists", "give a folder that does not exist yet")
    config = light_config(run.config_file)
    if config.model.chat_template is not None and not is_own(run):
        raise UserError(f"model.chat_template of {run.path} is not copied, because others can write to that folder",
                        "read its config.yaml, then export a copy of the folder that is yours alone")
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_name(f".{out.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        shutil.copytree(model, temporary)
        if config.model.chat_template is not None:
            write_whole(temporary / "chat_template.jinja", read_bounded(config.model.chat_template))
        if _has_adapter(config):
            write_adapter(model.parent, temporary / ADAPTER, config.learner.lora, base=_base(config))
        stops, generation = _generation(temporary, config)
        write_whole(temporary / GENERATION, json.dumps(generation, indent=2) + "\n")
        write_whole(temporary / "README.md", _card(run, step, config, stops, title=out.name))
        dump_config(config, temporary / EXPORTED_CONFIG, include=PLAYED)
        temporary.rename(out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # it is gone, unless something failed


def _has_adapter(config: Config) -> bool:
    """Returns whether the run trained adapters for a model that others can have, which that of its own cold start is
    not."""
    return config.learner.lora.rank > 0 and config.model.path is not None and not config.sft.enabled


def _base(config: Config) -> str:
    """Returns the name of the model that the run started from, without folders of this machine; "" for one made from
    scratch."""
    path = config.model.path
    return origin(path).partition("@")[0] or (path.name if path else "")


def _generation(folder: Path, config: Config) -> tuple[list[str], dict[str, Any]]:
    """Returns the stop texts and the content of generation_config.json: eval.temperature, and as in training no
    truncation of the distribution.

    An answer ends at a stop of any environment of the run.
    """
    from rollout.prompt_renderer import load_text

    texts = [load_text(str(folder), entry, config.model) for entry in config.env.entries]
    text = texts[0]
    ids = list(dict.fromkeys(number for one in texts for number in one.stop_ids))
    sampling = {"do_sample": True, "temperature": config.eval.temperature} if config.eval.temperature else \
        {"do_sample": False}
    padding = text.tokenizer.pad_token_id
    named = (str(text.tokenizer.convert_ids_to_tokens(i)) for i in ids)
    stops = list(dict.fromkeys([*(stop for one in texts for stop in one.stops), *named]))
    return stops, {**special_tokens(folder), **sampling, "top_k": 0, "top_p": 1.0, "eos_token_id": ids,
                   "pad_token_id": ids[0] if padding is None else padding,
                   "max_new_tokens": config.rollout.max_response_tokens}


def _card(run: RunFolder, step: int, config: Config, stops: list[str], *, title: str) -> str:
    games = ", ".join(f"`{entry.name}`" for entry in config.env.entries)
    hub, path = origin(config.model.path), config.model.path
    base = f"the model `{hub or path.name}`" if path else "a model made from scratch for this game"
    name, _, revision = hub.partition("@")
    base_line = f"base_model: {name}\n" if hub else ""
    fetch = f" (`hf download {name} --revision {revision}`)" if hub else ""
    endings = ", ".join(f"`{stop}`".replace("|", r"\|") for stop in stops)  # a bare bar ends the cell, also in code
    asked, how = _asked(config, title)
    return f"""---
library_name: transformers
pipeline_tag: text-generation
tags: [gagpo, reinforcement-learning, agent]
{base_line}---
# {title}

An agent for {games}, trained with gagpo (step-level credit, arXiv 2605.13217).

| | |
|---|---|
| run | `{config.name}`, learner step {step}, seed {config.seed} |
| started from | {base}{fetch}{", after a cold start" if config.sft.enabled else ""} |
| credit | `{config.learner.credit.estimator}` |
{_adapter_row(config)}{_scores(run, step)}
| {asked} |
| an answer ends at | {endings}, or after {config.rollout.max_response_tokens} tokens |
| largest prompt | {config.rollout.max_prompt_tokens} tokens |

{how}

`gagpo.yaml` has the part of the run's config that says how to play. `generation_config.json` has the stop ids, for
`transformers` and vLLM.
"""


def _asked(config: Config, title: str) -> tuple[str, str]:
    """Returns the row and the paragraph of the card that say who asks the model."""
    env, agent = config.env, config.agent
    if agent.name is not None:
        return (f"asked by | the program `{agent.name}`, at most {agent.max_calls} calls an episode",
                f"""The program asks the model over HTTP. Its module has to be importable:

    gagpo eval {title} --split heldout
    gagpo serve-agent {title}""")
    prompts = "; ".join(f"`{entry.prompt}` with a history of {entry.history} turns" + (
        f" in `{entry.name}`" if env.more else "") for entry in env.entries)
    return (f"prompt format | {prompts}",
            f"""The agent reads one prompt per turn, which gagpo makes from the game's text, and gagpo reads the action
in its answer:

    gagpo eval {title} --split heldout
    gagpo play TASK --agent {title} --prompts 2""")


def _adapter_row(config: Config) -> str:
    lora = config.learner.lora
    return (f"| adapters | `{ADAPTER}/`, rank {lora.rank}, alpha {lora.alpha:g}, float32, in peft's format; the model "
            "here has them merged in |\n") if _has_adapter(config) else ""


def _scores(run: RunFolder, step: int) -> str:
    """Returns rows of the card: the evaluations of this step."""
    evaluated = [row for row in read_evaluations(run.evaluations) if row["step"] == step
                 and (row["label"] == TRAINED or on_curve(row["label"]))]
    rows = [f"| score, T={row['temperature']:g} | {row['success_rate']:.1%} "
            f"[{row['success_low']:.1%}, {row['success_high']:.1%}] on {number_of(row['tasks'], 'task')} of "
            f"`{row['split']}` ({row.get('env', 'its environment')}) |" for row in evaluated]
    return "\n".join(rows) or "| score | this step was not evaluated |"
