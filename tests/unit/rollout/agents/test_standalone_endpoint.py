"""Episodes outside a run: opened, played over HTTP with OpenAI's client, ended and recorded."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import httpx
import openai
import psutil
import pytest
from counter import Counter, counter_spec
from scripted_engine import ScriptedEngine

from deploy.cli import main
from envservice.server.app import Settings, create_app
from learner.logged_groups.files import read_agents
from rollout.agents.standalone_endpoint import OpenEpisodes, Opening, ServedPolicy, agents_url
from services.config.env import EnvSection
from services.config.file import default_config
from services.errors import UserError
from services.http.server import bind, serving_in_thread
from services.process.addresses import check_exposure

TASK = "counter/train/00000000"


@asynccontextmanager
async def served(text, answers, *, out=None, token=None, with_env=True, keys=()):
    """An HTTP client of a server whose policy says `answers`."""
    config = default_config(["env.name=counter:SPEC", *keys])
    policy = ServedPolicy(config=config, model=Path(), host="127.0.0.1", port=0, token=token, with_env=with_env,
                          out=out)
    serving = agents_url(policy, text, ScriptedEngine(text, answers), bind("127.0.0.1", 0))
    async with serving as url, httpx.AsyncClient(base_url=url, timeout=60) as http:
        yield http


def bearer(key):
    return {"authorization": f"Bearer {key}"}


async def begin(http, task=TASK, key="any", **named):
    reply = await http.post("/episodes", json={"task": task, **named}, headers=bearer(key))
    reply.raise_for_status()
    return reply.json()


async def play(http, calls, *, reward=None):
    """One episode with OpenAI's client; each answer is followed by a call of a tool. Returns what became of it."""
    opened = await begin(http)
    head = bearer(opened["api_key"])
    client = openai.AsyncOpenAI(base_url=opened["base_url"], api_key=opened["api_key"], max_retries=0)
    now = (await http.post("/env/reset", headers=head)).json()
    tools = (await http.get("/env/tools", headers=head)).json()
    for name, arguments in calls:
        reply = await client.chat.completions.create(
            model="policy", messages=[{"role": "user", "content": now["observation"]}], tools=tools)
        assert reply.choices[0].message.content == "so"
        now = (await http.post("/env/call", json={"name": name, "arguments": arguments}, headers=head)).json()
    if reward is not None:
        await http.post("/reward", json={"reward": reward}, headers=head)
    return (await http.delete("/episodes", headers=head)).json()


async def test_episodes_are_played_recorded_and_credited(text, tmp_path):
    out = tmp_path / "episodes.jsonl"
    async with served(text, ["so"] * 5, out=out) as http:
        won = await play(http, [("add", {"n": 2}), ("double", {})])
        lost = await play(http, [("add", {"n": 2}), ("add", {"n": 9})], reward=-1.0)
    assert won == {"task": TASK, "won": True, "end": "won", "calls": 2, "reward": 1.5}
    assert lost == {"task": TASK, "won": False, "end": "lost", "calls": 2, "reward": -0.5}
    (group,) = read_agents(str(out))
    assert [[(step.state, step.reward) for step in episode.steps] for episode in group.episodes] == [
        [("The counter is 1. Make it 6.", 0.25), ("3", 1.25)], [("The counter is 1. Make it 6.", 0.25), ("3", -0.75)]]


async def test_an_unknown_task_is_refused_before_an_episode_of_it_begins(text):
    """Its client got a key, and learned of its mistake as a fault of its first reset."""
    async with served(text, ["so"], keys=["env.max_sessions=1"]) as http:
        for _ in range(2):  # a refused one takes no place
            reply = await http.post("/episodes", json={"task": "counter/train/none"}, headers=bearer("any"))
            assert (reply.status_code, reply.json()["error"]["message"]) == (
                404, "the environment has no task 'counter/train/none': `gagpo play --tasks SPLIT` lists them")
        head = bearer((await begin(http))["api_key"])
        first = (await http.post("/env/reset", headers=head)).json()
        assert (await http.post("/env/step", json={"action": "+2"}, headers=head)).status_code == 200
        assert (await http.post("/env/reset", headers=head)).json() == first


