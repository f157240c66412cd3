"""The client of an endpoint: its requests, how it takes answers and refusals, what it tries again, and its waits."""

import asyncio
import heapq
import json
import random
import threading
from collections.abc import Coroutine
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import msgspec
import pytest
from holding_server import answer_beside_held
from scripted_endpoint import ASKED, GOOD, Clock, in_turn, model

from rollout.prompting.endpoint import EndpointModel, endpoint_client, retry_after
from rollout.prompting.model import ContextFull, ModelAnswer
from services.config.sections import PromptingSection
from services.errors import UserError


async def test_a_request_in_openais_form_and_its_cost():
    seen = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append((request.method, str(request.url), json.loads(request.content)))
        return httpx.Response(200, json=GOOD)

    assert await model(answer, Clock()).ask(ASKED, seed=5) == ModelAnswer(
        text="Action: look", prompt_tokens=7, answer_tokens=3)
    assert seen == [("POST", "http://host/v1/chat/completions", {
        "model": "m", "messages": ASKED, "temperature": 0.4, "max_tokens": 64, "seed": 5})]


@pytest.mark.parametrize(("reply", "error", "text"), [
    (httpx.Response(401, text="bad key"), UserError, "refuses the key .status 401: bad key."),
    (httpx.Response(404), UserError, "status 404: nothing"),
    (httpx.Response(200, text="<html>"), UserError, "status 200, and no JSON .*: <html>"),
    (httpx.Response(200, json={"error": {"message": "no credits"}}), UserError, "none of OpenAI's API .*no credits"),
    (httpx.Response(200, json={"error": {"code": 402, "message": "no credits"}}), UserError, "402: .*no credits"),
    (httpx.Response(200, json={"error": {"code": "x"}}), UserError, "it has no `choices`"),
    (httpx.Response(200, json={"object": "x"}), UserError, "it has no `choices`"),
    (httpx.Response(400, json={"error": {"code": "context_length_exceeded"}}), ContextFull, "context_length"),
    (httpx.Response(400, text="This model's maximum context length is 512 tokens"), ContextFull, "512"),
    (httpx.Response(400, json={"error": {
        "message": "request (4390 tokens) exceeds the available context size (4096 tokens), try increasing it",
        "type": "exceed_context_size_error"}}), ContextFull, "4390 tokens"),
    (httpx.Response(500, json={"error": {"message": "Context size has been exceeded."}}), ContextFull, "exceeded"),
    (httpx.Response(400, text="The decoder prompt (length 33) is longer than the maximum model length of 32."),
     ContextFull, "length 33"),
    (httpx.Response(422, text="`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000"), ContextFull, "5000"),
    (httpx.Response(400, text="The input token count (9) exceeds the maximum number of tokens allowed (8)."),
     ContextFull, "count .9."),
    (httpx.Response(400, text="no such parameter"), UserError, "no such parameter")])
async def test_a_reply_that_no_retry_can_fix_is_an_error(reply: httpx.Response, error: type[Exception], text: str):
    with pytest.raises(error, match=text):
        await model(in_turn(reply), Clock()).ask(ASKED, seed=0)


async def test_an_endpoint_that_counts_no_tokens():
    answer = await model(lambda _: httpx.Response(200, json={"choices": GOOD["choices"]}), Clock()).ask(ASKED, seed=0)
    assert (answer.prompt_tokens, answer.answer_tokens) == (None, None)


@pytest.mark.parametrize(("usage", "counted"), [
    ({"prompt_tokens": 7.0, "completion_tokens": "3"}, (7, 3)),
    ({"prompt_tokens": 7, "completion_tokens": 1e99}, (7, None)), ({"prompt_tokens": [7]}, (None, None)),
    ({"prompt_tokens": -7, "completion_tokens": "x"}, (None, None)), (7, (None, None)), ([], (None, None))], ids=str)
async def test_counts_of_tokens_are_read_in_other_forms_and_end_no_evaluation(usage: object, counted):
    answer = await model(lambda _: httpx.Response(200, json={**GOOD, "usage": usage}), Clock()).ask(ASKED, seed=0)
    assert (answer.text, answer.prompt_tokens, answer.answer_tokens) == ("Action: look", *counted)


