"""The learner's packed pass against Hugging Face's padded one on the same rows, and how much of the rows repeats.

Rows are steps of groups of episodes by the scripted player, a third of its actions noise, as an early policy plays. A
token is a word or a mark. Repeated tokens are those that a tree would compute once: the row up to and with the token
stands at the start of an earlier row of the group too. With a rectangle of attention the learner computes most of them
once (learner/rows/sequences.py). A transcript is a prompt that keeps all earlier turns; the learner joins its rows
(learner/rows/sequences.py), so what it repeats is computed once everywhere.

On a CPU one thread computes and its CPU time counts, which other processes hardly change. On a GPU both passes compute
in bfloat16, and the wall clock counts.
"""

from __future__ import annotations

import re
import time
import zlib
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from envservice.registry import find_teacher, make_template, open_environment
from lab.bench.figures import Figure, Report, silent
from services.config.env import EnvSection
from services.config.tree import SftSection
from services.seeds import seed_for

ENVIRONMENTS = {
    "ALFWorld, full prompts": EnvSection(prompt="full", history=2, max_steps=50),
    "ALFWorld, compact prompts": EnvSection(prompt="compact", history=3, max_steps=30),
    "WebShop, full prompts": EnvSection(name="webshop", prompt="full", max_steps=15),
}
GROUPS, MEMBERS = 8, 8
NOISE = 0.3
SPEED_ROWS = 32
TOKEN_BUDGET = 8192
VOCABULARY = 4096
MODEL = {"vocab_size": VOCABULARY, "hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 4,
         "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True}
TIMES = 3
"""Passes of which the median counts."""
_TOKEN = re.compile(r"\w+|[^\w\s]")
Row = tuple[list[int], list[int]]
"""Prompt and response tokens."""


def run(report: Report = silent) -> list[Figure]:
    """Takes about a minute on two cores."""
    figures: list[Figure] = []
    first: list[Row] = []
    for done, (name, env) in enumerate(ENVIRONMENTS.items()):
        report(f"episodes of {name}", done, len(ENVIRONMENTS) + 1)
        episodes = [_group(env, number) for number in range(GROUPS)]
        groups = [[row for one in group for row in one] for group in episodes]
        first = first or [row for group in groups for row in group]
        if env.prompt == "compact":
            joined = transcript_share([one for group in episodes for one in group])
            figures.append(Figure(name=f"joined tokens, {name} as transcripts", value=100 * joined, unit="%"))
        figures.append(Figure(name=f"repeated tokens, {name}", value=100 * repeated(groups), unit="%"))
    report("packed and padded passes", len(ENVIRONMENTS), len(ENVIRONMENTS) + 1)
    chosen = np.random.default_rng(0).permutation(len(first))[:SPEED_ROWS]
    return [*_speed([first[index] for index in chosen]), *figures]


def repeated(groups: Sequence[Sequence[Row]]) -> float:
    """The share of all tokens that lie in a prefix which an earlier row of the same group has too."""
    total = shared = 0
    for group in groups:
        seen: set[int] = set()
        for prompt, response in group:
            state = 0
            for token in (*prompt, *response):
                state = hash((state, token))
                shared += state in seen
                seen.add(state)
                total += 1
    return shared / total


def transcript_share(episodes: Sequence[Sequence[Row]]) -> float:
    """The share of all tokens that joining saves if each prompt keeps the turns before it, its rows as turns."""
    turns = [[len(prompt) + len(response) for prompt, response in rows] for rows in episodes]
    once, apart = (sum(map(sum, sizes)) for sizes in (turns, [accumulate(one) for one in turns]))
    return 1 - once / apart


def _group(env: EnvSection, number: int) -> list[list[Row]]:
    """The episodes of one group, each with all its steps: the same task, other noise."""
    from rollout.demonstrations import demonstrate

    environment, template, teacher = open_environment(env), make_template(env), find_teacher(env)
    task = environment.tasks(environment.training_splits()[0])[number]
    shown = [demonstrate(environment, task, teacher=teacher, template=template, seed=seed_for("bench", k),
                         sft=SftSection(noise=NOISE), max_steps=env.max_steps) for k in range(MEMBERS)]
    return [[(_tokens(step.prompt_text), _tokens(step.response_text)) for step in one.steps] for one in shown]


def _tokens(text: str) -> list[int]:
    return [zlib.crc32(word.encode()) % VOCABULARY for word in _TOKEN.findall(text)]


def _speed(found: Sequence[Row]) -> list[Figure]:
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from learner.model.attention import ATTENTION, takes_varlen
    from learner.model.policy import Policy
    from learner.model.utilization import forward_flops, utilization
    from learner.rows.packing import pack_rows

    cuda = torch.cuda.is_available()
    device, dtype = torch.device("cuda" if cuda else "cpu"), torch.bfloat16 if cuda else torch.float32
    torch.manual_seed(0)
    hf: Any = Qwen2ForCausalLM(Qwen2Config(**MODEL, max_position_embeddings=4096))  # pyright: ignore[reportArgumentType]
    hf = hf.to(device, dtype).eval()
    count, rows = len(found), _rows(found)
    grid = not takes_varlen(device, half=cuda)

    def packed() -> float:
        hf.set_attn_implementation(ATTENTION)
        return sum(_pass(Policy(hf)(pack_rows(rows, indices, device, grid=grid))[0]) for indices in _packs(rows, grid))

    def padded() -> float:
        hf.set_attn_implementation("sdpa")
        size = TOKEN_BUDGET // int(rows.lengths.max())
        return sum(_pass(_padded_logprobs(hf, found[i:i + size], device)) for i in range(0, count, size))

    clock = time.perf_counter if cuda else time.process_time
    torch.set_num_threads(1)
    (fast, ours), (slow, theirs) = _timed(packed, clock), _timed(padded, clock)
    assert abs(ours - theirs) < (1e-2 if cuda else 1e-4) * abs(theirs), "both passes compute the same logprobs"
    tokens, unit = float(rows.lengths.sum()), "tokens/s" if cuda else "tokens per CPU second"
    used = utilization(3 * forward_flops(Policy(hf), rows), fast, device=device, ranks=1, half=cuda)
    return [
        Figure(name="forward and backward, packed", value=tokens / fast, unit=unit, reference=tokens / slow,
               ratio=slow / fast),
        Figure(name="tokens of the padded rows that are padding", unit="%",
               value=100 * (1 - tokens / (count * int(rows.lengths.max())))),
        *([] if used is None else [Figure(name="model FLOPs over the GPU's", value=100 * used, unit="%")]),
    ]


def _packs(rows: Any, grid: bool) -> Any:
    """The sequences of each pack, as the learner makes them."""
    from learner.rows.packing import split
    from learner.rows.sequences import share_prefixes

    plan = split(rows.lengths, 1, TOKEN_BUDGET, grid=grid)
    return share_prefixes(plan, rows.contents, TOKEN_BUDGET)[0] if grid else plan[0]


def _rows(found: Sequence[Row]) -> Any:
    from learner.rows.packing import Rows

    count = len(found)
    return Rows(
        tokens=np.concatenate([np.array([*prompt, *response], np.int32) for prompt, response in found]),
        sequence=np.arange(count), prompt_lengths=np.array([len(prompt) for prompt, _ in found]),
        response_lengths=np.array([len(response) for _, response in found]),
        sampler_logprobs=np.zeros(sum(len(response) for _, response in found), np.float32),
        advantages=np.ones(count), temperatures=np.ones(count), stale=np.zeros(count, np.bool_),
        ends=np.ones(count, np.bool_))


def _padded_logprobs(hf: Any, rows: Sequence[Row], device: Any) -> Any:
    """As transformers is used plainly: rows padded to the longest, logits at every position, then the response's."""
    import torch

    longest = max(len(prompt) + len(response) for prompt, response in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.int64)
    mask, answers = torch.zeros_like(ids), torch.zeros_like(ids, dtype=torch.bool)
    for i, (prompt, response) in enumerate(rows):
        end = len(prompt) + len(response)
        ids[i, :end], mask[i, :end], answers[i, len(prompt):end] = torch.tensor([*prompt, *response]), 1, True
    ids, mask, answers = ids.to(device), mask.to(device), answers.to(device)
    logits = hf(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1]
    return torch.log_softmax(logits.float(), -1).gather(-1, ids[:, 1:, None])[..., 0][answers[:, 1:]]


def _pass(logp: Any) -> float:
    """The backward pass of these logprobs; returns their sum."""
    logp.sum().backward()
    return float(logp.detach().sum())


def _timed(work: Callable[[], float], clock: Callable[[], float]) -> tuple[float, float]:
    """(median seconds, result) of TIMES runs after one more."""
    result, seconds = work(), []
    for _ in range(TIMES):
        start = clock()
        result = work()
        seconds.append(clock() - start)
    return sorted(seconds)[len(seconds) // 2], result