async def test_a_late_first_reset_starts_a_live_environment_again(text, monkeypatch):
    """Its server had dropped the idle session, and the first step failed with session_lost."""
    monkeypatch.setattr("rollout.agents.world.FRESH_S", 0.0)
    app = create_app(counter_spec(replayable=False).open(EnvSection(name="counter:SPEC")), Settings())
    listener = bind("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with serving_in_thread(app, listener, local_only=True, name="counter"):
        async with served(text, ["so"], keys=[f"env.urls=[{url}]"]) as http:
            head = bearer((await begin(http))["api_key"])
            app.state.batches.drop_all()
            assert (await http.post("/env/reset", headers=head)).json()["observation"].startswith("The counter is 1.")
            stepped = await http.post("/env/step", json={"action": "+2"}, headers=head)
            assert stepped.status_code == 200, stepped.text


async def test_without_an_environment_the_client_gives_the_reward(text):
    async with served(text, ["so"] * 2, with_env=False) as http:
        key = (await begin(http, task="mine"))["api_key"]
        assert (await http.post("/env/reset", headers=bearer(key))).status_code == 404
        ask = {"messages": [{"role": "user", "content": "x"}]}
        assert (await http.post("/v1/chat/completions", json=ask, headers=bearer(key))).status_code == 200
        await http.post("/reward", json={"reward": 2.0, "won": True}, headers=bearer(key))
        ended = (await http.delete("/episodes", headers=bearer(key))).json()
    assert ended == {"task": "mine", "won": True, "end": "won", "calls": 1, "reward": 2.0}


async def test_without_an_environment_an_episode_that_no_client_rewarded_is_no_loss(text, tmp_path):
    """It was recorded with a reward of 0, as if the agent had failed."""
    out = tmp_path / "episodes.jsonl"
    async with served(text, ["so"], out=out, with_env=False) as http:
        head = bearer((await begin(http, task="mine"))["api_key"])
        await http.post("/v1/chat/completions", json={"messages": [USER]}, headers=head)
        refused = await http.delete("/episodes", headers=head)
        assert (refused.status_code, "POST /reward first" in refused.text, out.exists()) == (409, True, False)
        await http.post("/reward", json={"reward": 0}, headers=head)
        assert (await http.delete("/episodes", headers=head)).json()["reward"] == 0
    assert len(out.read_text().splitlines()) == 1


async def test_an_episode_that_a_budget_cut_without_an_environment_has_no_last_state(text, tmp_path):
    """An empty one would be a state: under `bootstrap`, leave-one-out values would go on from it."""
    out, ask = tmp_path / "episodes.jsonl", {"messages": [{"role": "user", "content": "x"}]}
    async with served(text, ["so"] * 2, out=out, with_env=False, keys=["agent.max_calls=1"]) as http:
        head = bearer((await begin(http, task="mine"))["api_key"])
        replies = [await http.post("/v1/chat/completions", json=ask, headers=head) for _ in range(2)]
        assert (replies[0].status_code, replies[1].is_error) == (200, True)
        await http.post("/reward", json={"reward": 0}, headers=head)
        assert (await http.delete("/episodes", headers=head)).json()["end"] == "turns"
    (group,) = read_agents(str(out))
    assert group.episodes[0].final_state is None


async def test_a_token_guards_the_policy_and_its_key_records_nothing(text, tmp_path):
    ask = {"messages": [{"role": "user", "content": "x"}]}
    async with served(text, ["so"] * 2, token="secret", out=tmp_path / "none.jsonl") as http:
        for key in ("x", "wrong", "säcret"):
            head = {"authorization": f"Bearer {key}".encode()}
            assert (await http.post("/v1/chat/completions", json=ask, headers=head)).status_code == 401
            assert (await http.post("/episodes", json={"task": TASK}, headers=head)).status_code == 401
        assert (await http.post("/v1/chat/completions", json=ask, headers=bearer("secret"))).status_code == 200
        assert (await http.delete("/episodes", headers=bearer("secret"))).status_code == 401
        assert (await http.get("/healthz")).json() == {"status": "ok"}
    assert not (tmp_path / "none.jsonl").exists()


async def test_episodes_are_bounded_and_idle_ones_make_room(text):
    async with served(text, [], keys=["env.max_sessions=1", "agent.seconds=0.2"]) as http:
        first = await begin(http)
        refused = await http.post("/episodes", json={"task": TASK})
        if refused.status_code != 200:  # on a slow machine the first is idle for long enough by now
            assert "end one" in refused.json()["error"]["message"]
        await asyncio.sleep(0.3)
        await begin(http)
        late = await http.delete("/episodes", headers=bearer(first["api_key"]))
        assert late.status_code == 401
        ask = {"messages": [{"role": "user", "content": "hi"}]}
        reply = await http.post("/v1/chat/completions", json=ask, headers=bearer(first["api_key"]))
        assert (reply.status_code, "no episode has this key: it is over" in reply.text) == (401, True)
        assert late.json()["error"]["message"].endswith("nobody used it for 0.2 s (agent.seconds)")
        large = {"messages": [{"role": "user", "content": "x" * (5 << 20)}]}
        assert (await http.post("/v1/chat/completions", json=large)).status_code == 413


async def test_looks_for_idle_episodes_may_overlap_and_spare_one_that_is_used_meanwhile(text):
    """One ended with a KeyError: the server then looked no more, and its idle episodes held their games for good."""
    closing = asyncio.Barrier(3)

    async def close():
        await closing.wait()

    async def reset():
        return SimpleNamespace()

    game = SimpleNamespace(reset=reset, close=close)
    episodes = OpenEpisodes(
        session=lambda _: SimpleNamespace(), env=SimpleNamespace(episode=lambda *_: game),
        tools=(), engine="", temperature=1.0, max_steps=8, token="secret", limit=9, idle_s=60.0, record=lambda _: None)
    keys = [await episodes.open(Opening(task="a game")) for _ in range(4)]
    episodes.idle_s = 0.0
    looks = [asyncio.create_task(episodes.expire()) for _ in range(2)]
    await asyncio.sleep(0)
    episodes.idle_s = 60.0  # as if a client asked with the others' keys now
    async with asyncio.timeout(60):
        await closing.wait()
        await asyncio.gather(*looks)
    assert [episodes.get(key) is not None for key in keys] == [False, False, True, True]


async def test_a_faulty_episode_is_told_and_not_recorded(text, tmp_path, monkeypatch):
    out = tmp_path / "episodes.jsonl"
    monkeypatch.delattr(Counter, "step")
    async with served(text, ["so"], out=out) as http:
        key = (await begin(http))["api_key"]
        await http.post("/env/reset", headers=bearer(key))
        reply = await http.post("/env/step", json={"action": "add"}, headers=bearer(key))
        assert reply.json()["error"]["type"] == "episode_failed"
        assert (await http.delete("/episodes", headers=bearer(key))).status_code == 410
    assert not out.exists()


def test_a_file_of_something_else_is_named_by_its_line(tmp_path):
    file = tmp_path / "x.jsonl"
    file.write_text(json.dumps({"task": "t", "steps": []}) + "\n{}\n")
    with pytest.raises(UserError, match=r"line 2: .*task"):
        read_agents(str(file))
    with pytest.raises(UserError, match="GAGPO_AGENT_TOKEN"):
        check_exposure("0.0.0.0", None, "GAGPO_AGENT_TOKEN")


USER = {"role": "user", "content": "x"}
CALLS = ([7], [{}], [{"function": 7}], [{"function": {"name": 7}}], 7)
WRONG_CHATS = [
    *({"messages": [{"role": "user", "content": content}]} for content in (7, {"a": 1}, [7], [{"text": 7}])),
    *({"messages": [{"role": role, "content": "x"}]} for role in (7, None, [])),
    *({"messages": [{"role": "assistant", "tool_calls": calls}]} for calls in CALLS),
    {"messages": [USER], "tools": [7]}, {"messages": [USER], "tools": {}}, {"messages": [USER], "max_tokens": 0},
    {"messages": [USER], "model": "\ud800"}, {"messages": [{"role": "user", "content": "\ud800"}]},
    {"messages": 7}, {"messages": []}, [], 7, None]
BLOCKS = (7, [7], [{"type": 7}], [{"type": "text"}], [{"type": "text", "text": 7}], [{"type": "tool_use", "id": "a"}],
          [{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "tool_result"}]}], [{"type": "\ud800"}])
