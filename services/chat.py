"""Conversations as the text that a model reads: its own chat template, the same for the sampler and the cold start."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from services.config.tree import ModelSection
from services.errors import UserError
from services.files import Damaged, read_bounded

# Control tokens in text that others wrote: they are read as the characters that they are.
#
# A page with `<|im_end|>` in it would end the user's turn, and the text behind it could forge the turns that follow. So
# each control token in a message or a tool is cut in two before the chat template sees it, and a prompt is tokenized in
# the parts between the cuts. A prompt without such a token is tokenized as a whole.
#
# Not covered: marks of a template that are no tokens, such as Llama 2's `[INST]`, and prompts of raw text, which have
# no turns and may write control tokens themselves.

CUT = "\ufdd0"
"""Stands where a token is cut. Unicode gives this code point to programs, and never to a character."""
_MARKS = ("<>", "[]")
"""First and last character of a mark."""


def control_tokens(tokenizer: Any, tags: Collection[str], written: Iterable[int] = ()) -> re.Pattern[str] | None:
    """Returns a pattern of the control tokens of a tokenizer, or None if it has none.

    They are its special tokens, and those of `written` (the tokens of a conversation in its template) that look like
    marks: the marks of DeepSeek's turns are not special. `tags` are no control tokens: prompts name them.
    """
    added = tokenizer.added_tokens_decoder
    control = {token.content for token in added.values() if token.special}
    control |= {added[i].content for i in written
                if i in added and added[i].content[0] + added[i].content[-1] in _MARKS}
    # A longer token comes first, as in the tokenizer. One character cannot be cut.
    chosen = sorted((text for text in control - set(tags) if len(text) > 1), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, chosen))) if chosen else None


def cut(value: Any, control: re.Pattern[str] | None) -> Any:
    """Returns a text, or a message or tool with all texts in it, keys too, with each control token cut in two."""
    if control is None:
        return value
    if isinstance(value, str):
        return control.sub(_in_two, value)
    if isinstance(value, Mapping):
        return {cut(key, control): cut(part, control) for key, part in cast("Mapping[str, Any]", value).items()}
    return [cut(part, control) for part in cast("list[Any]", value)] if isinstance(value, list | tuple) else value


def _in_two(match: re.Match[str]) -> str:
    return f"{match[0][0]}{CUT}{match[0][1:]}"


def tokens(tokenizer: Any, text: str) -> list[int]:
    """Returns the tokens of a prompt whose control tokens were cut where others wrote them."""
    return [i for part in text.split(CUT) for i in tokenizer.encode(part, add_special_tokens=False)]


THINK, THINK_END = "<think>", "</think>"
_MARK = "~gagpo-message-{}~"
"""Text that is put into a message, to see whether the template writes the message."""
Message = Mapping[str, Any]
"""One message in OpenAI's form: role, content, and what tools need."""


class ChatRefused(Exception):
    """A chat template cannot write these messages. The text is the reason."""


