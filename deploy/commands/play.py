"""Plays a task interactively. With --json it reads one action per line and prints one object per
line, the reset first. There is no limit of steps unless --max-steps gives one. The task id names the
environment; for one of your own, give --env or --config. An agent plays by the config of its run, which also
limits its steps.
--prompts shows what a model reads before it is trained: the first prompts as text and as tokens, and what
ends an answer. The environment's scripted player acts between them, else the first admissible action is
taken. The tokens are those of --agent, or of model.path.
--tasks lists the task ids of a split, one per line, sorted; their number and the digest over their
contents go to stderr. ALFWorld's games are those in ALFWORLD_DATA, or generated ones if it is not
set. Splits of official games: train, valid_seen, valid_unseen; train_kept and heldout, into which
train is divided by game folder. Splits of generated games: train, valid, heldout.

examples:
  gagpo play --tasks valid --config alfworld-tiny
  gagpo play $(gagpo play --tasks valid 2>/dev/null | head -1)
  gagpo play alfworld-gen/valid/look-0001 --agent runs/alfworld-tiny
  gagpo play alfworld-gen/valid/look-0001 --config alfworld-tiny --prompts 2
"""

from __future__ import annotations

import argparse
import io
import json
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy.commands.arguments import (
    above_zero,
    add_env_arguments,
    env_from,
    is_setting,
    optional_config_from,
    positive,
)
from deploy.console.plain import printable
from deploy.runs.configs import config_to_play
from deploy.runs.model_sources import with_local_model
from deploy.runs.policies import check_asked_by_prompt, resolve, run_path
from envservice.base import Environment, Outcome, ParsedAction, Session, Turn, outcome_of
from envservice.registry import env_of, find_spec, make_template, open_holding
from services.amounts import number_of
from services.config.tree import Config, EnvSection
from services.errors import UserError, described
from services.process.own_code import as_user_error

if TYPE_CHECKING:
    from rich.console import Console
    from transformers import PreTrainedModel

    from rollout.prompt_renderer import PromptRenderer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments."""
    parser.add_argument("task", nargs="?", metavar="TASK", help="a task id, as --tasks prints it")
    add_env_arguments(parser)
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--tasks", metavar="SPLIT",
                       help="list the tasks of this split; for a wrong name the error lists all splits")
    shown.add_argument("--prompts", type=positive, metavar="N", help="show the prompts of the task's first N turns")
    parser.add_argument("--json", action="store_true", help="actions from stdin, one object per line on stdout; with "
                        "--tasks or --prompts one object with all of it")
    parser.add_argument("--max-steps", type=positive, metavar="N", help="end the episode after N steps")
    parser.add_argument("--agent", metavar="RUN|MODEL", type=run_path,
                        help="watch a trained agent play; with --prompts use its tokenizer and config")
    parser.add_argument("--temperature", type=above_zero, help="the agent's temperature (default: eval.temperature)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the agent's sampling (default: 0)")


def run(args: argparse.Namespace) -> int:
    """Plays until the game or the input ends, or lists tasks, or shows prompts. Raises UserError for an unknown task,
    missing data or a game that fails."""
    _check_words(args)
    if args.tasks is not None:
        _list_tasks(args)
        return 0
    if args.prompts is not None:
        _show_prompts(args)
        return 0
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="replace")  # any bytes are an action, even if a bad one
    _play(args)
    return 0


def _check_words(args: argparse.Namespace) -> None:
    """Raises UserError if the task is missing or comes with --tasks, or if an option has no effect with --tasks, with
    --prompts or without --agent. argparse puts the first setting in the task's place."""
    if args.tasks is not None and args.task is not None and is_setting(args.task):
        args.task, args.overrides = None, [args.task, *args.overrides]
    if args.tasks is not None and args.task is not None:
        raise UserError(f"--tasks {args.tasks} lists a split, and {args.task} is one task", "leave one of them out")
    if args.tasks is None and (args.task is None or is_setting(args.task)):
        instead = "is missing" if args.task is None else f"is missing: {args.task} stands in its place"
        raise UserError(f"TASK {instead}", "give a task id, as `gagpo play --tasks SPLIT` prints it")
    played = {"--max-steps": args.max_steps is not None, "--temperature": args.temperature is not None,
              "--seed": args.seed != 0, "--agent": args.agent is not None and args.tasks is not None}
    mode = "with --tasks" if args.tasks is not None else "with --prompts" if args.prompts is not None else None
    if mode is None and args.agent is None:  # actions come from stdin
        mode, played = "without --agent", {**played, "--max-steps": False}
    for option in (option for option, given in played.items() if given and mode):
        raise UserError(f"{option} does nothing {mode}", "leave it out")


