"""Finds models that are not given as a Hugging Face folder: names of the hub, and GGUF files (gguf.py).

`model.path=Qwen/Qwen2.5-1.5B-Instruct` is looked up in the cache of huggingface_hub, and fetched only if model.download
asks for it. There a model lies in `models--OWNER--NAME/snapshots/REVISION`, so a run's model.path names its commit.
"""

from __future__ import annotations

import re
from pathlib import Path

from deploy.runs.gguf import converted, is_gguf
from services.config.tree import Config
from services.errors import UserError, first_line
from services.weights.headers import OF_MISTRAL

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
WANTED = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
"""The files of a model that are fetched: no weights in formats that execute code."""


def with_local_model(config: Config) -> Config:
    """Returns the config with the folder of its model in place of a GGUF file and of a name of the hub.

    A folder in a hub cache that is gone, such as that of another machine, is looked up in the local one. A name that is
    neither there nor to be downloaded stays: preflight refuses it. Raises UserError if a download or conversion fails.
    """
    path = config.model.path
    if path is not None and is_gguf(path):
        return _with_model(config, converted(path))
    if path is None or path.exists():
        return config
    name, _, commit = (origin(path) or str(path)).partition("@")
    if not _NAME.fullmatch(name):
        return config
    folder = _snapshot(name, commit or config.model.revision, download=config.model.download)
    if folder is None:
        return config
    return _with_model(config, folder)


def _with_model(config: Config, folder: Path) -> Config:
    return config.model_copy(update={"model": config.model.model_copy(update={"path": folder})})


def origin(path: Path | None) -> str:
    """Returns `OWNER/NAME@REVISION` for a model in the cache of the hub, and "" for any other folder."""
    if path is None or path.parent.name != "snapshots" or not path.parents[1].name.startswith("models--"):
        return ""
    return f"{path.parents[1].name.removeprefix('models--').replace('--', '/', 1)}@{path.name}"


def push(folder: Path, repo: str) -> str:
    """Uploads an exported folder to a repository of the hub, which is made private if it is new. Returns its address.

    The token is huggingface_hub's own ($HF_TOKEN, or `hf auth login`). Raises UserError if the hub refuses.
    """
    from huggingface_hub import HfApi

    if not _NAME.fullmatch(repo):
        raise UserError(f"{repo!r} is no name of a repository", "give OWNER/NAME")
    try:
        api = HfApi()
        api.create_repo(repo, private=True, exist_ok=True)
        return str(api.upload_folder(repo_id=repo, folder_path=folder, commit_message=f"gagpo export {folder.name}"))
    except Exception as error:  # huggingface_hub, httpx and the system each have types of their own
        raise UserError(f"{folder} is written, and could not be pushed to {repo} ({first_line(error)})",
                        "check $HF_TOKEN and the name; then `hf upload` sends the folder") from None


def _snapshot(name: str, revision: str | None, *, download: bool) -> Path | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(str(snapshot_download(name, revision=revision, local_files_only=not download,
                                          allow_patterns=WANTED, ignore_patterns=OF_MISTRAL)))
    except Exception as error:
        if isinstance(error, LocalEntryNotFoundError) and not download:
            return None
        raise UserError(f"model.path={name} could not be fetched from the hub ({first_line(error)})",
                        "check the name, the network and $HF_TOKEN, or give a folder") from None
