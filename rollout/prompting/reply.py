"""The reply of an endpoint: the answer in it, and whether another request may get a better one.

Servers differ in what no evaluation needs. So counts of tokens may have any form, and an answer may come in parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from rollout.prompting.model import ContextFull
from services.config.secrets import HIDDEN
from services.errors import UserError
from services.files import NOT_JSON

OK = 200
AGAIN = (408, 409, 425, 429, 500, 502, 503, 504, 529)
"""Statuses that may pass, unless the conversation is too long. Every other one is the user's to fix."""
CUT = ("abort", "error")
"""Ends of answers that a fault of the server has cut, as vLLM and OpenRouter name them beside a status of 200."""
THOUGHTS = ("thinking", "reasoning")
"""Types of the parts of an answer that are no part of what the model says."""
TOLD = 300
"""Characters of a server's refusal that our error repeats."""
_TOO_LONG = (
    "context_length", "context length", "context size", "context window", "maximum context", "maximum model length",
    "prompt is too long", "too many tokens", "exceeds the maximum number of tokens", "`inputs` tokens +")
"""Words of refusals for a conversation that is too long: OpenAI, vLLM, llama.cpp, Anthropic, Gemini and TGI."""
_FIXES = {"temperature": "choose a temperature that the model takes, such as --temperature 1",
          "max_tokens": "set rollout.max_response_tokens to what the model takes"}
"""Names of fields in refusals, with the setting that each comes from."""
_Status = Annotated[int, msgspec.Meta(ge=400, lt=600)]
_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]


class RequestRefused(UserError):
    """The endpoint takes no such request, perhaps because of one field."""


class EndpointAnswer(msgspec.Struct):
    """The body of a reply of status 200."""

    error: Any = None
    """If a provider fails under way, OpenRouter answers 200 with the status inside."""

    @property
    def lacks(self) -> str:
        """Returns the name of the field that must be there and is not, or ""."""
        raise NotImplementedError

    @property
    def cut(self) -> str:
        """Returns what is wrong with an answer that a fault has cut, or ""."""
        return ""


class _Part(msgspec.Struct):
    type: str = "text"
    text: str | None = None


class _Message(msgspec.Struct):
    content: str | list[_Part] | None = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


class Completion(EndpointAnswer):
    """An answer of the model."""

    choices: list[_Choice] | None = None
    usage: Any = None

    @property
    def lacks(self) -> str:
        return "" if self.choices else "choices"

    @property
    def cut(self) -> str:
        end = self.choices[0].finish_reason if self.choices else None
        return f"finish_reason={end} of its answer" if end in CUT else ""

    @property
    def text(self) -> str:
        """Returns the text. Of parts it is that of all but thoughts, whatever a server calls them."""
        content = self.choices[0].message.content if self.choices else None
        if isinstance(content, list):
            return "".join(part.text or "" for part in content if part.type not in THOUGHTS)
        return content or ""

    def count(self, name: str) -> int | None:
        """Returns a number of tokens in `usage`, or None if it is not there or is no number of tokens."""
        return _number(self.usage, name, _Count)


class _Served(msgspec.Struct):
    id: str


class ServedModels(EndpointAnswer):
    """The models of an endpoint."""

    data: list[_Served] | None = None

    @property
    def lacks(self) -> str:
        return "data" if self.data is None else ""

    @property
    def names(self) -> list[str]:
        """Returns the names of the models."""
        return [each.id for each in self.data or ()]


Form = TypeVar("Form", Completion, ServedModels)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointReply(Generic[Form]):
    """A whole reply, whose body was decoded once."""

    status: int
    headers: Mapping[str, str]
    content: bytes
    answer: Form | None
    """None: its status or its body is wrong."""
    wrong: str
    """The fault of its body, or ""."""
    garbled: bool
    """Whether its body is no JSON."""

    @property
    def too_long(self) -> bool:
        """Returns whether the conversation is longer than the model reads. llama.cpp says so with a status of 500."""
        return self.status in (400, 413, 422, 500) and any(words in self._text().lower() for words in _TOO_LONG)

    @property
    def may_pass(self) -> bool:
        """Returns whether the same request may have another status later."""
        return self.status in AGAIN and not self.too_long

    @property
    def named(self) -> str:
        """Returns `status 429`, or the status of a body that is no JSON with its fault."""
        return f"status {self.status}" + (f", and no JSON ({self.wrong})" if self.garbled else "")

    def said(self, key: str) -> str:
        """Returns the start of the text on one line, without the key."""
        text = " ".join(self._text().split())
        return (text.replace(key, HIDDEN) if key else text)[:TOLD]

    def checked(self, key: str) -> Form:
        """Returns the answer. Raises ContextFull, RequestRefused for a field, and UserError for any other refusal."""
        if self.answer is not None:
            return self.answer
        said = self.said(key)
        if self.wrong and not self.garbled:
            raise UserError(f"the endpoint's answer is none of OpenAI's API ({self.wrong}): {said}",
                            "give the address of OpenAI's chat completions with --endpoint")
        if self.too_long:
            raise ContextFull(said)
        if self.status in (401, 403):
            raise UserError(f"the endpoint refuses the key (status {self.status}: {said})",
                            "set prompting.key_file or $GAGPO_ENDPOINT_KEY")
        what = f"the endpoint answers with {self.named}: {said or 'nothing'}"
        fix = "check --endpoint (it often ends in /v1) and --model"
        if self.status in (400, 422):
            raise RequestRefused(what, next((how for word, how in _FIXES.items() if word in said), fix))
        raise UserError(what, fix)

    def _text(self) -> str:
        return self.content.decode(errors="replace")


def read_reply(status: int, headers: Mapping[str, str], content: bytes, form: type[Form]) -> EndpointReply[Form]:
    """Returns a reply. An answer of status 200 with another status inside has that one."""
    answer, wrong, garbled = None, "", False
    if status == OK:
        try:
            answer = msgspec.json.decode(content, type=form)
        except NOT_JSON as error:
            wrong, garbled = str(error), not isinstance(error, msgspec.ValidationError)
    if answer is not None and (inside := _number(answer.error, "code", _Status)) is not None:
        answer, status = None, inside
    elif answer is not None and answer.lacks:
        answer, wrong = None, f"it has no `{answer.lacks}`"
    return EndpointReply(status=status, headers=headers, content=content, answer=answer, wrong=wrong, garbled=garbled)


def _number(record: object, name: str, kind: Any) -> int | None:
    """Returns a whole number of a record, also one that is a float or a text, or None if it is not there."""
    try:
        found = msgspec.convert(record, dict[str, Any]).get(name)
        return msgspec.convert(found, kind, strict=False)
    except msgspec.ValidationError:
        return None