def _list_tasks(args: argparse.Namespace) -> None:
    """Prints the tasks of a split. Raises UserError for an unknown split and for missing or broken data."""
    from envservice.checks import tasks_of
    from envservice.registry import open_environment

    environment = open_environment(env_from(args))
    tasks, digest = tasks_of(environment, args.tasks), environment.digest(args.tasks)
    if args.json:
        print(json.dumps({"split": args.tasks, "digest": digest, "tasks": tasks}))
        return
    print(printable("\n".join(tasks)))
    print(f"{number_of(len(tasks), 'task')} of {environment.name}, digest {digest}", file=sys.stderr)


def _play(args: argparse.Namespace) -> None:
    """Plays until the game or the input ends: by the agent, or by the actions on stdin."""
    answer: Answer
    if args.agent is None:
        session, limit = open_session(env_from(args, config_to_play), args.task), args.max_steps
        answer = _line if args.json else _typed
    else:
        config, policy = resolve(
            args.agent, args.config, {"eval.temperature": args.temperature, "env.name": args.env}, args.overrides)
        check_asked_by_prompt(config, args.agent)
        if config.env.more:
            config = config.model_copy(update={"env": env_of(config.env, args.task)})
        session, limit = open_session(config.env, args.task), args.max_steps or config.env.max_steps
        answer = load_agent(config, policy.folder, seed=args.seed).answer
    first = outcome = session.reset()
    turns = list[Turn]()
    _show(args, outcome, 0, {}, over=False)
    while not outcome.done and len(turns) != limit:
        if (given := answer(first, turns, outcome)) is None:
            if args.agent is None:
                return
            print("the next prompt is longer than rollout.max_prompt_tokens, so a run ends the episode here",
                  file=sys.stderr)
            break
        text, parsed = given
        turns.append(Turn(observation=outcome.observation, action=parsed.action,
                          admissible=outcome.admits(parsed.action), kept=parsed.kept))
        outcome = session.step(parsed.action)
        move = {} if args.agent is None else {"action": parsed.action, "answer": text}
        _show(args, outcome, len(turns), move, over=outcome.done or len(turns) == limit)
    if not args.json:
        print(f"{'won' if outcome.won else 'not won'} after {number_of(len(turns), 'step')}")
    elif args.agent is None:
        for _ in sys.stdin:
            print(json.dumps({"error": "the episode is over; end the input, or start another game",
                              "step": len(turns)}), flush=True)


Answer = Callable[[Outcome, Sequence[Turn], Outcome], tuple[str, ParsedAction] | None]
"""Returns a player's text and action, given the first outcome, the turns so far and the present outcome. None: the
input has ended, or the prompt is too long for the model."""


def _line(_first: Outcome, _turns: Sequence[Turn], _now: Outcome) -> tuple[str, ParsedAction] | None:
    text = sys.stdin.readline()
    return (text, ParsedAction(action=text.removesuffix("\n"), valid=True)) if text else None


def _typed(_first: Outcome, turns: Sequence[Turn], _now: Outcome) -> tuple[str, ParsedAction] | None:
    try:
        text = _console().input(f"[bold]{len(turns) + 1}>[/bold] ")
    except EOFError:
        print()
        return None
    return text, ParsedAction(action=text, valid=True)


def _show(args: argparse.Namespace, outcome: Outcome, step: int, move: Mapping[str, str], *, over: bool) -> None:
    """Prints an outcome. `move`: the action and the answer of an agent that led to it."""
    if args.json:
        print(json.dumps({**move, "observation": outcome.observation, "admissible_actions": outcome.admissible_actions,
                          "reward": outcome.reward, "done": over, "won": outcome.won, "step": step}), flush=True)
        return
    if move:
        _console().print(f"{step}> {printable(move['answer'])}", style="bold", markup=False)
    _console().print(f"{printable(outcome.observation)}\n", markup=False)
    if not outcome.done and not move:
        _console().print(printable(" | ".join(outcome.admissible_actions)), style="dim", markup=False)


@cache
def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False)


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


def _show_prompts(args: argparse.Namespace) -> None:
    """Prints the prompts. Raises UserError for an unknown task, missing data, and a model without a tokenizer."""
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
        _print_prompt(prompt, config)
    if len(shown) < args.prompts:
        print(f"The game ended after turn {len(shown)}.")
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
    return _text(model, config)


def _text(model: Path, config: Config) -> PromptRenderer:
    """Loads the tokenizer of a folder. Raises UserError for a chat template that fails or takes too much."""
    from deploy.launch.checks.chat_template import check_template
    from rollout.prompt_renderer import load_text

    check_template(config, folder=model)
    return load_text(str(model), config.env, config.model)