async def test_an_answer_in_parts_is_its_texts_without_its_thoughts():
    """So Mistral's reasoning models answer, and servers that call their texts as OpenAI's newer API does."""
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "look or go?"}]},
             {"type": "reasoning", "text": "go?"}, {"type": "text", "text": "Action: "},
             {"type": "output_text", "text": "look"}, {"type": "refusal", "text": None}]
    reply = httpx.Response(200, json={"choices": [{"message": {"content": parts}}]})
    assert (await model(lambda _: reply, Clock()).ask(ASKED, seed=0)).text == "Action: look"


async def test_a_whole_answer_is_decoded_once(monkeypatch: pytest.MonkeyPatch):
    decoded, decode = list[bytes](), msgspec.json.decode
    monkeypatch.setattr("msgspec.json.decode", lambda data, **form: decoded.append(data) or decode(data, **form))
    asked = model(lambda _: httpx.Response(200, json=GOOD), Clock())
    for seed in range(2):
        await asked.ask(ASKED, seed=seed)
    assert len(decoded) == 2


async def test_the_only_model_is_taken_and_several_are_listed():
    """None has nothing to choose from, and of many the line said only eight, as if there were no more."""
    one = model(lambda _: httpx.Response(200, json={"data": [{"id": "tiny"}]}), Clock())
    await one.choose_model()
    assert one.model == "tiny"
    two = model(lambda _: httpx.Response(200, json={"data": [{"id": "a"}, {"id": "b"}]}), Clock())
    with pytest.raises(UserError, match=r"serves 2 models: a, b; choose one with --model"):
        await two.choose_model()
    none = model(lambda _: httpx.Response(200, json={"data": []}), Clock())
    with pytest.raises(UserError, match=r"serves no model; load one on its server"):
        await none.choose_model()
    many = model(lambda _: httpx.Response(200, json={"data": [{"id": f"m{k}"} for k in range(12)]}), Clock())
    with pytest.raises(UserError, match=r"serves 12 models: m0, .*, m7 and 4 more; choose one with --model"):
        await many.choose_model()


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
    {"choices": [{"message": {"content": ["x"]}}]}, {"choices": [{"message": {"content": [{"text": 7}]}}]}, [], 7],
    ids=str)
async def test_an_answer_of_wrong_types_is_one_line(body):
    with pytest.raises(UserError, match=r"is none of OpenAI's API") as error:
        await model(lambda _: httpx.Response(200, json=body), Clock()).ask(ASKED, seed=0)
    assert "\n" not in str(error.value)
    with pytest.raises(UserError):
        await model(lambda _: httpx.Response(200, json=body), Clock()).choose_model()


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


