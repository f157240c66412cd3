"""The client of an endpoint: its requests, what it tries again, and how long it waits."""

import asyncio
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from rollout.prompting.endpoint import EndpointModel, endpoint_client, retry_after
from rollout.prompting.model import ContextFull, ModelAnswer
from services.config.prompting import PromptingSection
from services.errors import UserError

GOOD = {"choices": [{"message": {"role": "assistant", "content": "Action: look"}}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3}}
ASKED = [{"role": "user", "content": "hello"}]


class Clock:
    """Time that passes only in sleep."""

    def __init__(self) -> None:
        self.now, self.slept = 100.0, list[float]()

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def model(answers: Callable[[httpx.Request], httpx.Response], clock: Clock, **settings) -> EndpointModel:
    http = httpx.AsyncClient(base_url="http://host/v1/", transport=httpx.MockTransport(answers))
    return EndpointModel(http=http, model="m", settings=PromptingSection(**settings), temperature=0.4, max_tokens=64,
                         clock=lambda: clock.now, sleep=clock.sleep)


def in_turn(*replies: httpx.Response | Exception) -> Callable[[httpx.Request], httpx.Response]:
    left = iter(replies)

    def answer(_: httpx.Request) -> httpx.Response:
        reply = next(left)
        if isinstance(reply, Exception):
            raise reply
        return reply

    return answer


async def test_a_request_in_openais_form_and_its_cost():
    seen = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append((request.method, str(request.url), json.loads(request.content)))
        return httpx.Response(200, json=GOOD)

    assert await model(answer, Clock()).ask(ASKED, seed=5) == ModelAnswer(
        text="Action: look", prompt_tokens=7, answer_tokens=3)
    assert seen == [("POST", "http://host/v1/chat/completions", {
        "model": "m", "messages": ASKED, "temperature": 0.4, "max_tokens": 64, "seed": 5})]


async def test_a_rate_limit_is_waited_for_as_long_as_the_server_says():
    """After the others the pauses are ours, also if the server says 0: all calls were sent again at once, for as long
    as prompting.wait_seconds. A status inside an answer is OpenRouter's: the first such one ended the evaluation."""
    clock = Clock()
    replies = in_turn(httpx.Response(429, headers={"retry-after": "7"}), httpx.Response(503),
                      httpx.ConnectError("refused"), httpx.Response(503, headers={"retry-after": "0"}),
                      httpx.Response(200, json={"error": {"code": 502}}), httpx.Response(200, json=GOOD))
    await model(replies, clock).ask(ASKED, seed=0)
    assert clock.slept == [7.0, 2.0, 4.0, 8.0, 16.0]


async def test_a_call_waits_for_the_limit_that_another_call_met():
    clock = Clock()
    asked = model(in_turn(httpx.Response(429, headers={"retry-after": "9"}), httpx.Response(200, json=GOOD),
                          httpx.Response(200, json=GOOD)), clock)
    asked._not_before = 104.0
    await asked.ask(ASKED, seed=0)
    assert clock.slept == [4.0, 9.0]
    await asked.ask(ASKED, seed=1)
    assert clock.slept == [4.0, 9.0]


async def test_a_limit_beyond_the_deadline_ends_at_once():
    clock = Clock()
    with pytest.raises(UserError, match=r"status 429.*prompting.wait_seconds is 60"):
        await model(in_turn(httpx.Response(429, headers={"retry-after": "61"})), clock, wait_seconds=60).ask(
            ASKED, seed=0)
    assert not clock.slept


async def test_failures_end_after_the_deadline():
    """1 + 2 + 4 + 8 = 15 s of waiting fit into 20 s, 16 s more do not."""
    clock = Clock()
    with pytest.raises(UserError, match="status 500"):
        await model(lambda _: httpx.Response(500), clock, wait_seconds=20).ask(ASKED, seed=0)
    assert clock.slept == [1.0, 2.0, 4.0, 8.0]


@pytest.mark.parametrize(("reply", "error", "text"), [
    (httpx.Response(401, text="bad key"), UserError, "refuses the key .status 401: bad key."),
    (httpx.Response(404), UserError, "status 404: nothing"),
    (httpx.Response(200, text="<html>"), UserError, "status 200, and no JSON .*: <html>"),
    (httpx.Response(200, json={"error": {"code": 402, "message": "no credits"}}), UserError, "402: .*no credits"),
    (httpx.Response(200, json={"error": {"code": "x"}}), UserError, "missing required field `choices`"),
    (httpx.Response(200, json={"object": "x"}), UserError, "missing required field `choices`"),
    (httpx.Response(400, json={"error": {"code": "context_length_exceeded"}}), ContextFull, "context_length"),
    (httpx.Response(400, text="This model's maximum context length is 512 tokens"), ContextFull, "512"),
    (httpx.Response(400, text="no such parameter"), UserError, "no such parameter")])
