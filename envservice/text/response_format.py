"""The response formats of policies: a thought, then an action, each in its tags.

    <think>...</think><action>...</action>          the format of the paper's pipeline
    <planning>...</planning><action>...</action>    RLVMR's (arXiv 2507.22844): the tag names the kind of reasoning

Later prompts of RLVMR show the latest plan again. The form, the rule for a valid answer and the fields of the prompts
are those of the authors' code for ALFWorld (RLVMR in digitalhuman); the sentences are ours. For ScienceWorld that code
also takes answers with several blocks, in any order; here the one rule holds everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from envservice.base import Outcome, ParsedAction, Turn, recent
from services.chat import THINK, THINK_END

ACTION_END = "</action>"
_OPENS, _CLOSES = (re.compile(tag, re.IGNORECASE | re.ASCII) for tag in ("<action>", ACTION_END))
_CJK = re.compile("[\u4e00-\u9fff]")


def has_ideograph(text: str) -> bool:
    """Returns whether a CJK ideograph (U+4E00 to U+9FFF) occurs, which makes an answer invalid."""
    return _CJK.search(text) is not None


def closed(text: str, end: str, flags: re.RegexFlag = re.NOFLAG) -> str:
    """Returns a text up to the last closing tag `end`, "" without one. No pattern `<tag>(.*?)</tag>` matches after it.

    Without a closing tag such a pattern reads to the end from each opening tag, in quadratic time: a model that is
    stuck repeats the tag up to the end of its answer.
    """
    ends = [match.end() for match in re.finditer(re.escape(end), text, flags)]
    return text[:ends[-1]] if ends else ""


def answer(thought: str, action: str) -> str:
    """Writes a well-formed answer."""
    return f"<think>{thought}</think><action>{action}{ACTION_END}"


def without_thought(text: str) -> str:
    """Returns the text of an answer after its thought, or "" if the thought does not end.

    The tag that opens the thought may be missing: some chat templates write it at the end of the prompt.
    """
    return text.rpartition(THINK_END)[2].partition(THINK)[0].strip()


class Thought(NamedTuple):
    """The thought that an answer begins with, in dialects that show it apart from the text.

        <think>hm</think>go    Thought("hm", closed=True), "go"
        <think>hm              Thought("hm", closed=False), ""
        go                     None, "go"

    Thought and rest joined are exactly the answer's characters. So if an agent sends an answer back as it came, the
    next call continues the same row of tokens.
    """

    text: str
    """The text between the tags, with its white space."""
    closed: bool = True
    """Whether there is a closing tag. A thought that was cut has none."""

    def __str__(self) -> str:
        return THINK + self.text + THINK_END * self.closed


def split_thought(content: str) -> tuple[Thought | None, str]:
    """Returns the thought that a content begins with, and the rest."""
    if not content.startswith(THINK):
        return None, content
    inside, end, rest = content.removeprefix(THINK).partition(THINK_END)
    return Thought(inside, bool(end)), rest


def read_answer(text: str, *, tail: int = 30) -> ParsedAction:
    """Turns an answer into the environment's action, as the model wrote it.

    The action is the text between the first `<action>` and the first `</action>`, in any case of the tags. If a tag is
    missing, it is the answer's last `tail` characters. The answer is valid if both action tags (in any case) and both
    think tags (in lower case) occur, and no CJK ideograph (U+4E00 to U+9FFF) does. The order of the tags does not
    matter, nor whether the action is admissible. The environment receives the action of an invalid answer too.
    """
    opens, closes = _OPENS.search(text), _CLOSES.search(text)
    if opens is None or closes is None:
        return ParsedAction(action=text[-tail:], valid=False)
    thought = "<think>" in text and "</think>" in text
    return ParsedAction(action=text[opens.end() : closes.start()].strip(), valid=thought and not has_ideograph(text))


def read_lowered(text: str, *, tail: int = 30) -> ParsedAction:
    """Reads an answer as read_answer does, and puts the action in lower case.

    The published pipelines of ALFWorld, WebShop and ScienceWorld do that: their games know only lower-case actions.
    """
    parsed = read_answer(text, tail=tail)
    return replace(parsed, action=parsed.action.lower())


REASONING_TAGS = ("planning", "explore", "reflection", "monitor")
"""Kinds of reasoning. The first one is the plan."""
SHOWN_ANSWERS = 3
"""Number of the latest answers that a full prompt repeats."""
_ACTION = re.compile(r"<action>(.*?)</action>", re.IGNORECASE | re.DOTALL)
_BLOCKS = [re.compile(rf"<({tag})>(.*?)</{tag}>", re.IGNORECASE | re.DOTALL) for tag in REASONING_TAGS]
"""A pattern for each tag, so that a block within another one counts too."""
_MARKUP = re.compile(r"<.*?>")
_THOUGHT = re.compile(r"<think>(.*?)</think>", re.DOTALL)


def read_meta(text: str) -> ParsedAction:
    """Reads an answer with a tag. The action is empty unless the answer has exactly one.

    The answer is valid if it has exactly one action and exactly one tagged block, the block is not empty and begins
    before the action, and there is no CJK ideograph. A block of markup alone counts as empty. `tag` is the block's name
    in a valid answer, and `kept` is the entire answer.
    """
    actions = list(_ACTION.finditer(closed(text, ACTION_END, re.IGNORECASE)))
    blocks = [block for place in range(len(REASONING_TAGS)) for block in _blocks(place, text)]
    valid = (len(actions) == len(blocks) == 1 and blocks[0].start() < actions[0].start()
             and _has_text(blocks[0][2]) and not has_ideograph(text))
    return ParsedAction(action=actions[0][1].strip() if len(actions) == 1 else "", valid=valid, kept=text,
                        tag=blocks[0][1].lower() if valid else "")


def _blocks(place: int, text: str) -> Iterator[re.Match[str]]:
    return _BLOCKS[place].finditer(closed(text, f"</{REASONING_TAGS[place]}>", re.IGNORECASE))


def _has_text(block: str) -> bool:
    """Returns whether a block has text outside of markup. Markup never spans lines."""
    return any(_MARKUP.sub("", head := closed(line, ">")).strip() or line[len(head):].strip()
               for line in block.split("\n"))


def plan_of(turns: Sequence[Turn]) -> str:
    """Returns the latest plan that is not empty, or ""."""
    plans = (match[2].strip() for turn in turns for match in _blocks(0, turn.kept))
    return next(reversed([plan for plan in plans if plan]), "")


def latest_answers(turns: Sequence[Turn], look: Callable[[str], str] = str) -> str:
    """Returns the lines that repeat the latest answers, each after its observation as `look` shows it."""
    latest = recent(turns, SHOWN_ANSWERS)
    answers = "\n".join(f"[Observation {step}: '{look(turn.observation)}', answer: '{turn.kept}']"
                        for step, turn in enumerate(latest, start=len(turns) - len(latest) + 1))
    return f"Your latest answers were:\n{answers}"


def plan_line(turns: Sequence[Turn]) -> str:
    """Returns the line that shows the plan again."""
    return f"Your plan so far is: {plan_of(turns) or 'No plan.'} Keep to it."


def tagged(answer: str, turns: Sequence[Turn], *, goal: str, explores: tuple[str, ...]) -> str:
    """Rewrites a scripted player's answer with a tag.

    The first turn plans: its thought, then `goal`. A turn after an inadmissible action reflects, one with a new action
    that begins with one of `explores` explores, and any other monitors.
    """
    action, match = read_answer(answer).action, _THOUGHT.search(answer)
    thought = match[1] if match else action
    if not turns:
        tag, thought = "planning", f"{thought}, then {goal}"
    elif not turns[-1].admissible:
        tag, thought = "reflection", f"{turns[-1].action} failed, {thought}"
    elif action.startswith(explores) and all(turn.action != action for turn in turns):
        tag = "explore"
    else:
        tag = "monitor"
    return f"<{tag}>{thought}</{tag}><action>{action}{ACTION_END}"


class TaggedAnswers:
    """The part of a prompt template that reads answers with a tag, and rewrites a scripted player's in that form."""

    explores: tuple[str, ...]
    """First words of the actions that explore."""

    def goal(self, first: Outcome) -> str:
        """Returns the goal that the first plan ends with."""
        raise NotImplementedError

    def parse(self, text: str) -> ParsedAction:
        return read_meta(text)

    def rewrite(self, answer: str, first: Outcome, turns: Sequence[Turn]) -> str:
        return tagged(answer, turns, goal=self.goal(first), explores=self.explores)


def instruction(*, failed: str, choose: str) -> str:
    """Returns the end of a full prompt: the tags and what each is for. `failed` is the environment's text for an action
    that failed, and `choose` the sentence that asks for an action."""
    return (
        "It is your turn to act.\n"
        "First reason in one short sentence, within exactly one of these pairs of tags:\n"
        "<planning> </planning>: lay out all steps of the whole task, as step 1, step 2 and so on. Use it at the "
        "start, or when the plan turned out wrong.\n"
        "<explore> </explore>: name places, objects or actions that were not tried yet. Use it when something is "
        "missing or unexpected.\n"
        f"<reflection> </reflection>: say why the last actions failed and what to do instead. '{failed}' means that "
        "an action failed.\n"
        "<monitor> </monitor>: recall the current part of the plan and name the next action. Use it when all goes as "
        f"planned.\n{choose}")
