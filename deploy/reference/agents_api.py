"""The page of the agents' HTTP API: its routes, the fields of its dialects, and its limits."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import BaseModel

from deploy.reference.markdown import code, document, table
from rollout.agents import completions, messages, responses
from rollout.agents.app import COMPLETIONS, MAX_BODY, MESSAGES, RESPONSES, STATE_HEADER
from rollout.agents.refusals import UNREAD, FieldRules
from rollout.agents.runner import CANCEL_S
from rollout.agents.worker_endpoint import AGENT_THREADS
from services.config.secrets import OTHERS_VARIABLES
from services.rewards import LARGEST_REWARD

INTRODUCTION = f"""The endpoint that [agents](../tasks/own-agent.md) ask, in a run and by `gagpo serve-agent`. The API \
key names the episode, as a bearer token or as `x-api-key`, and is valid until the episode ends. A body may have \
{MAX_BODY >> 20} MiB. A run's endpoint listens on its own machine alone."""

ROUTES = (
    (f"POST {COMPLETIONS}", "asks the policy, as OpenAI's Chat Completions"),
    (f"POST {RESPONSES}", "asks the policy, as OpenAI's Responses"),
    (f"POST {MESSAGES}", "asks the policy, as Anthropic's Messages"),
    (f"POST {MESSAGES}/count_tokens", "counts the tokens of a prompt, without a call"),
    ("GET /v1/models", "lists the policy. A request may name any model"),
    ("POST /env/reset", "starts the environment, or starts it again"),
    ("POST /env/step", 'takes an action: `{"action": "..."}`'),
    ("GET /env/tools", "lists the environment's tools, in OpenAI's form"),
    ("POST /env/call", 'calls one: `{"name": "add", "arguments": {"n": 5}}`'),
    ("POST /reward", 'rewards the newest call: `{"reward": 1.0, "won": true}`. `won` may be left out: the episode then '
                     "counts as won if its rewards sum to more than 0"),
    ("POST /episodes", '`serve-agent`: opens an episode, `{"task": "...", "seed": 7}`, and answers with its `api_key` '
                       "and `base_url`; 404 for a task that the environment does not have"),
    ("DELETE /episodes", "`serve-agent`: ends the episode of the key, records it, and answers with its outcome; 507 if "
                         "it cannot be written, and then it may be repeated"))

CALLS = f"""\
- **Sampling** is the run's. Values for it are ignored, and so is a `tool_choice` that demands a call. Any other field \
that would change an answer and is not served is refused by its name.
- **Answers** come in one piece, also to a stream. `max_tokens` may shorten them, and `rollout.max_response_tokens` \
does. The token that completes a stop text is the last of the step; the history lacks that text, so the next call \
starts a row.
- **Messages** are shown in full or refused, also where the chat template would leave them out. Control tokens in them \
are plain text. `developer` is `system`.
- **Thoughts** stay in the content of a chat completion, in their tags. They are reasoning items in Responses, and \
thinking blocks in Messages if the request has `thinking`. Send them back as they came: a template that leaves earlier \
thoughts out of the history, such as Qwen3's, starts a row with each call. Set `model.chat_template` to a copy that \
keeps them if you want one row.
- **Rows**: nothing is repaired. `prefix_breaks` in metrics.jsonl counts calls whose history became other tokens, and \
`sequences` the rows that a learner step packed.
- **Tools** are shown by the model's own chat template. One without tools (Gemma 3, Phi 3, that of a model from \
scratch) refuses them unless the prompt names them. A broken call is handed over as text, and its step is invalid. \
Tags in a thought are no calls. A client that takes one call at a time gets the first. Without tools in the request, \
all of an answer is text. `strict` is shown and not enforced; `is_error` of a result reaches the chat template.
- **The state of a call** is made by `learner.credit.state_key` from the environment's latest outcome, and without an \
environment it is the latest message of a user or tool. The header `{STATE_HEADER}` names another one.
- **A call whose client leaves** before the answer does not count."""

FORMS = (("JSON in `<tool_call>` tags", "Hermes, Qwen2.5, Qwen3"),
         ("functions and parameters in these tags", "Qwen3.5, Nemotron 3"),
         ("one JSON object that is the entire answer", "Llama 3"), ("`[TOOL_CALLS]`, whose ids are kept", "Mistral"))

LIMITS = f"""\
- `agent.max_calls` limits the calls of an episode, and `env.max_steps` its turns, over all resets. An episode that \
runs out of either keeps its true reward. Calls of the environment that overlap are made one after the other, and each \
is a turn. An action is cut at 8,192 characters.
- A prompt above `rollout.max_prompt_tokens` is refused: `context_length_exceeded` in OpenAI's dialects, "prompt is \
too long" in Anthropic's. The episode continues if the agent shortens it, and ends otherwise.
- What a call has earned is at most {LARGEST_REWARD:,.0f} in size, before and after `env.reward_scale`.
- An agent has `agent.seconds`, and then {CANCEL_S:g} s to clean up. Waits for servers that are away, and the time in \
which the engine sleeps or loads weights, do not count. A worker whose event loop is held for 30 s loses its episodes; \
after 10 s the run's log names the line that holds it. Each episode may hold {AGENT_THREADS} threads.
- A number that an agent returns is a fault, because nobody would read it. So is a `sys.exit`.
- `serve-agent` samples at `eval.temperature`, and has at most `env.max_sessions` episodes open. One that nobody uses \
for `agent.seconds` ends without a record. With `--no-env` clients give the rewards. Other machines, and other users \
of this one, are kept out by the token in `$GAGPO_AGENT_TOKEN`, which is also the key without an episode.
- A program does not get the variables `GAGPO_*` that hold secrets, nor {", ".join(map(code, OTHERS_VARIABLES))}. It \
can read the files of the run's user. A program or script that is not there is refused before anything starts."""


def page() -> str:
    """Returns the page."""
    return document(
        "Agents' API", INTRODUCTION, "## Routes", table(["route", "does"], [[code(one), does] for one, does in ROUTES]),
        "## Calls", CALLS, "These forms of calls are read. All others, such as Gemma 4's and GPT-OSS's, stay text.",
        table(["the model writes", "models"], [list(form) for form in FORMS]),
        "## Limits", LIMITS,
        *_dialect("Chat Completions", completions.ChatRequest, completions.RULES),
        *_dialect("Responses", responses.ResponsesRequest, responses.RULES, (
            "`previous_response_id` names a response of the same episode that was stored, and an item may refer to one "
            f"of its items. `include` may have `{responses.ENCRYPTED}`. Tools are functions; items are messages, "
            "reasoning, calls of functions and their outputs.")),
        *_dialect("Messages", messages.MessagesRequest, messages.RULES, (
            "`thinking.budget_tokens` is refused where it would be less than an answer may have. Tools have an "
            "`input_schema`; blocks are `text`, `thinking`, `tool_use` and `tool_result`. The last message is not the "
            "assistant's.")))


def _dialect(name: str, request: type[BaseModel], rules: FieldRules, more: str = "") -> list[str]:
    reasons: dict[str, list[str]] = {}
    for field, reason in rules.refused.items():
        reasons.setdefault(reason, []).append(field)
    refused = [[_listed(fields), reason] for reason, fields in reasons.items()]
    return [f"## {name}", f"Read: {_listed(request.model_fields)}.", f"Ignored: {_listed(rules.ignored)}.",
            *([more] if more else []),
            table(["refused", "because"], [*refused, ["any other field with a value", UNREAD]])]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(code, sorted(names)))