async def test_a_reply_that_no_retry_can_fix_is_an_error(reply: httpx.Response, error: type[Exception], text: str):
    with pytest.raises(error, match=text):
        await model(in_turn(reply), Clock()).ask(ASKED, seed=0)


async def test_an_endpoint_that_counts_no_tokens():
    answer = await model(lambda _: httpx.Response(200, json={"choices": GOOD["choices"]}), Clock()).ask(ASKED, seed=0)
    assert (answer.prompt_tokens, answer.answer_tokens) == (None, None)


async def test_the_only_model_is_taken_and_several_are_listed():
    one = model(lambda _: httpx.Response(200, json={"data": [{"id": "tiny"}]}), Clock())
    await one.choose_model()
    assert one.model == "tiny"
    two = model(lambda _: httpx.Response(200, json={"data": [{"id": "a"}, {"id": "b"}]}), Clock())
    with pytest.raises(UserError, match=r"serves 2 models: a, b; choose one with --model"):
        await two.choose_model()


@pytest.mark.parametrize(("text", "seconds"), [
    ("3", 3.0), ("0.5", 0.5), ("-1", 0.0), ("Thu, 01 Jan 1970 00:01:40 GMT", 40.0),
    ("Thu, 01 Jan 1970 00:00:01 GMT", 0.0), ("soon", None), ("", None)])
def test_retry_after_in_seconds_or_as_a_date(text: str, seconds: float | None):
    assert retry_after({"retry-after": text}, now=60.0) == seconds


@pytest.mark.parametrize(("url", "text"), [
    ("localhost:8000", "is no address"), ("ftp://host", "is no address"), ("http://me:word@host/v1", "a password"),
    ("http://host/v1?key=word", "a query"), ("http://[::1/v1", "is no address"),
    ("http://host:99999/v1", "is no address"), ("http://host:abc/v1", "is no address")])
def test_addresses_that_are_refused(url: str, text: str):
    with pytest.raises(UserError, match=text) as raised:
        endpoint_client(url, None, PromptingSection())
    assert "word" not in str(raised.value) or "password" in str(raised.value)


def test_the_key_is_sent_as_a_bearer_token():
    client = endpoint_client("http://host/v1", "secret", PromptingSection(call_seconds=3))
    assert client.headers["authorization"] == "Bearer secret"
    assert (str(client.base_url), client.timeout.read) == ("http://host/v1/", 3.0)


@pytest.mark.attack
@pytest.mark.parametrize("body", [
    {"choices": []}, {"choices": {}}, {"choices": [7]}, {"choices": [{"message": {"content": 7}}]},
    {"choices": [{"message": {"content": ["x"]}}]}, {**GOOD, "usage": 7}, {**GOOD, "usage": {"prompt_tokens": "7"}},
    {**GOOD, "usage": {"completion_tokens": 1e99}}, [], 7], ids=str)
async def test_an_answer_of_wrong_types_is_one_line(body):
    with pytest.raises(UserError, match=r"is none of OpenAI's API") as error:
        await model(lambda _: httpx.Response(200, json=body), Clock()).ask(ASKED, seed=0)
    assert "\n" not in str(error.value)
    with pytest.raises(UserError):
        await model(lambda _: httpx.Response(200, json=body), Clock()).choose_model()


async def test_a_limit_is_told_with_its_reason_and_once_for_all_calls_that_wait_for_it():
    """While the second request is away, another call meets the same limit."""
    clock, told = Clock(), list[str]()
    replies = in_turn(httpx.Response(429, json={"error": "no quota"}), httpx.Response(503),
                      httpx.Response(200, json=GOOD))

    def answer(request: httpx.Request) -> httpx.Response:
        if (reply := replies(request)).status_code == 503:
            asked._not_before = clock.now + 1.9
        return reply

    asked = model(answer, clock)
    asked.tell = told.append
    await asked.ask(ASKED, seed=0)
    assert len(told) == 1
    assert "fails (status 429: " in told[0]
    assert "no quota" in told[0]


