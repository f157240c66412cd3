"""The judge task in the sampler: labels by hand, questions that are asked, answers that are read."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from envservice.base import Outcome, Turn
from envservice.client.client import Result
from rollout.engine.engine import Sample
from rollout.episode import EpisodeRunner, Limits
from rollout.judge import Judge, chosen, labels
from rollout.judge_prompt import question, read_verdict, shown_answer
from services.config.sections import JudgeSection
from services.records import Step, Ticket, Version, VersionSpan, decode_episode, encode_episode
from services.seeds import seed_for

TICKET = Ticket(group="train/00000001", k=2, size=4, task="toy/train/01", seed=11, kind="train", temperature=0.9,
                max_steps=9)
ENDS = ("</action>",)


def step(observation: str, action: str = "go") -> Step:
    return Step(observation=observation, prompt_ids=np.arange(2, dtype=np.int32), logprobs=np.zeros(1, np.float32),
                response_ids=np.zeros(1, np.int32), spans=[], action=action, valid=True, admissible=True, reward=0.0)


@pytest.mark.parametrize(("observations", "won", "expected"), [
    ("abc", True, {2: True}),
    ("abc", False, {}),
    ("abacad", True, {0: False, 2: False, 5: True}),
    ("abacad", False, {0: False, 2: False}),
    ("abab", True, {0: False, 1: False, 3: True}),
    ("aa", True, {0: False, 1: True}),
    ("", False, {}),
], ids=["won", "lost", "loops, won", "loops, lost", "two states twice", "one state", "no step"])
def test_labels_are_those_of_the_rule(observations, won, expected):
    """Bad: the observation comes again before a later action. Good: the last action of a won episode."""
    assert labels([step(each) for each in observations], won=won) == expected


def test_all_good_actions_are_asked_about_and_some_bad_ones():
    labelled = {0: False, 1: False, 4: False, 7: True}
    assert chosen(labelled, questions=9, seed=1) == [0, 1, 4, 7]
    drawn = {tuple(chosen(labelled, questions=1, seed=seed)) for seed in range(40)}
    assert drawn == {(0, 7), (1, 7), (4, 7)}
    assert chosen(labelled, questions=2, seed=5) == chosen(labelled, questions=2, seed=5)


@pytest.mark.parametrize(("text", "verdict"), [
    ("<action>good</action>", "good"), ("<think>It loops.</think><action> Bad </action>", "bad"),
    ("<think>good</think><action>bad</action>", "bad"), ("good", "good"), ("Bad.", "bad"),
    ("<action>bad</action> or <action>good</action>", "bad"),
    ("<action>good or bad</action>", ""), ("<think>good", ""), ("<action>go to desk 1</action>", ""), ("", ""),
    pytest.param("</think>" + "\n" * 200_000, "", id="a loop of line ends, once read for minutes"),
    ("</think>\n <action>\n bad\n</action>", "bad"),
])
def test_an_answer_says_one_word_or_nothing(text, verdict):
    assert read_verdict(text, stops=ENDS) == verdict


@pytest.mark.parametrize("stops", [ENDS, ("</search>", "</answer>"), ("\n",), ()])
@pytest.mark.parametrize("chat", [True, False])
def test_a_shown_answer_reads_as_what_it_says(stops, chat):
    for word in ("good", "bad"):
        assert read_verdict(shown_answer(word, chat=chat, stops=stops), stops=stops) == word


def test_a_question_follows_the_prompt_of_its_turn():
    assert question("Now: a desk\n", "look", chat=False, stops=ENDS) == "Now: a desk\nJudge: look\n"
    asked = question("You are at a desk.", "look", chat=True, stops=("</search>", "</answer>"))
    assert asked.startswith("You are at a desk.\n")
    assert "'look'" in asked
    assert asked.endswith("<answer>good</answer> or <answer>bad</answer>.")


class Text:
    """A prompt of observations; a question adds the action; an answer says what it says."""

    stop_ids = (1,)
    stop_texts = ()

    def ends(self, ids) -> bool:
        return int(ids[-1]) in self.stop_ids

    def prompt(self, first: Outcome, turns: list[Turn], now: Outcome, correction: str = "") -> list[int]:
        return list(map(ord, f"{len(turns)}{now.observation}{correction}"))

    def question(self, first: Outcome, turns: list[Turn], now: Outcome, action: str, correction: str = "") -> list[int]:
        return [*self.prompt(first, turns, now, correction), *map(ord, f"?{action}")]

    def parse(self, ids):
        return SimpleNamespace(action="".join(map(chr, ids)), valid=True, tag="", kept="")

    def verdict(self, ids):
        return "".join(map(chr, ids)).strip(".")


@dataclass
class Sampler:
    """Acts by "go", and judges by the next of `verdicts`."""

    verdicts: list[str]
    calls: list[dict] = field(default_factory=list)

    async def sample(self, prompt_ids, **options) -> Sample:
        asked = "".join(map(chr, prompt_ids))
        self.calls.append({"prompt": asked, **options})
        text = self.verdicts.pop(0) if "?" in asked else "go"
        spans = [VersionSpan(version=Version(incarnation=1, step=3 if "?" in asked else 4), start=0, end=len(text))]
        return Sample(ids=np.array(list(map(ord, text)), np.int32), logprobs=np.zeros(len(text), np.float32),
                      spans=spans, finished="stop")


def game(observations: str, *, won: bool):
    """Shows these observations, and ends after the last."""
    outcomes = iter([Result(observation=each, admissible_actions=[], digest=each) for each in observations])
    over = Result(observation="over", admissible_actions=[], done=True, won=won, reward=float(won), digest="over")

    async def following(*_):
        return next(outcomes, over)

    async def close():
        pass

    return SimpleNamespace(reset=following, step=following, close=close, replays=0)


async def play(sampler: Sampler, observations: str, *, won: bool, judges: bool = True, prompt_tokens: int = 9,
               **ticket):
    limits = Limits(prompt_tokens=prompt_tokens, response_tokens=9, reward_scale=10.0)
    judge = Judge(engine=sampler, text=Text(), settings=JudgeSection(questions=1, answers=2), limits=limits)
    env = SimpleNamespace(episode=lambda *_: game(observations, won=won))
    runner = EpisodeRunner(worker="w", engine=sampler, env=env, env_engine="own 1", text=Text(), limits=limits,
                           judge=judge if judges else None)
    return await runner.play(msgspec.structs.replace(TICKET, **ticket), 1)


async def test_a_won_episode_is_asked_about_a_bad_action_and_its_last_one():
    """Prompts are those of the turns; seeds depend on ticket, turn and answer; right answers earn 1."""
    sampler = Sampler(["bad", "good", "good.", "so so"])
    episode = await play(sampler, "aba", won=True)
    assert [(asked.turn, asked.good) for asked in episode.judged] == [(0, False), (2, True)]
    assert [[(answer.action, answer.valid, answer.reward) for answer in asked.answers] for asked in episode.judged] == [
        [("bad", True, 1.0), ("good", True, 0.0)], [("good", True, 1.0), ("so so", True, 0.0)]]
    calls = sampler.calls[3:]
    assert [call["prompt"] for call in calls] == ["0a?go", "0a?go", "2a?go", "2a?go"]
    assert [call["seed"] for call in calls] == [seed_for(11, "judge", turn, n) for turn in (0, 2) for n in (0, 1)]
    assert {call["temperature"] for call in calls} == {0.9}
    assert episode.oldest_step == 3  # judgements count: they are trained on
    assert decode_episode(encode_episode(episode)).judged[1].answers[0].prompt_ids.tolist() == list(map(ord, "2a?go"))


async def test_judging_changes_nothing_else():
    asked, plain = [await play(Sampler(["bad"] * 4), "aba", won=True, judges=judges) for judges in (True, False)]
    assert plain.judged == []
    left = [msgspec.structs.replace(each, judged=[], seconds=0.0) for each in (asked, plain)]
    assert encode_episode(left[0]) == encode_episode(left[1])


async def test_evaluations_and_episodes_without_labels_are_not_asked():
    for observations, won, ticket in (("aba", True, {"kind": "eval"}), ("abc", False, {})):
        sampler = Sampler([])
        assert (await play(sampler, observations, won=won, **ticket)).judged == []
        assert len(sampler.calls) == 3


async def test_a_question_that_does_not_fit_is_not_asked():
    """The prompts have two tokens, the questions five."""
    sampler = Sampler([])
    assert (await play(sampler, "aba", won=True, prompt_tokens=4)).judged == []
    assert len(sampler.calls) == 3
