"""Two prompts for any environment of text. Each turn has a new prompt; response_format.py reads the answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from envservice.base import Outcome, ParsedAction, PromptTemplate, Turn, recent
from envservice.text.response_format import read_answer

_INSTRUCTION = (
    "\nReason first, within <think> </think> tags. Then give one action, within <action> </action> tags.")


class PlainTemplate:
    """A prompt of the first observation, the last steps, the current observation and its admissible actions."""

    def __init__(self, history: int, *, name: str, chat: bool) -> None:
        self.name = name
        self.chat = chat
        self.history = history

    def render(self, first: Outcome, turns: Sequence[Turn], now: Outcome) -> str:
        lines = [first.observation]
        if turns:
            shown = recent(turns, self.history)
            led_to = [*(turn.observation for turn in turns[1:]), now.observation][len(turns) - len(shown) :]
            lines.append(f"Steps so far: {len(turns)}")
            lines += [f"> {turn.action}\n{text}" for turn, text in zip(shown, led_to, strict=True)]
            lines += [] if shown else [now.observation]
        if now.admissible_actions:
            lines.append(f"Actions: {'; '.join(now.admissible_actions)}")
        return "\n".join([*lines, _INSTRUCTION if self.chat else ""])

    def parse(self, text: str) -> ParsedAction:
        return read_answer(text)


PLAIN: Mapping[str, Callable[[int], PromptTemplate]] = {
    "full": lambda history: PlainTemplate(history, name="full", chat=True),
    "compact": lambda history: PlainTemplate(history, name="compact", chat=False),
}
"""`full` is a user message with an instruction. `compact` is raw text without the instruction, for small models."""
