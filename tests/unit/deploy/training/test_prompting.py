"""Evaluations of prompting baselines: tasks, records, resuming and the summary, on the toy corridor."""

import asyncio
import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from toy_environment import ToyEnvironment, ToySession

from deploy.training.prompting import make_plan, play
from rollout.prompting.model import ContextFull, ModelAnswer
from services.chat import Message
from services.config.file import default_config
from services.errors import DeadlineExceeded, EngineFault, Unavailable, UserError

BEST = ("open door", "take key", "go on", "go back")


class Player:
    """A scripted model: it takes the best action listed, from the `wins_from`-th plan in its memory on."""

    def __init__(self, wins_from: int = 0, fails_after: int | None = None) -> None:
        self.wins_from, self.fails_after, self.calls = wins_from, fails_after, 0

    async def ask(self, messages: Sequence[Message], *, seed: int) -> ModelAnswer:
        self.calls += 1
        if self.fails_after is not None and self.calls > self.fails_after:
            raise EngineFault("the endpoint does not answer")
        first, last = messages[0]["content"], messages[-1]["content"]
        if last.endswith("Write the plan only."):
            return ModelAnswer(text="plan", prompt_tokens=100, answer_tokens=10)
        listed = last.partition("ctions: ")[2].splitlines()[0].split("; ")
        action = next(each for each in BEST if each in listed) if first.count("- plan") >= self.wins_from else "wait"
        return ModelAnswer(text=f"<think></think><action>{action}</action>\nAction: {action}",
                           prompt_tokens=20, answer_tokens=2)


def plan(policy: str, *overrides: str):
    return make_plan(default_config(["env.name=toy_environment:SPEC", "env.max_steps=12", "eval.panel=3",
                                     "prompting.concurrency=2", *overrides]), policy, None)


class Silent:
    """A model that thinks until its answer is cut, and so says nothing."""

    async def ask(self, messages: Sequence[Message], *, seed: int) -> ModelAnswer:
        return ModelAnswer(text="<think>\nThe door is", prompt_tokens=20, answer_tokens=2)


