"""A client of any server that speaks OpenAI's chat completions. It obeys rate limits.

A request is repeated after a status of AGAIN (429, 503, ...), a lost connection, a request that takes too long, and an
answer that a fault of the server has cut. The pause is Retry-After if the server sends one above zero, else 1, 2, 4 ...
60 s. All calls wait meanwhile, not only the one that was refused.

The server may be anybody's: its answers are bounded in time and size, and messages that repeat them hide our key.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Annotated, Any, Generic, TypeVar

import httpx
import msgspec

from rollout.prompting.model import ContextFull, ModelAnswer
from services.amounts import rounded
from services.chat import Message
from services.config.secrets import HIDDEN
from services.config.sections import PromptingSection
from services.errors import UserError
from services.files import NOT_JSON
from services.http.bounded import UNLIMITED
from services.process.addresses import parts_of

# The reply of an endpoint: the answer in it, and whether another request may get a better one.
#
# Servers differ in fields that no evaluation needs. So counts of tokens may have any form, and answers may have parts.

OK = 200
AGAIN = (408, 409, 425, 429, 500, 502, 503, 504, 529)
"""Statuses that may pass, unless the conversation is too long. Every other one is the user's to fix."""
CUT = ("abort", "error")
"""Ends of answers that a fault of the server has cut, as vLLM and OpenRouter name them with a status of 200."""
THOUGHTS = ("thinking", "reasoning")
"""Types of the parts of an answer that are not its text."""
REPEATED = 300
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
    """The endpoint refuses the request with status 400 or 422, perhaps because of one field."""


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
        """Returns the fault that has cut the answer, or ""."""
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
        """Returns the text. Content in parts is joined without its thoughts; any other type of part counts as text."""
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
    """A complete reply, whose body was decoded once."""

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
        """Returns whether the conversation is longer than the model reads. llama.cpp then answers with status 500."""
        return self.status in (400, 413, 422, 500) and any(words in self._text().lower() for words in _TOO_LONG)

    @property
    def may_pass(self) -> bool:
        """Returns whether the same request may have another status later."""
        return self.status in AGAIN and not self.too_long

    @property
    def named(self) -> str:
        """Returns `status 429`, for example, with the fault of a body that is no JSON."""
        return f"status {self.status}" + (f", and no JSON ({self.wrong})" if self.garbled else "")

    def excerpt(self, key: str) -> str:
        """Returns the start of the text on one line, without the key."""
        text = " ".join(self._text().split())
        return (text.replace(key, HIDDEN) if key else text)[:REPEATED]

    def checked(self, key: str) -> Form:
        """Returns the answer. Raises ContextFull, RequestRefused, and UserError for any other wrong reply."""
        if self.answer is not None:
            return self.answer
        message = self.excerpt(key)
        if self.wrong and not self.garbled:
            raise UserError(f"the endpoint's answer is none of OpenAI's API ({self.wrong}): {message}",
                            "give the address of OpenAI's chat completions with --endpoint")
        if self.too_long:
            raise ContextFull(message)
        if self.status in (401, 403):
            raise UserError(f"the endpoint refuses the key (status {self.status}: {message})",
                            "set prompting.key_file or $GAGPO_ENDPOINT_KEY")
        problem = f"the endpoint answers with {self.named}: {message or 'nothing'}"
        fix = "check --endpoint (it often ends in /v1) and --model"
        if self.status in (400, 422):
            raise RequestRefused(problem, next((how for word, how in _FIXES.items() if word in message), fix))
        raise UserError(problem, fix)

    def _text(self) -> str:
        return self.content.decode(errors="replace")


def read_reply(status: int, headers: Mapping[str, str], content: bytes, form: type[Form]) -> EndpointReply[Form]:
    """Returns a reply. If an answer of status 200 has an error with a status inside, the reply has that status."""
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
    """Returns an integer of a record, also one written as a float or a text. None: it is absent or not of that kind."""
    try:
        value = msgspec.convert(record, dict[str, Any]).get(name)
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError:
        return None


LONGEST_PAUSE_S = 60.0
FIRST_S = 10.0
"""Seconds for which an endpoint that has never answered is tried. Its address may be wrong."""
NEWER_LIMIT = "max_completion_tokens"
"""OpenAI's newer name of `max_tokens`. Its reasoning models refuse the old one and name this one; many servers know
only the old one."""
_OPTIONAL = {"max_tokens": re.compile(NEWER_LIMIT), "seed": re.compile(r"(?<![\w-])seed(?![\w-])")}
"""Fields that some servers refuse, with the word that their refusal has then. Gemini and Mistral take no seed."""
SAME_S = 0.5
"""Pauses that end within so many seconds of each other are reported once."""
NAMED = 8
"""Number of served models that an error names."""
MOST_BYTES = 16 << 20
"""Largest answer that is read. One of 100,000 tokens has less than one."""


