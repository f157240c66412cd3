"""Checks a model's chat template before anything starts: from the files alone, without the tokenizer's packages.

The rollout worker makes the same check with the tokenizer itself, after minutes of a cold start. A template is a
program that others wrote, so it runs in a process of its own with limits of time and memory.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from envservice.registry import make_template
from learner.cold_start.scratch_model import CHAT_TEMPLATE
from services.amounts import GIB, in_gib, number_of
from services.chat import ChatRefused, chat_format, check_chat
from services.config.tree import Config, ModelSection
from services.errors import Fault, UserError
from services.files import read_json

SECONDS = 3
"""Seconds of processor time in which a template has to write the messages of the check."""
BYTES = 2 * GIB
"""Memory that it may take for them."""
MESSAGE_TOKENS = 4
"""Tokens of the shortest message, its role markers included."""
LOOPS = "look at its loops, or set model.chat_template to another one"
WORD = "word "
"""A token of text, about as long as one of English."""
TOOL = {"type": "function", "function": {"name": "look", "description": "Looks around.", "parameters": {
    "type": "object", "properties": {"place": {"type": "string"}}}}}
_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


def check_template(config: Config, *, folder: Path | None = None, conversations: bool = False) -> None:
    """Raises UserError for a chat template that is needed and missing, fails, or takes too much time or memory.

    It has to write one message, and the longest conversation that fits a prompt. `folder`: the model, by default the
    config's. `conversations`: whether clients send conversations of their own. A template that no prompt needs still
    writes the end of answers, so its time is checked too.
    """
    chats = any(make_template(entry).chat for entry in config.env.entries)
    agents = conversations or config.agent.name is not None
    needed = agents or chats
    folder = folder or config.model.path
    settings = _settings(folder)
    template = template_of(folder, settings or {})
    if config.model.chat_template is None and (
            template == CHAT_TEMPLATE or (template is None and (settings is None or not needed))):
        return  # a model made here has ours; other tokenizers may have theirs in code
    where = folder or config.run_dir
    count = _longest(config)
    asked = {"template": template, "settings": settings or {}, "folder": str(where),
             "tools": (tool_template_of(folder, settings or {}) or template) if agents else None,
             "model": config.model.model_dump(mode="json"), "messages": count,
             "tokens": config.rollout.max_prompt_tokens, "needed": needed}
    # Without -P a module in the current folder, such as a run of others, could take the place of one of ours.
    checked = subprocess.run([sys.executable, "-P", "-m", "deploy.launch.checks.chat_template"],
                             env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, input=json.dumps(asked),
                             capture_output=True, encoding="utf-8", errors="replace", check=False)
    if checked.returncode == -signal.SIGXCPU:
        longest = _conversation(count, config.rollout.max_prompt_tokens)
        written = ("one message", longest, f"{longest}, with a tool")[min(len(checked.stdout.splitlines()), 2)]
        raise UserError(f"the chat template of {where} has not written {written} after {SECONDS} s", LOOPS)
    if checked.returncode:
        raise Fault(f"the check of the chat template of {where} failed: {checked.stderr.strip()[-300:]}")
    for line in checked.stdout.splitlines():
        if refused := json.loads(line):
            raise UserError(*refused)


def _longest(config: Config) -> int:
    """Returns the number of messages in the longest prompt: one without an agent, else a question for each of its calls
    and the answers between them, as far as a prompt has room."""
    if config.agent.name is None:
        return 1
    return max(1, min(2 * config.agent.max_calls - 1, config.rollout.max_prompt_tokens // MESSAGE_TOKENS))


def check_files(template: str | None, settings: Mapping[str, Any], model: ModelSection, folder: Path) -> None:
    """Checks a template in this process. Raises UserError if it cannot be used."""
    check_chat(chat_format(_Files(chat_template=template, settings=settings), model), folder)


def main() -> None:
    """Checks the template on stdin. Prints the UserError's two parts as JSON, or null."""
    from transformers.utils.chat_template_utils import render_jinja_template  # noqa: F401 - not under the limits

    asked = json.load(sys.stdin)
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime) + SECONDS
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    size = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + BYTES, size + BYTES))
    template, tools = asked["template"], asked["tools"]
    given = (asked["settings"], ModelSection.model_validate(asked["model"]), Path(asked["folder"]))
    longest = partial(_write_longest, count=asked["messages"], tokens=asked["tokens"])
    for check in (partial(check_files, template, *given), partial(longest, template, *given),
                  *([partial(longest, tools, *given, tools=[TOOL])] if tools else ())):
        try:
            check()
        except UserError as error:
            print(json.dumps([error.what, error.fix] if asked["needed"] else None))
            return
        print("null", flush=True)  # at once: the next check may be killed