WRONG_MESSAGES = [
    *({"messages": [{"role": role, "content": blocks}]} for role in ("user", "assistant") for blocks in BLOCKS),
    {"messages": [USER | {"role": "tool"}]}, {"messages": [USER], "system": [{"type": "image"}]},
    *({"messages": [USER], name: 7} for name in ("tools", "tool_choice", "thinking", "stop_sequences")),
    {"messages": [USER], "tools": [{"name": "add"}]}, {"messages": [USER], "tool_choice": {"type": "some"}},
    {"messages": []}, [], 7, None]
ITEMS = (7, {"type": 7}, {"type": "message", "role": "tool"}, {"role": "user", "content": [{"type": "input_text"}]},
         {"type": "function_call", "call_id": "a", "name": "add", "arguments": {}}, {"type": "function_call_output"},
         {"type": "reasoning", "content": 7}, {"type": "reasoning", "content": [{"type": "reasoning_text"}]})
WRONG_RESPONSES = [
    *({"input": [item]} for item in ITEMS), {"input": 7}, {"input": ""}, {}, [], 7, {"input": "x", "tools": [{}]},
    {"input": "x", "tools": [{"type": "function"}]}, {"input": "x", "previous_response_id": "x"},
    {"input": "x", "reasoning": 7}, {"input": "x", "max_output_tokens": "x"}, {"input": "\ud800"}]