@dataclass(slots=True, kw_only=True)
class EndpointModel:
    """A model behind an endpoint."""

    http: httpx.AsyncClient
    """A client made by `endpoint_client`."""
    model: str
    settings: PromptingSection
    temperature: float
    max_tokens: int
    report: Callable[[str], object] = lambda _: None
    """Takes a line about each pause, once for all calls that wait for it."""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    _not_before: float = field(default=0.0, init=False)
    _pauses: int = field(default=0, init=False)
    """Pauses since the endpoint last answered. Each is twice as long as the one before."""
    _refused: set[str] = field(default_factory=set[str], init=False)
    """Fields that the endpoint has refused. Requests leave out `seed`, and give `max_tokens` its newer name."""
    _answered: bool = field(default=False, init=False)
    """Whether the endpoint has ever answered."""
    _read: bool = field(default=False, init=False)
    """Whether an answer had the right form. After that, an answer that is no JSON was cut on its way, so the request is
    repeated."""

    async def ask(self, messages: Sequence[Message], *, seed: int) -> ModelAnswer:
        """Returns the answer. Raises ContextFull, and UserError if the endpoint refuses, fails for longer than
        prompting.wait_seconds, or cannot be reached at first."""
        body = {"model": self.model, "messages": list(messages), "temperature": self.temperature,
                NEWER_LIMIT if "max_tokens" in self._refused else "max_tokens": self.max_tokens,
                **({} if "seed" in self._refused else {"seed": seed})}
        try:
            completion = await self._request("POST", "chat/completions", body, Completion)
        except RequestRefused as error:
            named = {name for name, word in _OPTIONAL.items() if name in body and word.search(error.what)}
            if not named:
                raise
            if "seed" in named - self._refused:  # parallel calls are refused together: one line for all
                self.report(f"{self._address} takes no seed: answers cannot be repeated")
            self._refused |= named
            return await self.ask(messages, seed=seed)
        return ModelAnswer(text=completion.text, prompt_tokens=completion.count("prompt_tokens"),
                           answer_tokens=completion.count("completion_tokens"))

    async def choose_model(self) -> None:
        """Takes the only model that the endpoint serves. Raises UserError if it serves several or none."""
        names = (await self._request("GET", "models", None, ServedModels)).names
        if not names:
            raise UserError("the endpoint serves no model", "load one on its server, or name one with --model")
        if len(names) > 1:
            more = f" and {len(names) - NAMED} more" * (len(names) > NAMED)
            raise UserError(f"the endpoint serves {len(names)} models: {', '.join(names[:NAMED])}{more}",
                            "choose one with --model")
        self.model = names[0]

    async def _request(self, method: str, path: str, body: Mapping[str, Any] | None, form: type[Form]) -> Form:
        failed_at: float | None = None
        while True:
            while (pause := self._not_before - self.clock()) > 0:  # another call may make it longer meanwhile
                await self.sleep(pause)
            pauses, why, wait = self._pauses, "", None
            try:
                reply = await self._reply(method, path, body, form)
            except httpx.RequestError as error:  # also an answer that cannot be unpacked
                why = f"{type(error).__name__} {error}".strip()
            except TimeoutError:
                why = f"no complete answer within prompting.call_seconds={self.settings.call_seconds:g}"
            else:
                self._answered = True
                key = self.http.headers.get("authorization", "").removeprefix("Bearer ")
                if not (reply.may_pass or (self._read and reply.garbled)) \
                        and not (why := (checked := reply.checked(key)).cut):
                    self._pauses, self._read = 0, True
                    return checked
                wait = retry_after(reply.headers, time.time())
                why = why or reply.named + ("" if wait is None else f", Retry-After {rounded(wait)} s") \
                    + (f": {message}" if (message := reply.excerpt(key)) else "")
            failed_at = self.clock() if failed_at is None else failed_at
            first = pauses == self._pauses  # among parallel calls that failed together
            wait = wait or (min(LONGEST_PAUSE_S, 2.0 ** min(pauses, LONGEST_PAUSE_S)) if first else 0.0)
            again = max(self.clock() + wait, self._not_before)
            if not self._answered and again - failed_at > FIRST_S:
                raise UserError(f"{self._address} cannot be reached ({why})", "check --endpoint, or start the server")
            if again - failed_at > self.settings.wait_seconds:
                raise UserError(f"{self._address} does not answer ({why}), and prompting.wait_seconds is "
                                f"{self.settings.wait_seconds:g}", "check --endpoint; the same command continues later")
            if again > self._not_before + SAME_S:  # parallel calls fail together: one line for all
                self.report(f"{self._address} fails ({why}); the next call is in {rounded(again - self.clock())} s")
            self._not_before = again
            self._pauses += first

    @property
    def _address(self) -> str:
        return f"the endpoint {str(self.http.base_url).rstrip('/')}"

    async def _reply(
            self, method: str, path: str, body: Mapping[str, Any] | None, form: type[Form]) -> EndpointReply[Form]:
        """Returns a complete reply. Raises UserError if it is too large, TimeoutError and httpx.RequestError."""
        data = bytearray()
        async with asyncio.timeout(self.settings.call_seconds), self.http.stream(method, path, json=body) as reply:
            async for part in reply.aiter_bytes():
                data += part
                if len(data) > MOST_BYTES:
                    raise UserError(f"the endpoint's answer is larger than {MOST_BYTES >> 20} MiB", "check --endpoint")
        return read_reply(reply.status_code, reply.headers, bytes(data), form)


def endpoint_client(url: str, key: str | None, settings: PromptingSection) -> httpx.AsyncClient:
    """Returns the HTTP client of an endpoint such as http://127.0.0.1:8000/v1.

    Raises UserError if `url` is no address, or holds more than one.
    """
    try:
        parts = parts_of(url)
    except ValueError:
        raise UserError(f"--endpoint {url} is no address", "give one such as http://127.0.0.1:8000/v1") from None
    if parts.username or parts.password or parts.query:
        raise UserError("--endpoint holds a name, a password or a query, which others can read in a command line",
                        "give the address alone, and the key by prompting.key_file or $GAGPO_ENDPOINT_KEY")
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    return httpx.AsyncClient(base_url=url.rstrip("/") + "/", headers=headers, timeout=settings.call_seconds,
                             limits=UNLIMITED)  # prompting.concurrency is the bound


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Returns the seconds that Retry-After asks for, given in seconds or as a date, or None without a usable one.

    `now`: seconds since 1970.
    """
    text = headers.get("retry-after", "").strip()
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now)
    except (ValueError, TypeError, IndexError, OverflowError):  # OverflowError: a year or an offset of many digits
        return None
