"""`python -m lab.experiments trl`: TRL's GRPOTrainer against GagpoTrainer, with equal arguments, seeds and steps.

The game: a corridor of rooms, from room 0 to the exit behind the last one, in TURNS turns. An action is one token: on,
back, or one of the others, which do nothing. Two groups of 16 episodes make a learner step. The model is a tiny
transformer with random weights, and every token that it may say is one of seven. It needs TRL, accelerate and datasets
next to our own packages.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from services.errors import UserError
from services.files import write_whole
from services.process.packages import naming_extras
from services.statistics import paired_test, seed_interval

ARMS: dict[str, dict[str, Any] | None] = {
    "grpo": None,
    "gagpo": {"estimator": "gagpo"},
}
"""Name -> `credit` of GagpoTrainer; None: TRL's own GRPOTrainer."""
SEEDS, STEPS, LAST = 3, 60, 10
GROUP, GROUPS, ROOMS, TURNS = 16, 2, 3, 6
TOKENS = ("<pad>", "<eos>", "on", "back", *(f"room{i}" for i in range(ROOMS)))
"""The vocabulary, by id."""
ON, BACK, FIRST = 2, 3, 4
RATE = 3e-3


def run(args: argparse.Namespace) -> int:
    """Trains each arm and seed that has no record yet, and prints the table. Returns 0."""
    arms = args.arms.split(",") if args.arms else list(ARMS)
    if unknown := [arm for arm in arms if arm not in ARMS]:
        raise UserError(f"there is no arm {unknown[0]!r}", f"use one of {', '.join(ARMS)}")
    if not args.report:
        for seed in range(args.seeds or SEEDS):
            for arm in arms:
                file = args.out / f"{arm}-seed{seed}.json"
                if not file.exists():
                    with naming_extras():
                        success = train(arm, seed)
                    write_whole(file, json.dumps({"arm": arm, "seed": seed, "success": success}) + "\n")
                    print(f"{arm} seed {seed}: {fmean(success[-LAST:]):.3f} at the end", file=sys.stderr)
    table = tabulate(args.out)
    print(json.dumps(table) if args.json else show(table))
    return 0


def train(arm: str, seed: int) -> list[float]:
    """Returns the share of episodes that reached the exit, for each learner step."""
    import torch
    from datasets import Dataset  # pyright: ignore[reportMissingImports]
    from transformers import set_seed
    from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportAttributeAccessIssue]  # it finds this folder

    from gagpo.integrations.trl import GagpoTrainer

    torch.set_num_threads(1)
    set_seed(seed)
    credit = ARMS[arm]
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder, seed=seed, max_steps=STEPS, per_device_train_batch_size=GROUP * GROUPS,
            num_generations=GROUP, max_completion_length=2 * TURNS, learning_rate=RATE, lr_scheduler_type="constant",
            logging_steps=1, report_to=[], use_cpu=True, bf16=False, save_strategy="no", disable_tqdm=True,
            gradient_checkpointing=False)
        given: dict[str, Any] = {
            "model": _model(), "args": config, "processing_class": _tokenizer(), "rollout_func": _play,
            "reward_funcs": _reached, "train_dataset": Dataset.from_dict({"prompt": ["room0"] * GROUPS})}
        trainer = GRPOTrainer(**given) if credit is None else GagpoTrainer(**given, credit=credit)
        trainer.train()
        return [row["reward"] for row in trainer.state.log_history if "reward" in row]


def _model() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(
        vocab_size=len(TOKENS), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=64))


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(TOKENS)}, unk_token="<pad>"))  # noqa: S106
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", padding_side="left")  # noqa: S106


def _play(prompts: list[str], trainer: Any) -> dict[str, Any]:
    """Plays an episode for each prompt, all at once: the model says a token, and the game the room that follows."""
    import torch

    device = trainer.accelerator.device
    rooms, texts = [0] * len(prompts), torch.full((len(prompts), 1), FIRST, device=device)
    says: list[list[int]] = [[] for _ in prompts]
    masks: list[list[int]] = [[] for _ in prompts]
    logprobs: list[list[float]] = [[] for _ in prompts]
    for turn in range(TURNS):
        with torch.no_grad():
            odds = trainer.model(texts).logits[:, -1].float().log_softmax(-1)
        tokens = torch.multinomial(odds.exp(), 1)
        for i, token in enumerate(tokens[:, 0].tolist()):
            if rooms[i] == ROOMS:
                continue
            rooms[i] = max(0, rooms[i] + {ON: 1, BACK: -1}.get(token, 0))
            over = rooms[i] == ROOMS or turn == TURNS - 1
            says[i] += [token] if over else [token, FIRST + rooms[i]]
            masks[i] += [1] if over else [1, 0]
            logprobs[i] += [float(odds[i, token])] if over else [float(odds[i, token]), 0.0]
        shown = torch.tensor([[FIRST + min(room, ROOMS - 1)] for room in rooms], device=device)
        texts = torch.cat([texts, tokens, shown], dim=1)
    return {"prompt_ids": [[FIRST]] * len(prompts), "completion_ids": says, "env_mask": masks, "logprobs": logprobs,
            "reached": [room == ROOMS for room in rooms]}


def _reached(reached: list[bool], **_: Any) -> list[float]:
    return [float(each) for each in reached]


def tabulate(folder: Path) -> dict[str, Any]:
    """Returns success by arm and the paired difference of the arms, each as mean, low and high (95%, over seeds)."""
    records = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*-seed*.json"))]
    if not records:
        raise UserError(f"{folder} has no records", "run the experiment first, without --report")
    ends: dict[str, dict[int, float]] = {}
    areas: dict[str, dict[int, float]] = {}
    for record in records:
        ends.setdefault(record["arm"], {})[record["seed"]] = fmean(record["success"][-LAST:])
        areas.setdefault(record["arm"], {})[record["seed"]] = fmean(record["success"])
    return {"seeds": {arm: len(values) for arm, values in ends.items()},
            "last": _summary(ends), "all": _summary(areas)}


def _summary(by_arm: dict[str, dict[int, float]]) -> dict[str, Sequence[float]]:
    found: dict[str, Sequence[float]] = {arm: seed_interval([*values.values()]) for arm, values in by_arm.items()}
    first, second = ARMS
    pairs = sorted(by_arm.get(first, {}).keys() & by_arm.get(second, {}).keys())
    if len(pairs) > 1:
        found[f"{second} - {first}"] = paired_test([by_arm[second][s] - by_arm[first][s] for s in pairs])[:3]
    return found


def show(table: dict[str, Any]) -> str:
    """Returns the table as text."""
    lines = [f"success of a step's episodes, mean and 95% interval over seeds "
             f"({', '.join(f'{arm}: {n}' for arm, n in table['seeds'].items())})",
             f"{'':<16}{f'last {LAST} of {STEPS} steps':>26}{'all steps':>26}"]
    for name in table["last"]:
        cells = [" ".join([f"{mean:+.3f}" if " - " in name else f"{mean:.3f}", f"[{low:.3f}, {high:.3f}]"])
                 for mean, low, high in (table["last"][name], table["all"][name])]
        lines.append(f"{name:<16}" + "".join(f"{cell:>26}" for cell in cells))
    return "\n".join(lines)
