"""Prompt correction: which critiques are summed up, what the question and the prompts say, and what is kept."""

from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from byte_tokenizer import byte_tokenizer

from envservice.base import Outcome
from rollout.engine.sample import Sample
from rollout.episode import EpisodeRunner, Limits
from rollout.judge import CRITIQUES, Corrector
from rollout.judge_prompt import corrected, mistakes_question, split_answer
from rollout.prompt_renderer import PromptRenderer
from services.records import JudgedAction, Step, Ticket
from services.seeds import seed_for

TICKET = Ticket(group="train/00000001", k=2, size=4, task="toy/train/01", seed=11, kind="train", temperature=0.9,
                max_steps=9)
ENDS = ("</action>",)
NOW = Outcome(observation="You are at a desk.", admissible_actions=[])


class Template:
    """Shows the observation alone."""

    name, history = "bare", 0

    def __init__(self, *, chat: bool = False) -> None:
        self.chat = chat

    def render(self, first, turns, now) -> str:
        return f"{now.observation}\n"

    def parse(self, text):
        raise NotImplementedError


def text() -> PromptRenderer:
    return PromptRenderer(template=Template(), tokenizer=byte_tokenizer(), stops=ENDS)


def answer(text: str, *, right: bool) -> Step:
    return Step(observation="", prompt_ids=np.zeros(1, np.int32), logprobs=np.zeros(len(text), np.float32), spans=[],
                response_ids=ids(text), action="bad", valid=True, admissible=True, reward=float(right))


def ids(text: str) -> np.ndarray:
    return np.array(byte_tokenizer().encode(text, add_special_tokens=False), np.int32)


class Sampler:
    """Answers every prompt by `said`, and remembers the prompts."""

    def __init__(self, text: str) -> None:
        self.said, self.calls = text, []

    async def sample(self, prompt_ids, **options) -> Sample:
        self.calls.append({"prompt": byte_tokenizer().decode(prompt_ids), **options})
        return Sample(ids=ids(self.said), logprobs=np.zeros(1, np.float32), spans=[], finished="stop")


def corrector(sampler: Sampler, *, room: int = 10_000) -> tuple[Corrector, list[str]]:
    kept: list[str] = []

    async def keep(correction: str) -> None:
        kept.append(correction)

    limits = Limits(prompt_tokens=room, response_tokens=40, reward_scale=1.0)
    return Corrector(engine=sampler, text=text(), limits=limits, keep=keep), kept


def judged(count: int, *, good: bool = False, right: bool = True) -> JudgedAction:
    return JudgedAction(turn=0, good=good, answers=[answer("<think>It loops.</think>bad", right=right)] * count)


STEPS = [msgspec.structs.replace(answer("", right=False), action="go to desk 1")]


async def test_the_policy_sums_up_its_right_critiques_of_bad_actions():
    """15 are too few. Wrong answers, and those about good actions, are no critiques. The 16th makes the summary."""
    sampler = Sampler("<think>Loops.</think><action>Do not\n go back.</action>")
    made, kept = corrector(sampler)
    await made.add(TICKET, STEPS, [judged(CRITIQUES - 1), judged(8, good=True), judged(8, right=False)])
    assert (sampler.calls, kept) == ([], [])
    await made.add(TICKET, STEPS, [judged(1)])
    (call,) = sampler.calls
    assert kept == ["Do not go back."]
    assert call["prompt"] == f"Mistakes: {'; '.join(['go to desk 1'] * CRITIQUES)}\n"
    assert (call["seed"], call["temperature"], call["max_tokens"]) == (seed_for(11, "correction"), 0.9, 40)
    await made.add(TICKET, STEPS, [judged(CRITIQUES - 1)])
    assert len(sampler.calls) == 1  # each critique is summed up once


async def test_the_oldest_critiques_are_left_out_if_the_question_has_no_room():
    sampler = Sampler("<action>Stop.</action>")
    made, _ = corrector(sampler, room=len("Mistakes: go to desk 1; go to desk 1\n") + 1)
    await made.add(TICKET, STEPS, [judged(CRITIQUES)])
    assert sampler.calls[0]["prompt"] == "Mistakes: go to desk 1; go to desk 1\n"
    made, kept = corrector(sampler, room=9)
    await made.add(TICKET, STEPS, [judged(CRITIQUES)])
    assert (len(sampler.calls), kept) == (1, [])


@pytest.mark.parametrize("text", ["", "<think>I loop, and", "<think>I loop.</think>", "<action></action>"])
async def test_an_answer_without_instructions_replaces_none(text: str):
    made, kept = corrector(Sampler(text))
    await made.add(TICKET, STEPS, [judged(CRITIQUES)])
    assert kept == []


def test_questions_say_which_actions_were_bad_and_why():
    shown = mistakes_question([("look", "It loops."), ("wait", "")], chat=True, stops=ENDS)
    assert shown.startswith("You judged these actions of yours to be bad:\n- 'look': It loops.\n- 'wait'\n")
    assert shown.endswith("Then answer <action>your instructions</action>.")


@pytest.mark.parametrize(("answer", "thought", "text"), [
    ("<think>It\nloops.</think> <action>Go on.</action> more", "It loops.", "Go on."),
    ("Go on.</action>", "", "Go on."), ("<think>cut", "cut", ""),
    ("\n <think>\na</think>b", "a", "b"), ("<think>a</think>", "a", ""),
])
def test_an_answer_has_a_thought_and_what_it_says(answer: str, thought: str, text: str):
    assert split_answer(answer, stops=ENDS) == (thought, text)


def test_prompts_carry_the_instructions_at_their_end():
    assert corrected("Now: a desk\n", "look less", chat=False) == "Now: a desk\nAvoid: look less\n"
    shown = corrected("You are at a desk.", "Look less.", chat=True)
    assert shown == "You are at a desk.\n\nAvoid your usual mistakes: Look less."
    assert corrected("Now: a desk\n", "", chat=False) == "Now: a desk\n"


@pytest.mark.parametrize(("room", "shown"), [(100, "You are at a desk.\nAvoid: look\n"), (20, "You are at a desk.\n")])
def test_a_prompt_without_room_for_the_instructions_goes_without_them(room: int, shown: str):
    """The observation alone takes 19 tokens, with the instructions 32."""
    limits = Limits(prompt_tokens=room, response_tokens=9, reward_scale=1.0)
    runner = EpisodeRunner(worker="w", engine=Sampler(""), env=SimpleNamespace(), env_engine="own 1", text=text(),
                           limits=limits)
    ticket = msgspec.structs.replace(TICKET, correction="look")
    assert byte_tokenizer().decode(runner._prompt(ticket, NOW, [], NOW)) == shown
    assert byte_tokenizer().decode(runner._prompt(TICKET, NOW, [], NOW)) == "You are at a desk.\n"