async def test_a_server_that_wants_the_newer_name_of_the_limit_gets_it_from_then_on():
    seen: list[set[str]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(json.loads(request.content).keys() & {"max_tokens", "max_completion_tokens"})
        return httpx.Response(200, json=GOOD) if "max_tokens" not in seen[-1] else httpx.Response(
            400, json={"error": {"message": "Unsupported parameter: use 'max_completion_tokens' instead."}})

    asked = model(answer, Clock())
    await asked.ask(ASKED, seed=0)
    await asked.ask(ASKED, seed=1)
    assert seen == [{"max_tokens"}, {"max_completion_tokens"}, {"max_completion_tokens"}]


async def test_an_error_that_a_gateway_sends_with_status_200_is_shown():
    asked = model(lambda _: httpx.Response(200, json={"error": {"message": "no credits"}}), Clock())
    with pytest.raises(UserError, match=r"none of OpenAI's API .*no credits"):
        await asked.ask(ASKED, seed=0)


@pytest.mark.attack
@pytest.mark.parametrize("content", [b'{"x": ' + b"[" * 100_000, b"\xff\xfe", b'{"choices": NaN}', b"x" * (17 << 20)],
                         ids=["deep", "no text", "no JSON", "large"])
async def test_an_answer_without_form_or_end_is_one_line(content):
    with pytest.raises(UserError, match=r"no JSON|larger than 16 MiB") as error:
        await model(lambda _: httpx.Response(200, content=content), Clock()).ask(ASKED, seed=0)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 1000


@pytest.mark.attack
@pytest.mark.parametrize("status", [200, 400, 401, 404])
async def test_a_server_that_repeats_the_key_does_not_have_it_shown(status):
    asked = model(lambda request: httpx.Response(status, text=f"what is {request.headers['authorization']}?"), Clock())
    asked.http.headers["authorization"] = "Bearer c4n4ry"
    with pytest.raises(UserError, match=r"what is Bearer \*\*\*\?") as error:
        await asked.ask(ASKED, seed=0)
    assert "c4n4ry" not in str(error.value)


@pytest.mark.attack
async def test_an_answer_that_drips_is_given_up_after_its_time():
    """Each byte comes in time, so no timeout of a single read ends it."""
    async def drip():
        while True:
            yield b" "
            await asyncio.sleep(0.01)

    asked = model(lambda _: httpx.Response(200, content=drip()), Clock(), call_seconds=0.05, wait_seconds=0.5)
    with pytest.raises(UserError, match=r"no whole answer within prompting.call_seconds=0.05"):
        await asked.ask(ASKED, seed=0)


async def test_an_endpoint_that_never_answered_is_given_up_after_ten_seconds():
    """A mistyped address is no outage."""
    clock = Clock()
    with pytest.raises(UserError, match=r"http://host/v1 cannot be reached \(ConnectError refused\); check --endpoint"):
        await model(in_turn(*[httpx.ConnectError("refused")] * 9), clock).ask(ASKED, seed=0)
    assert clock.slept == [1, 2, 4]


async def test_an_endpoint_that_answered_before_is_waited_for():
    clock = Clock()
    asked = model(in_turn(httpx.Response(200, json=GOOD), *[httpx.ConnectError("refused")] * 5,
                          httpx.Response(200, json=GOOD)), clock)
    await asked.ask(ASKED, seed=0)
    await asked.ask(ASKED, seed=1)
    assert clock.slept == [1, 2, 4, 8, 16]


class Replies(BaseHTTPRequestHandler):
    """Gives the answers in its server's `left`, headers and body, and then good ones."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        headers, body = self.server.left.pop(0) if self.server.left else ({}, json.dumps(GOOD).encode())
        self.send_response(200)
        for name, value in {**headers, "content-length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(("headers", "body", "why"), [
    ({"content-encoding": "gzip"}, b"no gzip", "DecodingError"),
    ({}, json.dumps({"choices": [{"message": {"content": "Act"}, "finish_reason": "abort"}]}).encode(),
     "finish_reason=abort of its answer"),
    ({}, json.dumps({"choices": [{"message": {"content": ""}, "finish_reason": "error"}]}).encode(),
     "finish_reason=error of its answer")])
async def test_an_answer_that_a_fault_has_cut_is_asked_for_again(headers: dict[str, str], body: bytes, why: str):
    """As an answer, half a sentence is an invalid action, and the model would have lost by it."""
    server, told = ThreadingHTTPServer(("127.0.0.1", 0), Replies), list[str]()
    server.left = [(headers, body)]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    settings = PromptingSection()
    try:
        async with endpoint_client(f"http://127.0.0.1:{server.server_port}/v1", None, settings) as http:
            asked = EndpointModel(http=http, model="m", settings=settings, temperature=0.4, max_tokens=64,
                                  tell=told.append)
            assert (await asked.ask(ASKED, seed=0)).text == "Action: look"
    finally:
        server.shutdown()
        server.server_close()
    assert why in told[0]