class TokenUnknown(ChatRefused):
    """A text holds a token of the tokenizer that the model has no embedding of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFormat:
    """A tokenizer's chat template with a run's settings for it."""

    tokenizer: Any
    system: str | None = None
    """Comes before every conversation that does not begin with a system message of its own."""
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Variables of the template, such as enable_thinking."""
    tags: frozenset[str] = frozenset((THINK, THINK_END))
    """Texts that stay tokens in messages if they are special ones: prompts name them, and answers hold them."""
    _complete: set[tuple[object, ...]] = field(default_factory=set[tuple[object, ...]], init=False, compare=False)
    """Places of messages that the template was seen to write (_places), so that it is looked at once."""
    _control: list[re.Pattern[str] | None] = field(default_factory=list["re.Pattern[str] | None"], init=False,
                                                   compare=False)
    """The pattern of the control tokens, once it is known."""

    def text(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None, *,
             answering: bool = True) -> str:
        """Returns the conversation as text for services.chat.tokens, which reads control tokens in messages
        as plain text. `answering`: up to where the model's next answer begins.

        Raises ChatRefused, also for a template that leaves out the tools or a message: the model would not read them.
        """
        for number, tool in enumerate(tools or (), 1):
            function: object = tool.get("function")
            name: object = cast("Message", function).get("name") if isinstance(function, Mapping) else None
            if not (isinstance(name, str) and name):
                raise ChatRefused(f"tool {number} has no function.name: write {{'type': 'function', 'function': "
                                  "{'name': ..., 'description': ..., 'parameters': ...}}")
        control = self._control_tokens()
        conversation, tools = [cut(message, control) for message in messages], cut(tools, control)
        if self.system is not None and (not conversation or conversation[0]["role"] != "system"):
            conversation.insert(0, {"role": "system", "content": self.system})
        written = self._written(conversation, tools, answering=answering)
        self._check_messages(conversation, tools)
        names: list[str] = [tool["function"]["name"] for tool in tools or ()]
        if hidden := [name for name in names if name not in written]:
            raise ChatRefused(f"it leaves out the tools {', '.join(hidden)}: describe them in your prompt, "
                              "or set model.chat_template to a template that shows them")
        return written

    def _written(self, conversation: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None, *,
                 answering: bool) -> str:
        from jinja2 import TemplateSyntaxError

        try:
            return str(self.tokenizer.apply_chat_template(
                list(conversation), tools=list(tools) if tools else None, tokenize=False,
                add_generation_prompt=answering, **self.arguments))
        except TemplateSyntaxError as error:
            raise ChatRefused(f"line {error.lineno} is no Jinja: {error.message}") from error
        except Exception as error:  # a template is a program of others: it may divide by zero or fill the memory
            raise ChatRefused(str(error) or type(error).__name__) from error

    def _control_tokens(self) -> re.Pattern[str] | None:
        if not self._control:
            try:
                turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "x"}]
                written = self.tokenizer.encode(self._written(turns, None, answering=True), add_special_tokens=False)
            except ChatRefused:  # the template will refuse the messages too, or it is for prompts of another form
                written = []
            self._control.append(control_tokens(self.tokenizer, self.tags, written))
        return self._control[0]

    def _check_messages(self, conversation: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None) -> None:
        """Raises ChatRefused for a message that leaves no trace: Phi's template drops calls and results of tools.

        Every template writes what users say, and any template may leave out old thoughts of the assistant.
        """
        looked = {place: _MARK.format(place) for place, message in enumerate(conversation) if _called(message) or (
                  message["role"] not in ("user", "assistant") and isinstance(message.get("content"), str))}
        places = {key for place, key in enumerate(_places(conversation, tools)) if place in looked}
        if places <= self._complete:
            return
        marked = self._written([_marked(message, looked[place]) if place in looked else message
                                for place, message in enumerate(conversation)], tools, answering=False)
        for place, mark in looked.items():
            if mark not in marked and _called(conversation[place]):
                raise ChatRefused(f"it leaves out the calls of tools in message {place + 1}: write them in its "
                                  "content, or set model.chat_template to a template that shows them")
            if mark not in marked:
                raise ChatRefused(f"it leaves out message {place + 1}, of the role {conversation[place]['role']}: say "
                                  "it in a user's message, or set model.chat_template to a template that shows it")
        self._complete.update(places)

    def prompt(self, text: str) -> str:
        """Returns one user message as the model reads it."""
        return self.text([{"role": "user", "content": text}])

    def opening(self) -> str:
        """Returns the thought that the template itself opens before every answer, from its tag on, or "".

        Reasoning models read `<think>` at the end of their prompt, or `<think></think>` if they shall not think. The
        answer alone would lack the tag.
        """
        question = _MARK.format("question")
        begins = self.prompt(question).rpartition(question)[2]  # a system prompt before it may name the tag
        return begins[begins.index(THINK):] if THINK in begins else ""

    def end(self, named: Collection[int]) -> tuple[int, ...]:
        """Returns the tokens that the template writes behind an answer, up to the one that ends it, or () if it writes
        none. `named`: the ends that the tokenizer and the model name.

        The end is what stands behind every answer, the last one and one in the history. Phi writes its end of text
        behind the last `<|end|>` alone. Where the two share no token the last answer counts: GPT-OSS ends it by
        `<|return|>`. GLM writes nothing behind it, and names the next `<|user|>` as an end.
        """
        if not self.tokenizer.chat_template:
            return ()
        special = {i for i, token in self.tokenizer.added_tokens_decoder.items()
                   if token.special and token.content not in self.tags} | set(named)
        try:
            last, followed = self._behind_answer(), self._behind_answer({"role": "user", "content": "x"})
        except ChatRefused:  # such a template cannot be used, and check_chat says so where it is
            return ()
        shared = next((place for place, (one, other) in enumerate(zip(last, followed, strict=False)) if one != other),
                      min(len(last), len(followed)))
        if places := [place for place in range(shared) if last[place] in special]:
            return tuple(last[: places[-1] + 1])
        return tuple([i for i in last if i in special][:1] or [i for i in followed[:1] if i in named])

    def _behind_answer(self, *following: Message) -> list[int]:
        """Returns the tokens that the template writes behind an answer, with these messages after it."""
        mark = _MARK.format("answer")
        written = self.text([{"role": "user", "content": "x"}, {"role": "assistant", "content": mark}, *following],
                            answering=False)
        return list(self.tokenizer.encode(written.partition(mark)[2], add_special_tokens=False))