def _prompts(config: Config, session: TaskSession, renderer: PromptRenderer | None,
             count: int) -> Iterator[ShownPrompt]:
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
    """Returns the texts that end an answer. Without a tokenizer, they are the environment's tags."""
    if renderer is None:
        return list(find_spec(config.env.name).stops)
    decode: Any = renderer.tokenizer.decode
    return [*(str(decode([token])) for token in renderer.stop_ids), *renderer.stop_texts]


def _print_prompt(prompt: ShownPrompt, config: Config) -> None:
    size = f"{len(prompt.text)} characters"
    if prompt.ids is not None:
        size += f", {len(prompt.ids)} tokens of at most {config.rollout.max_prompt_tokens}"
    print(printable(f"--- turn {prompt.turn}, prompt {config.env.prompt}: {size}\n{prompt.text}"))
    if prompt.tokens is not None:
        print(printable("--- as tokens\n" + "|".join(token.replace("\n", "\\n") for token in prompt.tokens)))
    if prompt.action is not None:
        print(printable(f"--- action: {prompt.action}"))
    print()


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """A model with its tokenizer and prompt template. It samples at `temperature`."""

    model: PreTrainedModel
    text: PromptRenderer
    temperature: float
    max_tokens: int
    max_prompt_tokens: int

    def answer(self, first: Outcome, turns: Sequence[Turn], now: Outcome) -> tuple[str, ParsedAction] | None:
        """Samples an answer. Returns its full text and the action for the environment. None: the prompt is too long."""
        import torch
        from transformers import StoppingCriteriaList

        if len(written := self.text.prompt(first, turns, now)) > self.max_prompt_tokens:
            return None
        prompt = torch.tensor([written])
        model: Any = self.model

        def ended(ids: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
            """Whether the answer of each sequence, here one, holds a tag of several tokens."""
            return torch.tensor([self.text.ends(ids[0, prompt.shape[1]:].numpy())])

        out = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=True, top_k=0,
                             temperature=self.temperature, max_new_tokens=self.max_tokens,
                             stopping_criteria=StoppingCriteriaList([ended] if self.text.stop_texts else []),
                             eos_token_id=list(self.text.stop_ids), pad_token_id=self.text.stop_ids[0])
        ids = out[0, prompt.shape[1]:].numpy()
        return str(self.text.tokenizer.decode(ids.tolist())), self.text.parse(ids)


def load_agent(config: Config, model: Path, *, seed: int) -> Agent:
    """Loads the agent of a Hugging Face folder, which plays by `config`. Raises UserError if the folder is damaged."""
    import torch
    from transformers.utils.logging import disable_progress_bar

    from learner.model.loading import plain_model

    disable_progress_bar()
    torch.manual_seed(seed)
    try:
        text = _text(model, config)
        policy = plain_model(model, "auto").eval()
    except UserError:
        raise
    except Exception as error:  # transformers has no exception type for a malformed file
        raise UserError(f"the model at {model} cannot be loaded ({described(error)})", "copy it again") from error
    return Agent(model=policy, text=text, temperature=config.eval.temperature,
                 max_tokens=config.rollout.max_response_tokens, max_prompt_tokens=config.rollout.max_prompt_tokens)


@dataclass(frozen=True, slots=True)
class TaskSession:
    """A session that raises UserError if the environment raises, calls `sys.exit`, or returns no outcome."""

    task: str
    session: Session

    def reset(self) -> Outcome:
        """Starts the game."""
        with _guard(self.task):
            return outcome_of(self.session.reset(), "reset")

    def step(self, action: str) -> Outcome:
        """Takes one action."""
        with _guard(self.task):
            return outcome_of(self.session.step(action), "step")


def _guard(task: str) -> AbstractContextManager[None]:
    """Turns whatever a game raises into a UserError."""
    return as_user_error(f"the game {task} failed", "fix the environment, or what it needs")


def open_session(env: EnvSection, task: str) -> TaskSession:
    """Opens a task of the environment that its id belongs to. Raises UserError for an unknown task, missing data, an
    outside service that does not answer, and a game that fails."""
    named = " or ".join(entry.name for entry in env.entries)
    unknown = UserError(f"there is no task {task!r} in {named}",
                        "see `gagpo play --tasks SPLIT`; for a task of another environment, give --env or --config")
    try:
        environment = open_holding(env, task)
    except KeyError:
        raise unknown from None
    env = env_of(env, task)
    find_spec(env.name).reachable(env)
    with _guard(task):
        try:
            return TaskSession(task, environment.open(task))
        except KeyError:
            if _lists(environment, task):  # then a lookup in the game itself has failed
                raise
            raise unknown from None


def _lists(environment: Environment, task: str) -> bool:
    try:
        return task in environment.tasks(task.split("/")[1])
    except (KeyError, IndexError):
        return False