WRONG = [
    *(("/v1/chat/completions", json.dumps(body)) for body in WRONG_CHATS),
    *(("/v1/messages", json.dumps({"max_tokens": 9} | body if isinstance(body, dict) else body))
      for body in WRONG_MESSAGES),
    *(("/v1/responses", json.dumps(body)) for body in WRONG_RESPONSES),
    *((path, f'{{"max_tokens": 9, "{field}": [{{"role": "user", "content": ' + "[" * 900 + "]" * 900 + "}]}")
      for path, field in (("/v1/messages", "messages"), ("/v1/responses", "input"))),
    ("/v1/chat/completions", '{"messages": ' + "[" * 50_000), ("/v1/chat/completions", '{"messages": ["\\xff'),
    ("/v1/chat/completions", '{"messages": [{"role": "user", "content": ' + "[" * 900 + "]" * 900 + "}]}"),
    *(("/reward", f'{{"reward": {reward}}}') for reward in ("NaN", "Infinity", "1e999", "1e308", '"nan"', '"x"')),
    ("/reward", '{"reward": 1, "win": true}'), ("/reward", '{"reward": true}'), ("/episodes", '{"tasks": "x"}'),
    ("/env/call", '{"name": "add", "args": {"n": 5}}'), ("/env/step", '{"action": "x", "actions": []}'),
    ("/env/step", '{"action": 7}'), ("/env/step", '{"action": "\\ud800"}'), ("/env/call", '{"name": "\\ud800"}'),
    ("/env/call", '{"name": "add", "arguments": {"n": NaN}}'), ("/episodes", '{"task": "\\ud800"}'),
    ("/episodes", f'{{"task": "{"x" * 500}"}}'), ("/episodes", f'{{"task": "x", "seed": {10**30}}}')]


@pytest.mark.attack
async def test_a_request_that_no_client_sends_is_refused_and_harms_no_episode(text):
    async with served(text, ["so"] * 5) as http:
        head = bearer((await begin(http))["api_key"])
        await http.post("/env/reset", headers=head)
        await http.post("/v1/chat/completions", json={"messages": [USER]}, headers=head)
        for path, body in WRONG:
            reply = await http.post(path, content=body, headers=head | {"content-type": "application/json"})
            assert 400 <= reply.status_code < 500, (path, body[:200], reply.text)
        ended = (await http.delete("/episodes", headers=head)).json()
    assert ended == {"task": TASK, "won": False, "end": "lost", "calls": 1, "reward": 0.0}


async def test_a_body_that_is_no_object_is_told_so(text):
    """The message began with a colon, and asked for a dictionary."""
    async with served(text, ["so"]) as http:
        for body in (b'"x"', b"{", b"task=x"):
            reply = await http.post("/episodes", content=body, headers={"content-type": "application/json"})
            assert (reply.status_code, reply.json()["error"]["message"]) == (400, "the body is no JSON object")


def listening_ports():
    return {each.laddr.port for each in psutil.Process().net_connections("tcp") if each.status == psutil.CONN_LISTEN}


