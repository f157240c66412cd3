"""Answers that begin with one kind of meta-reasoning, as RLVMR trains (arXiv 2507.22844), for all environments.

An answer is `<planning>...</planning><action>...</action>`, or the same with explore, reflection or monitor in place of
planning. Later prompts show the latest plan again. The form, the rule for a valid answer and the fields of the prompts
are those of the authors' code for ALFWorld (RLVMR in digitalhuman); the sentences are ours. For ScienceWorld that code
also takes answers with several blocks, in any order; here the one rule holds everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from envservice.base import ParsedAction, Turn, recent
from envservice.text.response_format import ACTION_END, closed, has_ideograph, read_answer

TAGS = ("planning", "explore", "reflection", "monitor")
"""Kinds of reasoning; the first one is the plan."""
SHOWN_ANSWERS = 3
"""Number of latest answers that a full prompt shows in whole."""
_ACTION = re.compile(r"<action>(.*?)</action>", re.IGNORECASE | re.DOTALL)
_BLOCKS = [re.compile(rf"<({tag})>(.*?)</{tag}>", re.IGNORECASE | re.DOTALL) for tag in TAGS]
"""One for each tag, so that a block within another one is found, too."""
_MARKUP = re.compile(r"<.*?>")
_THOUGHT = re.compile(r"<think>(.*?)</think>", re.DOTALL)


def read_meta(text: str) -> ParsedAction:
    """Reads an answer. Its action is empty if it does not have exactly one.

    The answer is valid if it has exactly one action, exactly one tagged block that is not empty and begins before the
    action, and no CJK ideograph; markup alone counts as empty. `tag` is the block's name in a valid answer; `kept` is
    the whole answer.
    """
    actions = list(_ACTION.finditer(closed(text, ACTION_END, re.IGNORECASE)))
    blocks = [block for place in range(len(TAGS)) for block in _found(place, text)]
    valid = (len(actions) == len(blocks) == 1 and blocks[0].start() < actions[0].start()
             and _says_something(blocks[0][2]) and not has_ideograph(text))
    return ParsedAction(action=actions[0][1].strip() if len(actions) == 1 else "", valid=valid, kept=text,
                        tag=blocks[0][1].lower() if valid else "")


def _found(place: int, text: str) -> Iterator[re.Match[str]]:
    return _BLOCKS[place].finditer(closed(text, f"</{TAGS[place]}>", re.IGNORECASE))


def _says_something(block: str) -> bool:
    """Whether there is more in a block than markup, which ends on its line."""
    return any(_MARKUP.sub("", head := closed(line, ">")).strip() or line[len(head):].strip()
               for line in block.split("\n"))


def plan_of(turns: Sequence[Turn]) -> str:
    """Returns the latest plan that is not empty, or ""."""
    plans = (match[2].strip() for turn in turns for match in _found(0, turn.kept))
    return next(reversed([plan for plan in plans if plan]), "")


def latest_answers(turns: Sequence[Turn], look: Callable[[str], str] = str) -> str:
    """Returns the lines of the last answers in whole, each after its observation as `look` shows it."""
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