def _called(message: Message) -> bool | None:
    """Returns whether a message of the assistant calls tools, or None for one of another role."""
    return bool(message.get("tool_calls")) if message["role"] == "assistant" else None


def _places(conversation: Sequence[Message], tools: object) -> list[tuple[object, ...]]:
    """Returns for each message what decides whether a template writes it: its neighbours, whether its role comes
    before and after, whether a question follows, and the last message. Mistral's leaves the system message out if the
    last is no question. Entire sequences of roles would be no key: an agent with tools makes new ones for ever."""
    kinds = [(message["role"], _called(message), not message.get("content")) for message in conversation]
    last = {role: place for place, (role, *_) in enumerate(kinds)}
    earlier, keys = set[object](), list[tuple[object, ...]]()
    for place, (before, kind, after) in enumerate(zip([None, *kinds], kinds, [*kinds[1:], None], strict=False)):
        role = kind[0]
        keys.append((bool(tools), before, kind, after, role in earlier, place < last[role],
                     place < last.get("user", -1), kinds[-1]))
        earlier.add(role)
    return keys


def _marked(message: Message, mark: str) -> Message:
    """Returns the message with a mark in its content, or in the name of its first call if it calls tools."""
    if not _called(message):
        return {**message, "content": message["content"] + mark}
    first, *others = message["tool_calls"]
    named = {**first["function"], "name": first["function"]["name"] + mark}
    return {**message, "tool_calls": [{**first, "function": named}, *others]}


def check_chat(chat: ChatFormat, folder: Path) -> None:
    """Raises UserError if the tokenizer of the model in `folder` has no chat template, or one that fails or leaves out
    what users say, as any text file does that is no template."""
    if not chat.tokenizer.chat_template:
        raise UserError(f"the tokenizer in {folder} has no chat template",
                        "set model.chat_template to a Jinja file that has one, or env.prompt=compact without an agent")
    asked = _MARK.format("asked")
    try:
        chat.opening()
        if asked not in chat.prompt(asked):
            raise UserError(f"the chat template of {folder} leaves out the user's message",
                            "set model.chat_template to a Jinja template that shows it")
    except ChatRefused as error:
        refused = "a system prompt" if chat.system is not None else "a user's message"
        raise UserError(f"the chat template of {folder} refuses {refused} ({error})",
                        "look at the template, model.system_prompt and model.chat_template_kwargs") from None


def chat_format(tokenizer: Any, model: ModelSection, tags: Collection[str] = (THINK, THINK_END)) -> ChatFormat:
    """Returns the format that a run's settings ask for. `tags`: as in ChatFormat.

    Raises UserError if the template's file cannot be read.
    """
    if model.chat_template is not None:
        try:
            tokenizer.chat_template = read_bounded(model.chat_template).decode().replace("\r\n", "\n")
        except (OSError, UnicodeDecodeError, Damaged) as error:
            raise UserError(f"model.chat_template={model.chat_template} cannot be read ({error})",
                            "name a text file with a Jinja template") from None
    return ChatFormat(tokenizer=tokenizer, system=model.system_prompt, arguments=model.chat_template_kwargs,
                      tags=frozenset(tags))
