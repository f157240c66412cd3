"""`gagpo play TASK --prompts N`: the first prompts of a task, as text and as tokens, before training."""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy.commands.arguments import env_from, optional_config_from
from deploy.runs.hub import with_local_model
from deploy.runs.policies import check_asked_by_prompt, resolve
from services.config.tree import Config
from services.errors import UserError
from services.process.own_code import as_user_error

if TYPE_CHECKING:
    from deploy.commands.task_session import TaskSession
    from rollout.prompt_renderer import PromptRenderer


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownPrompt:
    """The prompt of one turn, and the action that led from it to the next."""

    turn: int
    text: str
    """The text that the model reads, or without a tokenizer the text of the template."""
    tokens: list[str] | None
    ids: list[int] | None
    action: str | None
    """None after the last prompt that is shown."""


def show_prompts(args: argparse.Namespace) -> None:
    """Prints the prompts. Raises UserError for an unknown task, missing data, and a model without a tokenizer."""
    from deploy.commands.task_session import open_session
    from envservice.registry import env_of

    config, model = _config_and_model(args)
    config = config.model_copy(update={"env": env_of(config.env, args.task)})
    session, renderer = open_session(config.env, args.task), _renderer(model, config)
    shown = list(_prompts(config, session, renderer, args.prompts))
    stops = _stops(config, renderer)
    if args.json:
        print(json.dumps({"task": args.task, "prompt": config.env.prompt, "stops": stops,
                          "prompts": [asdict(prompt) for prompt in shown]}))
        return
    for prompt in shown:
        _print(prompt, config)
    print(f"An answer ends after {' or '.join(map(repr, stops))}, or after {config.rollout.max_response_tokens} tokens "
          "(rollout.max_response_tokens).")
    if renderer is None:
        print("No model is named, so there are no tokens: give --agent RUN, or model.path=FOLDER.")


def _config_and_model(args: argparse.Namespace) -> tuple[Config, Path | None]:
    if args.agent is not None:
        config, policy = resolve(args.agent, args.config, {"env.name": args.env}, args.overrides)
        check_asked_by_prompt(config, args.agent)
        return config, policy.folder
    config = with_local_model(optional_config_from(args))
    config = config.model_copy(update={"env": env_from(args)})
    return config, config.model.path


def _renderer(model: Path | None, config: Config) -> PromptRenderer | None:
    if model is None:
        return None
    if not (model / "tokenizer_config.json").exists():
        raise UserError(f"{model} holds no tokenizer" if model.is_dir() else f"there is no folder {model}",
                        "give a Hugging Face folder")
    from rollout.prompt_renderer import load_text

    return load_text(str(model), config.env, config.model)


def _prompts(config: Config, session: TaskSession, renderer: PromptRenderer | None,
             count: int) -> Iterator[ShownPrompt]:
    from envservice.base import Turn
    from envservice.registry import find_spec, make_template
    from rollout.demonstrations import written

    name, teacher = config.env.name, find_spec(config.env.name).teacher
    prompting = partial(
        as_user_error, f"the prompt {config.env.prompt!r} of {name} failed on {session.task}", f"fix {name}")
    teaching = partial(as_user_error, f"the teacher of {name} failed on {session.task}", f"fix {name}")
    template, turns = make_template(config.env), []
    first = now = session.reset()
    with teaching():
        player = None if teacher is None else teacher.player(first, random.Random(config.seed), config.sft)
    for turn in range(1, count + 1):
        decode: Any = None if renderer is None else renderer.tokenizer.decode
        with prompting():
            ids = None if renderer is None else renderer.prompt(first, turns, now)
            text = template.render(first, turns, now) if ids is None else str(decode(ids))
        action, kept = None, ""
        if turn < count:
            with teaching():
                answer = None if player is None else written(player, template, first, turns, now)
            with prompting():
                parsed = None if answer is None else template.parse(answer)
            action = next(iter(now.admissible_actions), "") if parsed is None else parsed.action
            kept = "" if parsed is None else parsed.kept
        yield ShownPrompt(turn=turn, text=text, ids=ids, action=action,
                          tokens=None if ids is None else [str(decode([token])) for token in ids])
        if action is None:
            return
        turns.append(Turn(observation=now.observation, action=action, admissible=now.admits(action), kept=kept))
        now = session.step(action)
        if now.done:
            return


def _stops(config: Config, renderer: PromptRenderer | None) -> list[str]:
    """Returns the texts that end an answer. Without a tokenizer, those that one made here would have as tokens."""
    from envservice.registry import find_spec

    if renderer is None:
        return list(find_spec(config.env.name).stops)
    decode: Any = renderer.tokenizer.decode
    return [*(str(decode([token])) for token in renderer.stop_ids), *renderer.stop_texts]


def _print(prompt: ShownPrompt, config: Config) -> None:
    size = f"{len(prompt.text)} characters"
    if prompt.ids is not None:
        size += f", {len(prompt.ids)} tokens of at most {config.rollout.max_prompt_tokens}"
    print(f"--- turn {prompt.turn}, prompt {config.env.prompt}: {size}\n{prompt.text}")
    if prompt.tokens is not None:
        print("--- as tokens\n" + "|".join(token.replace("\n", "\\n") for token in prompt.tokens))
    if prompt.action is not None:
        print(f"--- action: {prompt.action}")
    print()
