"""The client of an endpoint: its requests, and how it takes answers and refusals."""

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import msgspec
import pytest
from scripted_endpoint import ASKED, GOOD, Clock, in_turn, model

from rollout.prompting.endpoint import EndpointModel, endpoint_client
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
