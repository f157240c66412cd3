"""Checks a model's chat template before anything starts: from the files alone, without the tokenizer's packages.

The rollout worker makes the same check with the tokenizer itself, after minutes of a cold start. transformers' own
renderer of templates needs no torch, and torch would stay in the driver for the whole run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envservice.registry import make_template
from services.chat import chat_format, check_chat
from services.config.tree import Config
from services.files import read_json

_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


def check_template(config: Config) -> None:
    """Raises UserError for a chat template that prompts need and that is not there, or that fails."""
    if not make_template(config.env).chat and config.agent.name is None:
        return
    folder = config.model.path
    settings = read_json(folder / "tokenizer_config.json", dict[str, Any]) if folder is not None and (
        folder / "tokenizer_config.json").exists() else None
    if settings is None and config.model.chat_template is None:
        return  # a model made here has a template of ours; other tokenizers may have theirs in code
    files = _Files(chat_template=_template(folder, settings or {}), settings=settings or {})
    check_chat(chat_format(files, config.model), folder or config.run_dir)


def _template(folder: Path | None, settings: Mapping[str, Any]) -> str | None:
    """Returns the template in a folder, the one named `default` of several."""
    if folder is not None and (file := folder / "chat_template.jinja").is_file():
        return file.read_text(encoding="utf-8")
    named = settings.get("chat_template")
    if isinstance(named, list):
        named = next((one.get("template") for one in named if one.get("name") == "default"), None)
    return named


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