def _conversation(count: int, tokens: int) -> str:
    return f"a conversation of {number_of(count, 'message')} and {number_of(tokens, 'token')}"


def _write_longest(template: str | None, settings: Mapping[str, Any], model: ModelSection, folder: Path, *,
                   count: int, tokens: int, tools: Sequence[Mapping[str, Any]] = ()) -> None:
    """Writes a conversation of `count` messages and about `tokens` words. Raises UserError if that takes too much
    memory."""
    chat = chat_format(_Files(chat_template=template, settings=settings), model)
    text = WORD * max(1, tokens // count)
    conversation = [{"role": ("user", "assistant")[place % 2], "content": text} for place in range(count)]
    try:
        chat.text(conversation, tools)
    except ChatRefused as error:  # other reasons concern this conversation alone: such calls are refused when they come
        if isinstance(error.__cause__, MemoryError):
            raise UserError(f"the chat template of {folder} takes more than {in_gib(BYTES)} for "
                            f"{_conversation(count, tokens)}", LOOPS) from None


def has_template(folder: Path) -> bool:
    """Returns whether the files of a model have a chat template."""
    return template_of(folder, _settings(folder) or {}) is not None


def _settings(folder: Path | None) -> dict[str, Any] | None:
    """Returns the settings of the tokenizer in a folder; None if it has none."""
    file = folder / "tokenizer_config.json" if folder is not None else None
    return read_json(file, dict[str, Any]) if file is not None and file.exists() else None


def template_of(folder: Path | None, settings: Mapping[str, Any]) -> str | None:
    """Returns the template in a folder, the one named `default` of several; None if there is none."""
    if folder is not None and (file := folder / "chat_template.jinja").is_file():
        return file.read_text(encoding="utf-8")
    return _templates(settings).get("default")


def tool_template_of(folder: Path | None, settings: Mapping[str, Any]) -> str | None:
    """Returns the template that transformers takes for conversations with tools in place of the default one; None if
    there is none."""
    if folder is not None and (file := folder / "additional_chat_templates" / "tool_use.jinja").is_file():
        return file.read_text(encoding="utf-8")
    return _templates(settings).get("tool_use")


def _templates(settings: Mapping[str, Any]) -> dict[str | None, str | None]:
    """Returns the templates in a tokenizer's settings by name; a single one has none, and is the default."""
    several = settings.get("chat_template")
    if not isinstance(several, list):
        return {"default": several}
    return {one.get("name"): one.get("template") for one in several}


@dataclass(slots=True, kw_only=True)
class _Files:
    """The part of a tokenizer that ChatFormat needs, from the model's files."""

    chat_template: str | None
    settings: Mapping[str, Any]
    added_tokens_decoder: Mapping[int, Any] = field(default_factory=dict[int, Any])

    def apply_chat_template(self, messages: Sequence[Any], *, tokenize: bool, **given: Any) -> str:
        from transformers.utils.chat_template_utils import render_jinja_template

        assert not tokenize
        special = {name: token.get("content") if isinstance(token := self.settings.get(name), dict) else token or ""
                   for name in _TOKENS}
        return render_jinja_template([list(messages)], chat_template=self.chat_template, **special, **given)[0][0]

    def encode(self, _text: str, **_: Any) -> list[int]:
        return []


if __name__ == "__main__":
    main()