def lines(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.parametrize("policy", ["direct", "react"])
async def test_each_task_is_played_once_and_kept(tmp_path: Path, policy: str):
    file, told, model = tmp_path / "e.jsonl", [], Player()
    summary = await play(plan(policy), model, "m", file, lambda *at: told.append(at))
    assert (summary["tasks"], summary["episodes"], summary["success_rate"]) == (3, 3, 1.0)
    assert summary["success_high"] == 1.0 > summary["success_low"] > 0
    assert summary["success_by_type"] == {"corridor": 1.0}
    assert (summary["calls"], summary["prompt_tokens"], summary["answer_tokens"]) == (
        model.calls, 20 * model.calls, 2 * model.calls)
    assert summary["episode_length"] * 3 == model.calls
    assert (summary["invalid_share"], summary["inadmissible_share"], summary["uncounted_calls"]) == (0, 0, 0)
    assert summary["empty_answers"] == 0
    assert sorted(told) == [(1, 3), (2, 3), (3, 3)]
    settings, *trials = lines(file)
    assert settings["settings"]["policy"] == policy
    assert {each["task"] for each in trials} == set(summary["success_by_task"])
    assert trials[0]["steps"][-1]["action"] == "open door"


async def test_answers_without_a_text_are_counted(tmp_path: Path):
    summary = await play(plan("react"), Silent(), "m", tmp_path / "e.jsonl", lambda *_: None)
    assert summary["empty_answers"] == summary["calls"] == 3 * 12


async def test_trials_that_are_kept_are_not_played_again(tmp_path: Path):
    """The first attempt ends by a fault after some tasks; the second plays the others; the third plays nothing."""
    file = tmp_path / "e.jsonl"
    whole = Player()
    expected = await play(plan("react"), whole, "m", tmp_path / "whole.jsonl", lambda *_: None)
    with pytest.raises(EngineFault):
        await play(plan("react", "prompting.concurrency=1"), Player(fails_after=whole.calls - 1), "m", file,
                   lambda *_: None)
    kept = len(lines(file)) - 1
    assert kept == 2
    with file.open("a") as cut:
        cut.write('{"task": "toy/te')  # a crash in the middle of a line
    second = Player()
    assert await _same(second, file) == {**expected, "time": 0}
    assert 0 < second.calls < whole.calls
    third = Player()
    assert await _same(third, file) == {**expected, "time": 0}
    assert third.calls == 0


async def _same(model: Player, file: Path) -> dict:
    return {**await play(plan("react", "prompting.concurrency=1"), model, "m", file, lambda *_: None), "time": 0}


async def test_reflexion_wins_when_it_remembers_enough(tmp_path: Path):
    """Lost, lost, won: 12 waiting turns twice, two plans, and no plan after the trial that won."""
    model = Player(wins_from=2)
    summary = await play(plan("reflexion", "eval.panel=1"), model, "m", tmp_path / "e.jsonl", lambda *_: None)
    assert summary["success_by_trial"] == [0.0, 0.0, 1.0]
    assert (summary["tasks"], summary["episodes"], summary["success_rate"]) == (1, 3, 1.0)
    trials = lines(tmp_path / "e.jsonl")[1:]
    assert [(each["won"], each["end"], each["reflection"]) for each in trials] == [
        (False, "turns", "plan"), (False, "turns", "plan"), (True, "won", None)]
    assert [len(each["steps"]) for each in trials[:2]] == [12, 12]
    assert trials[0]["calls"] == 13
    assert trials[0]["prompt_tokens"] == 12 * 20 + 100


async def test_the_last_trial_is_not_reflected_on(tmp_path: Path):
    """Two trials and no win: one plan. A memory of one never reads two plans."""
    laid = ("eval.panel=1", "prompting.trials=2")
    summary = await play(plan("reflexion", *laid), Player(wins_from=9), "m", tmp_path / "a.jsonl", lambda *_: None)
    assert [each["reflection"] for each in lines(tmp_path / "a.jsonl")[1:]] == ["plan", None]
    assert summary["success_by_trial"] == [0.0, 0.0]
    laid = ("eval.panel=1", "prompting.trials=4", "prompting.memory=1")
    summary = await play(plan("reflexion", *laid), Player(wins_from=2), "m", tmp_path / "b.jsonl", lambda *_: None)
    assert summary["success_rate"] == 0.0


async def test_trials_of_other_settings_are_not_mixed(tmp_path: Path):
    file = tmp_path / "e.jsonl"
    await play(plan("react"), Player(), "m", file, lambda *_: None)
    with pytest.raises(UserError, match=r"has trials with temperature=0.4, and this evaluation has temperature=1.0"):
        await play(plan("react", "eval.temperature=1.0"), Player(), "m", file, lambda *_: None)
    with pytest.raises(UserError, match="model=m, and this evaluation has model=other"):
        await play(plan("react"), Player(), "other", file, lambda *_: None)
    wider = await play(plan("react", "eval.panel=5"), Player(), "m", file, lambda *_: None)
    assert wider["tasks"] == 5


async def test_a_full_context_ends_a_trial_with_its_reward(tmp_path: Path):
    class Full(Player):
        async def ask(self, messages, *, seed):
            if len(messages) > 1 or "Write the plan only" in messages[0]["content"]:
                raise ContextFull("too long")
            return await super().ask(messages, seed=seed)

    summary = await play(plan("reflexion"), Full(), "m", tmp_path / "e.jsonl", lambda *_: None)
    assert (summary["success_rate"], summary["calls"], summary["episodes"]) == (0.0, 9, 9)
    assert summary["context_full"] == 9
    assert {each["end"] for each in lines(tmp_path / "e.jsonl")[1:]} == {"context"}


async def test_a_first_prompt_that_no_model_reads_is_an_error_and_no_result(tmp_path: Path):
    """Nothing is kept, so the same file serves once the prompts may be longer."""
    class Short:
        async def ask(self, messages, *, seed):
            raise ContextFull("'max_tokens' is too large: 512. The maximum context length is 512 tokens")

    file, said = tmp_path / "e.jsonl", []
    with pytest.raises(UserError, match=r"the first prompt of every game is longer than the model reads: 'max_tokens' "
                                        r"is too large: .*, or lower rollout.max_response_tokens"):
        await play(plan("react"), Short(), "m", file, lambda *_: None, report=said.append)
    assert (len(said), "has too long a first prompt and is left out: 'max_tokens'" in said[0]) == (1, True)
    assert (await play(plan("react"), Player(), "m", file, lambda *_: None))["success_rate"] == 1.0


async def test_a_game_whose_first_prompt_is_too_long_costs_one_call_whatever_the_policy(tmp_path: Path):
    """Reflexion had asked for a plan after no turn, and had sent the same prompt two more times."""
    class Short(Player):
        async def ask(self, messages, *, seed):
            self.calls += 1
            raise ContextFull("too long")

    model = Short()
    with pytest.raises(UserError):
        await play(plan("reflexion"), model, "m", tmp_path / "e.jsonl", lambda *_: None)
    assert model.calls == 3


async def test_a_game_that_breaks_is_left_out_and_tried_again_later(tmp_path: Path):
    class Breaks(Player):
        async def ask(self, messages, *, seed):
            answer = await super().ask(messages, seed=seed)
            return answer if self.calls > 1 else ModelAnswer(text="Action: crash", prompt_tokens=1, answer_tokens=1)

    file, said = tmp_path / "e.jsonl", []
    summary = await play(plan("react"), Breaks(), "m", file, lambda *_: None, report=said.append)
    assert (summary["tasks"], summary["dropped"], len(said), "left out: the engine broke" in said[0]) == (2, 1, 1, True)
    again = await play(plan("react"), Player(), "m", file, lambda *_: None)
    assert (again["tasks"], again["dropped"]) == (3, 0)


class Careless(ToyEnvironment):
    """Code of a user's: `crash` raises what nobody expects, and `forget` returns nothing."""

    def open(self, task: str) -> ToySession:
        session = super().open(task)
        step, away = session.step, [Unavailable("no answer"), Unavailable("no answer")]

        def careless(action: str):
            if action == "crash":
                return {}["no such room"]
            if action == "ask" and away:
                raise away.pop()
            return None if action == "forget" else step(action)

        session.step = careless
        return session


@pytest.mark.parametrize("action", ["crash", "forget"])
async def test_code_of_an_environment_that_fails_loses_its_game_alone(tmp_path: Path, action: str):
    class Breaks(Player):
        async def ask(self, messages, *, seed):
            answer = await super().ask(messages, seed=seed)
            return answer if self.calls > 1 else ModelAnswer(text=f"Action: {action}", prompt_tokens=1, answer_tokens=1)

    file, mine = tmp_path / "e.jsonl", replace(plan("react"), environment=Careless())
    summary = await play(mine, Breaks(), "m", file, lambda *_: None)
    assert (summary["tasks"], summary["dropped"], summary["success_rate"]) == (2, 1, 1.0)
    assert (await play(mine, Player(), "m", file, lambda *_: None))["tasks"] == 3


async def test_a_game_waits_for_a_service_that_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Asks(Player):
        async def ask(self, messages, *, seed):
            answer = await super().ask(messages, seed=seed)
            return answer if self.calls > 1 else ModelAnswer(text="Action: ask", prompt_tokens=1, answer_tokens=1)

    monkeypatch.setattr("rollout.prompting.trials.SERVER_PAUSE_S", 0.01)
    mine = replace(plan("react"), environment=Careless())
    summary = await play(mine, Asks(), "m", tmp_path / "e.jsonl", lambda *_: None)
    assert (summary["tasks"], summary["dropped"], summary["success_rate"]) == (3, 0, 1.0)


async def test_a_game_whose_first_prompt_is_too_long_is_left_out_and_not_lost(tmp_path: Path):
    """As an evaluation of a run has it: the model never acted."""
    class Short(Player):
        async def ask(self, messages, *, seed):
            self.calls += 1
            if self.calls == 1:
                raise ContextFull("too long")
            return await super().ask(messages, seed=seed)

    summary = await play(plan("react", "prompting.concurrency=1"), Short(), "m", tmp_path / "e.jsonl", lambda *_: None)
    assert (summary["tasks"], summary["dropped"], summary["success_rate"]) == (2, 1, 1.0)
    assert (summary["episodes"], summary["context_full"]) == (2, 0)


async def test_a_trial_waits_for_a_file_that_cannot_be_written(tmp_path: Path):
    """A folder stands in its place for a while. The trials in flight, whose calls may have cost money, were lost."""
    file, aside = tmp_path / "e.jsonl", tmp_path / "aside"

    def back() -> None:
        file.rmdir()
        aside.rename(file)

    class Away(Player):
        async def ask(self, messages, *, seed):
            if not self.calls:
                file.rename(aside)
                file.mkdir()
                threading.Timer(0.5, back).start()
            return await super().ask(messages, seed=seed)

    assert (await play(plan("react"), Away(), "m", file, lambda *_: None))["tasks"] == 3
    assert len(lines(file)) == 4


async def test_two_evaluations_never_play_into_one_file(tmp_path: Path):
    """Each trial would be there twice, and Reflexion's second trial would count as its third."""
    file = tmp_path / "e.jsonl"
    first, second = await asyncio.gather(*(play(plan("react"), Player(), "m", file, lambda *_: None) for _ in "ab"),
                                         return_exceptions=True)
    assert isinstance(second, UserError)
    assert str(second) == f"another evaluation plays into {file}; wait for it, or choose another file with --out"
    assert len(lines(file)) == 1 + first["episodes"] == 4


def test_a_step_that_hangs_ends_the_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The evaluation runs in a thread, so that the test ends also if the step keeps it."""
    never, ended = threading.Event(), list[BaseException]()
    monkeypatch.setattr(ToyEnvironment, "open", lambda *_: never.wait())

    def evaluate() -> None:
        try:
            asyncio.run(play(plan("react", "prompting.step_seconds=0.2"), Player(), "m", tmp_path / "e.jsonl",
                             lambda *_: None))
        except DeadlineExceeded as error:
            ended.append(error)

    evaluation = threading.Thread(target=evaluate, daemon=True)
    evaluation.start()
    evaluation.join(120)
    kept = evaluation.is_alive()
    never.set()  # lets the thread of the environment end
    assert not kept
    assert "prompting.step_seconds" in str(ended[0])