@pytest.mark.attack
async def test_only_the_endpoint_itself_may_use_its_environment(text):
    """Other users of the machine reach its port too, and an environment's tools act as the user who serves."""
    before = listening_ports()
    async with served(text, ["so"], token="secret") as http:
        (port,) = listening_ports() - before - {http.base_url.port}
        for verb, more in (("reset", {}), ("step", {"actions": [], "action": "+2", "digest": "0"})):
            element = {"episode_id": "e", "task": TASK, **more}
            reply = await http.post(f"http://127.0.0.1:{port}/v1/episodes:{verb}", json=[element])
            assert reply.status_code == 401, (verb, reply.text)
        head = bearer((await begin(http, key="secret"))["api_key"])
        assert (await http.post("/env/reset", headers=head)).status_code == 200


@pytest.mark.attack
async def test_a_record_that_cannot_be_written_is_told_and_can_be_asked_for_again(text, tmp_path):
    out = tmp_path / "episodes.jsonl"
    out.symlink_to("/dev/full")
    async with served(text, ["so"] * 2, out=out, with_env=False) as http:
        head = bearer((await begin(http))["api_key"])
        await http.post("/v1/chat/completions", json={"messages": [USER]}, headers=head)
        await http.post("/reward", json={"reward": 1}, headers=head)
        reply = await http.delete("/episodes", headers=head)
        assert (reply.status_code, "No space left" in reply.text) == (507, True)
        out.unlink()
        again = [(await http.delete("/episodes", headers=head)).status_code for _ in range(2)]
    assert (again, len(out.read_text().splitlines())) == ([200, 401], 1)


async def test_without_an_environment_the_latest_message_is_the_state(text, tmp_path, capsys):
    """The whole conversation was: no two calls shared it after the first answer, and no call had credit of its own."""
    out, question = tmp_path / "episodes.jsonl", {"role": "user", "content": "Find the key."}
    tool = {"type": "function", "function": {"name": "look", "parameters": {}}}
    async with served(text, ["I look.", "<tool_call>{", "I peek.", "done"], out=out, with_env=False) as http:
        for answer in ("I look.", "I peek."):
            head = bearer((await begin(http, task="mine"))["api_key"])
            for messages in ([question], [question, {"role": "assistant", "content": answer},
                                      {"role": "tool", "tool_call_id": answer[2:6], "content": "A  drawer.\n"}]):
                reply = await http.post("/v1/chat/completions", json={"messages": messages, "tools": [tool]},
                                        headers=head)
                assert reply.status_code == 200, reply.text
            await http.post("/reward", json={"reward": 1}, headers=head)
            await http.delete("/episodes", headers=head)
    (group,) = read_agents(str(out))
    assert [[step.state for step in episode.steps] for episode in group.episodes] == [
        ["Find the key.", "A drawer."]] * 2
    assert [[step.reason for step in episode.steps] for episode in group.episodes] == [
        ["", "a broken call of a tool"], ["", ""]]
    assert main(["credit", str(out), "--from", "agents", "--table"]) == 0
    shown = capsys.readouterr()
    assert "a broken call of a tool" in shown.out
    assert shown.err == ""


def test_calls_that_are_alone_in_their_state_are_warned_of(tmp_path, capsys):
    out = tmp_path / "episodes.jsonl"
    steps = [[{"state": state, "reward": 0.0, "invalid": k == 1} for state in ("a", f"b{k}")] for k in (0, 1)]
    out.write_text("".join(json.dumps({"task": "t", "steps": part}) + "\n" for part in steps))
    assert main(["credit", str(out), "--from", "agents", "--table"]) == 0
    shown = capsys.readouterr()
    assert "warning: 50% of the calls are alone in their state" in shown.err
    assert "x-gagpo-state" in shown.err


def test_episodes_without_a_task_are_grouped_by_their_beginning(tmp_path):
    """All of them were one group, so that an episode of an easy question was credited against one of a hard one."""
    out = tmp_path / "episodes.jsonl"
    begins = ("Add 1 and 2.", "Add 3 and 4.", "Add 1 and 2.")
    lines = [{"task": "", "steps": [{"state": state, "reward": float(k)}]} for k, state in enumerate(begins)]
    out.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [(group.id, len(group.episodes)) for group in read_agents(str(out))] == [
        ("Add 1 and 2.", 2), ("Add 3 and 4.", 1)]
    out.write_text(json.dumps({"task": "", "steps": [{"state": " ", "reward": 1.0}]}))
    with pytest.raises(UserError, match="line 1: its group is unknown: it has neither a task nor a first state"):
        read_agents(str(out))
