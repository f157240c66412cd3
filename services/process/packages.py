"""Third-party packages by the extra that installs them, and our own ones, which must come from one installation.

Ours are bare folder names, so a folder called `services` in a Ray working_dir or next to the script would shadow ours,
and a process would run half of one version and half of another. Every command calls `check_one_installation` first.
"""

from __future__ import annotations

import importlib.util
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from services.errors import UserError

OURS = ("services", "envservice", "rollout", "learner", "deploy")
EXTRAS: Mapping[str, str] = {
    **dict.fromkeys((
        "blake3", "fastapi", "hiredis", "huggingface_hub", "ijson", "jinja2", "matplotlib", "packaging", "PIL",
        "prometheus_client", "psutil", "pyarrow", "rapidfuzz", "ray", "redis", "regex", "rich", "safetensors",
        "starlette", "tokenizers", "torch", "transformers", "uvicorn", "websockets", "zstandard"), "train"),
    "vllm": "cpu", "accelerate": "trl", **{name: name for name in ("gguf", "mcp", "tensorboard", "trl", "wandb")},
}
"""Name in `import` -> the extra of pyproject.toml that installs it. A plain `pip install gagpo` installs none."""


@contextmanager
def naming_extras() -> Iterator[None]:
    """Raises UserError with pip's command in place of the ImportError for a missing package of EXTRAS."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if (extra := EXTRAS.get(package)) is None:
            raise
        also = " (or gagpo[cuda] for GPUs)" if extra == "cpu" else ""
        raise UserError(f"this needs the package {package}, which is not installed",
                        f"pip install 'gagpo[{extra}]'{also}") from error


def installed(name: str) -> str | None:
    """Returns the version of an installed distribution, or None if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def installation_root() -> Path:
    """Returns the folder that holds this package."""
    return Path(__file__).resolve().parents[2]


def import_folder(package: str) -> Path | None:
    """Returns the folder from which `import package` would take it; None if there is none. Imports nothing."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))).resolve().parent


def check_one_installation() -> None:
    """Raises UserError that names the package if one is missing or comes from another installation."""
    root = installation_root()
    for package in OURS:
        folder = import_folder(package)
        if folder is None:
            raise UserError(f"package {package} is missing from {root}", "install gagpo again: scripts/setup")
        if folder != root:
            raise UserError(
                f"package {package} comes from {folder}, but services from {root}",
                f"rename or remove {folder / package}, or start from another folder")


def program() -> str:
    """Returns how the user's shell starts this installation's `gagpo`: its name if that is on the PATH, else a path.

    `make train` runs it by its path, because nothing has put a virtual environment on the PATH.
    """
    script, named = Path(sys.executable).parent / "gagpo", shutil.which("gagpo")
    if named is not None and (not script.exists() or Path(named).samefile(script)):
        return "gagpo"
    if not script.exists():
        return f"{shlex.quote(sys.executable)} -m gagpo"
    return shlex.quote(str(script.relative_to(Path.cwd()) if script.is_relative_to(Path.cwd()) else script))