@pytest.mark.parametrize(("status", "refusal"), [
    (400, [{"error": {"message": 'Invalid JSON payload received. Unknown name "seed": Cannot find field.'}}]),
    (422, {"detail": [{"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "Extra inputs are not permitted"}]})],
    ids=["Gemini", "Mistral"])
async def test_a_server_that_takes_no_seed_is_told_once_and_gets_none_from_then_on(status: int, refusal):
    """Three calls at once are refused at once, and one line is enough for them."""
    seen, lines = list[bool](), list[str]()

    async def answer(request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(0)
        seen.append("seed" in json.loads(request.content))
        return httpx.Response(status, json=refusal) if seen[-1] else httpx.Response(200, json=GOOD)

    asked = model(answer, Clock())
    asked.report = lines.append
    await asyncio.gather(*(asked.ask(ASKED, seed=number) for number in range(3)))
    await asked.ask(ASKED, seed=3)
    assert seen == [True] * 3 + [False] * 4
    assert lines == ["the endpoint http://host/v1 takes no seed: answers cannot be repeated"]


async def test_a_server_that_refuses_a_seed_which_was_left_out_is_an_error():
    """It would be asked for ever."""
    with pytest.raises(UserError, match="status 400: no seed here"):
        await model(lambda _: httpx.Response(400, text="no seed here"), Clock()).ask(ASKED, seed=0)


async def test_a_temperature_that_is_refused_is_an_error_with_the_option_that_sets_it():
    """It decides the result, so nothing is left out on the quiet."""
    with pytest.raises(UserError, match=r"Unsupported value: 'temperature'.*; .*--temperature 1"):
        await model(lambda _: httpx.Response(400, json={"error": {"message": (
            "Unsupported value: 'temperature' does not support 0.4 with this model. Only the default (1) value is "
            "supported.")}}), Clock()).ask(ASKED, seed=0)


async def test_a_limit_that_is_refused_is_an_error_with_the_key_that_sets_it():
    """vLLM's words. The advice was to check the address."""
    refusal = "max_tokens=512 cannot be greater than max_model_len=504. Please request fewer output tokens."
    with pytest.raises(UserError, match=r"max_model_len=504.*; set rollout\.max_response_tokens to what"):
        await model(in_turn(httpx.Response(400, text=refusal)), Clock()).ask(ASKED, seed=0)


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
    server, lines = ThreadingHTTPServer(("127.0.0.1", 0), Replies), list[str]()
    server.left = [(headers, body)]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    settings = PromptingSection()
    try:
        async with endpoint_client(f"http://127.0.0.1:{server.server_port}/v1", None, settings) as http:
            asked = EndpointModel(http=http, model="m", settings=settings, temperature=0.4, max_tokens=64,
                                  report=lines.append)
            assert (await asked.ask(ASKED, seed=0)).text == "Action: look"
    finally:
        server.shutdown()
        server.server_close()
    assert why in lines[0]


async def test_a_rate_limit_is_waited_for_as_long_as_the_server_says():
    """After the others the pauses are ours, also if the server says 0: all calls were sent again at once, for as long
    as prompting.wait_seconds. A status inside an answer is OpenRouter's: the first such one ended the evaluation."""
    clock = Clock()
    replies = in_turn(httpx.Response(429, headers={"retry-after": "7"}), httpx.Response(503),
                      httpx.ConnectError("refused"), httpx.Response(503, headers={"retry-after": "0"}),
                      httpx.Response(200, json={"error": {"code": 502}}), httpx.Response(200, json=GOOD))
    await model(replies, clock).ask(ASKED, seed=0)
    assert clock.slept == [7.0, 2.0, 4.0, 8.0, 16.0]


async def test_a_wait_is_told_with_its_reason():
    """The line about garbage after a good answer said only its status, 200, and a pause of 1.5 s was told as 2 s."""
    clock, lines = Clock(), list[str]()
    asked = model(in_turn(httpx.Response(200, json=GOOD), httpx.Response(200, text="{"),
                          httpx.Response(429, headers={"retry-after": "1.5"}), httpx.Response(200, json=GOOD)), clock)
    asked.report = lines.append
    for seed in range(2):
        await asked.ask(ASKED, seed=seed)
    assert len(lines) == 2
    assert "status 200, and no JSON (Input data was truncated): {); the next call is in 1 s" in lines[0]
    assert "status 429, Retry-After 1.5 s); the next call is in 1.5 s" in lines[1]


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


async def test_pauses_stay_at_a_minute_however_long_an_outage_lasts():
    """After 1,024 of them, the power of two was no number any more."""
    clock = Clock()
    with pytest.raises(UserError, match="status 500"):
        await model(lambda _: httpx.Response(500), clock, wait_seconds=86_400).ask(ASKED, seed=0)
    assert clock.slept[:8] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert len(clock.slept) > 1024


async def test_failures_end_after_the_deadline():
    """1 + 2 + 4 + 8 = 15 s of waiting fit into 20 s, 16 s more do not."""
    clock = Clock()
    with pytest.raises(UserError, match="status 500"):
        await model(lambda _: httpx.Response(500), clock, wait_seconds=20).ask(ASKED, seed=0)
    assert clock.slept == [1.0, 2.0, 4.0, 8.0]


class VirtualTime:
    """A clock that goes on to the next end of a pause once every call waits for one."""

    def __init__(self) -> None:
        self.now = 0.0
        self._pauses: list[tuple[float, int, asyncio.Future[None]]] = []

    async def sleep(self, seconds: float) -> None:
        end = asyncio.get_running_loop().create_future()
        heapq.heappush(self._pauses, (self.now + seconds, len(self._pauses) + random.getrandbits(40), end))
        await end

    async def run(self, *calls: Coroutine[Any, Any, object]) -> None:
        tasks = [asyncio.create_task(call) for call in calls]
        while not all(task.done() for task in tasks):
            for _ in range(200):
                await asyncio.sleep(0)
            if self._pauses:
                at, _, end = heapq.heappop(self._pauses)
                self.now = max(self.now, at)
                end.set_result(None)
        for task in tasks:
            task.result()


async def test_an_answer_that_was_cut_on_its_way_is_asked_for_again_once_others_were_whole():
    """The first answer may be a page of another server, which stays what it is."""
    clock, cut = Clock(), httpx.Response(200, text='{"id": "x", "choices": [{"mess')
    asked = model(in_turn(httpx.Response(200, json=GOOD), cut, httpx.Response(200, json=GOOD)), clock)
    for seed in range(2):
        await asked.ask(ASKED, seed=seed)
    assert clock.slept == [1.0]
    with pytest.raises(UserError, match="no JSON"):
        await model(in_turn(cut), clock).ask(ASKED, seed=0)


async def test_a_limit_without_a_time_slows_calls_down_to_it_and_not_to_a_minute_each():
    """Two calls a second may pass, and eight agents ask. Each failed call had doubled the pause of all."""
    time = VirtualTime()
    left, at = 2.0, 0.0

    def answer(_: httpx.Request) -> httpx.Response:
        nonlocal left, at
        left, at = min(2.0, left + 2 * (time.now - at)), time.now
        if left < 1:
            return httpx.Response(429)
        left -= 1
        return httpx.Response(200, json=GOOD)

    asked = model(answer, Clock())
    asked.clock, asked.sleep = lambda: time.now, time.sleep

    async def agent() -> None:
        for seed in range(10):
            await asked.ask(ASKED, seed=seed)

    await time.run(*(agent() for _ in range(8)))
    assert time.now <= 2 * 80 / 2


async def test_a_call_that_waits_heeds_a_longer_limit_that_another_call_meets():
    time, sent = VirtualTime(), list[float]()
    replies = [httpx.Response(429, headers={"retry-after": "1"}), httpx.Response(429, headers={"retry-after": "30"})]

    def answer(_: httpx.Request) -> httpx.Response:
        sent.append(time.now)
        return replies.pop(0) if replies else httpx.Response(200, json=GOOD)

    asked = model(answer, Clock())
    asked.clock, asked.sleep = lambda: time.now, time.sleep
    await time.run(asked.ask(ASKED, seed=0), asked.ask(ASKED, seed=1))
    assert sent == [0.0, 1.0, 31.0, 31.0]


@pytest.mark.parametrize(("text", "seconds"), [
    ("3", 3.0), ("0.5", 0.5), ("-1", 0.0), ("Thu, 01 Jan 1970 00:01:40 GMT", 40.0),
    ("Thu, 01 Jan 1970 00:00:01 GMT", 0.0), ("soon", None), ("", None),
    (f"Thu, 01 Jan {'9' * 20} 00:00:00 GMT", None), (f"Thu, 01 Jan 1970 00:00:00 +{'9' * 14}", None)])
def test_retry_after_in_seconds_or_as_a_date(text: str, seconds: float | None):
    assert retry_after({"retry-after": text}, now=60.0) == seconds


async def test_a_limit_is_told_with_its_reason_and_once_for_all_calls_that_wait_for_it():
    """While the second request is away, another call meets the same limit."""
    clock, lines = Clock(), list[str]()
    replies = in_turn(httpx.Response(429, json={"error": "no quota"}), httpx.Response(503),
                      httpx.Response(200, json=GOOD))

    def answer(request: httpx.Request) -> httpx.Response:
        if (reply := replies(request)).status_code == 503:
            asked._not_before = clock.now + 1.9
        return reply

    asked = model(answer, clock)
    asked.report = lines.append
    await asked.ask(ASKED, seed=0)
    assert len(lines) == 1
    assert "fails (status 429: " in lines[0]
    assert "no quota" in lines[0]


@pytest.mark.attack
async def test_an_answer_that_drips_is_given_up_after_its_time():
    """Each byte comes in time, so no timeout of a single read ends it."""
    async def drip():
        while True:
            yield b" "
            await asyncio.sleep(0.01)

    asked = model(lambda _: httpx.Response(200, content=drip()), Clock(), call_seconds=0.05, wait_seconds=0.5)
    with pytest.raises(UserError, match=r"no complete answer within prompting.call_seconds=0.05"):
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


async def test_more_than_a_hundred_calls_are_under_way_at_once():
    """The others waited for a connection until prompting.call_seconds were over, and called the endpoint broken."""
    assert await answer_beside_held(120, lambda url: endpoint_client(url, None, PromptingSection())) == 200
