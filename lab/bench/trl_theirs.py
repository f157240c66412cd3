"""TRL's side of `lab.bench trl`: GRPOTrainer on the guessing game, with an environment and transformers' generation.

An episode is one conversation, as TRL keeps it: rules, answer, hint, answer, hint, answer. Every answer counts as a
call of the environment's tool, because SmolLM2's chat template knows no tools.
"""

from __future__ import annotations

import tempfile
import time
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from envservice.registry import find_spec, make_template, open_environment
from lab.bench.trl import STEPS, THREADS, Taken
from services.config.tree import Config, EnvSection
from services.process.packages import naming_extras

OVER = "The game is over."


class TrlGame:
    """A game as an environment of TRL, which offers its public methods to the model as tools."""

    def __init__(self, env: EnvSection) -> None:
        self._environment, self._template = open_environment(env), make_template(env)
        self._won = self._over = False

    def reset(self, *, task: str, **_: Any) -> str:
        """Starts the game of a row of the data set."""
        self._session = self._environment.open(task)
        self._won = self._over = False
        return f"{self._session.reset().observation}\nAnswer:"

    def guess(self, answer: str) -> str:
        """Guess the number.

        Args:
            answer: the text with the number
        """
        if not self._over:
            now = self._session.step(self._template.parse(answer).action)
            self._won, self._over = now.won, now.done
            return OVER if self._over else f"{now.observation}\nAnswer:"
        return OVER


def reward(completions: list[list[dict[str, Any]]], environments: list[TrlGame], **_: Any) -> list[float]:
    """Returns 1 for each game that is won. TRL calls no tool for an episode's last answer, so it is played here."""
    for completion, game in zip(completions, environments, strict=True):
        game.guess(completion[-1]["content"])
    return [float(game._won) for game in environments]


def take_steps(config: Config, model: Path, end: Connection) -> None:
    """Loads trainer and model, and takes a step for each word from `end`, whose answer is Taken."""
    with naming_extras(), tempfile.TemporaryDirectory(prefix="gagpo-bench-") as folder:
        trainer = _trainer(config, model, folder)
        sampling = _timed(trainer, "_generate")
        trainer.add_callback(_turns(trainer, end, sampling))
        trainer.train()


def _trainer(config: Config, model: Path, folder: str) -> Any:
    import torch
    from datasets import Dataset  # pyright: ignore[reportMissingImports]
    from transformers import AutoModelForCausalLM, set_seed
    from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportAttributeAccessIssue]  # it finds this folder

    torch.set_num_threads(THREADS)
    set_seed(0)
    learner, tokenizer = config.learner, _tokenizer(model)
    stops = find_spec(config.env.name).stops
    ends = [number for token, number in tokenizer.get_vocab().items() if any(stop in token for stop in stops)]
    ends.append(tokenizer.eos_token_id)
    turns, episodes = config.env.max_steps, learner.groups_per_step * learner.group_size
    arguments = GRPOConfig(
        output_dir=folder, max_steps=STEPS, per_device_train_batch_size=learner.group_size,
        gradient_accumulation_steps=learner.groups_per_step, generation_batch_size=episodes,
        num_generations=learner.group_size, max_completion_length=turns * (config.rollout.max_response_tokens + 32),
        max_tool_calling_iterations=turns - 1, temperature=1.0, learning_rate=learner.lr,
        lr_scheduler_type="constant", max_grad_norm=learner.grad_clip, weight_decay=learner.weight_decay,
        generation_kwargs={"max_new_tokens": config.rollout.max_response_tokens, "eos_token_id": ends},
        gradient_checkpointing=False, use_cpu=True, bf16=False, logging_steps=1, report_to=[], save_strategy="no",
        disable_tqdm=True)
    environment = open_environment(config.env)
    tasks = environment.tasks(environment.training_splits()[0])
    messages = [{"role": "system", "content": config.model.system_prompt}, {"role": "user", "content": ""}]
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, trust_remote_code=False), args=arguments,
        processing_class=tokenizer, environment_factory=partial(TrlGame, config.env), reward_funcs=reward,
        train_dataset=Dataset.from_list([{"prompt": messages, "task": task} for task in tasks]))
    trainer.eos_token_ids = ends
    return trainer


def _tokenizer(model: Path) -> Any:
    """Returns the tokenizer, with results of tools as messages of the user, and every answer as a call of `guess`."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(model, padding_side="left", trust_remote_code=False)
    content, role = "message['content']", "message['role']"
    calls = f"({content} or message['tool_calls'] | default('') | tojson)"  # TRL refuses a template that drops them
    tokenizer.chat_template = (tokenizer.chat_template.replace(content, calls)
                               .replace(f"+ {role} +", f"+ ('user' if {role} == 'tool' else {role}) +"))
    tokenizer.response_template = "every answer is a call"  # TRL then uses parse_response

    def parse_response(ids: Any, *, prefix: list[int] | None = None, **_: Any) -> dict[str, Any]:
        text = tokenizer.decode(ids, skip_special_tokens=True)
        call = {"type": "function", "function": {"name": "guess", "arguments": {"answer": text}}}
        over = OVER in tokenizer.decode(prefix or [])
        return {"role": "assistant", "content": text, **({} if over else {"tool_calls": [call]})}

    tokenizer.parse_response = parse_response
    return tokenizer


def _timed(trainer: Any, method: str) -> list[float]:
    """Returns a list that gets the seconds of each call of the method."""
    call, seconds = getattr(trainer, method), list[float]()

    def timed(*args: Any) -> Any:
        start = time.perf_counter()
        try:
            return call(*args)
        finally:
            seconds.append(time.perf_counter() - start)

    setattr(trainer, method, timed)
    return seconds


def _turns(trainer: Any, end: Connection, sampling: list[float]) -> Any:
    """Returns a callback that waits for a word before each step and reports the step after it."""
    from transformers import TrainerCallback

    class Turns(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            end.send("ready")

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            end.recv()
            sampling.clear()
            self.start = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            step, metrics = time.perf_counter() - self.start, trainer._metrics["train"]
            episodes = trainer.args.generation_batch_size
            end.send(Taken(
                seconds={"step": step, "sampling": sum(sampling), "training": step - sum(sampling)},
                sampled=round(metrics["completions/mean_length"][-1] * episodes),
                success=metrics["reward"][-1]))

    return Turns()
