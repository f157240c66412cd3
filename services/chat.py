"""Conversations as the text that a model reads: its own chat template, the same for the sampler and the cold start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from services.config.tree import ModelSection
from services.errors import UserError

THINK, THINK_END = "<think>", "</think>"
Message = Mapping[str, Any]
"""One message in OpenAI's form: role, content, and what tools need."""


class ChatRefused(Exception):
    """A chat template cannot write these messages, for the reason that this says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFormat:
    """A tokenizer's chat template with a run's settings for it."""

    tokenizer: Any
    system: str | None = None
    """Comes before every conversation that does not begin with a system message of its own."""
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Variables of the template, such as enable_thinking."""

    def text(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None, *,
             answering: bool = True) -> str:
        """Returns the conversation as text. `answering`: up to where the model's next answer begins.

        Raises ChatRefused, also for a template that leaves the tools out: the model could not call what it never saw.
        """
        from jinja2 import TemplateError

        told = list(messages)
        if self.system is not None and (not told or told[0]["role"] != "system"):
            told.insert(0, {"role": "system", "content": self.system})
        try:
            written = str(self.tokenizer.apply_chat_template(
                told, tools=list(tools) if tools else None, tokenize=False, add_generation_prompt=answering,
                **self.arguments))
        except (TemplateError, TypeError, RecursionError) as error:
            raise ChatRefused(str(error) or type(error).__name__) from error
        names = [str(tool.get("function", {}).get("name", "")) for tool in tools or ()]
        if hidden := [name for name in names if name not in written]:
            raise ChatRefused(f"it leaves out the tools {', '.join(hidden)}: describe them in your prompt, "
                              "or set model.chat_template to a template that shows them")
        return written

    def prompt(self, text: str) -> str:
        """Returns one user message as the model reads it."""
        return self.text([{"role": "user", "content": text}])

    def opening(self) -> str:
        """Returns the thought that the template itself opens before every answer, from its tag on, or "".

        Reasoning models read `<think>` at the end of their prompt, or `<think></think>` if they shall not think. The
        answer alone would lack the tag.
        """
        question = [{"role": "user", "content": "x"}]
        whole, before = self.text(question), self.text(question, answering=False)
        begins = whole.removeprefix(before)
        return begins[begins.index(THINK):] if THINK in begins else ""


def check_chat(chat: ChatFormat, folder: Path) -> None:
    """Raises UserError if the tokenizer of the model in `folder` has no chat template, or one that fails."""
    if not chat.tokenizer.chat_template:
        raise UserError(f"the tokenizer in {folder} has no chat template",
                        "use env.prompt=compact, or set model.chat_template to a Jinja file that has one")
    try:
        chat.opening()
    except ChatRefused as error:
        refused = "a system prompt" if chat.system is not None else "a user's message"
        raise UserError(f"the chat template of {folder} refuses {refused} ({error})",
                        "look at model.system_prompt and model.chat_template_kwargs") from None


def chat_format(tokenizer: Any, model: ModelSection) -> ChatFormat:
    """Returns the format that a run's settings ask for. Raises UserError if the template's file cannot be read."""
    if model.chat_template is not None:
        try:
            tokenizer.chat_template = model.chat_template.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"model.chat_template={model.chat_template} cannot be read ({error})",
                            "name a text file with a Jinja template") from None
    return ChatFormat(tokenizer=tokenizer, system=model.system_prompt, arguments=model.chat_template_kwargs)
