"""Passwords and tokens. They come from files or environment variables; everything written or shown has `***` instead.

Every user of a machine can read a command line, and a config is copied into the run's folder, its report and W&B.
So neither is a place for a secret. A password in `redis.url` works too, and is removed from every copy.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from services.errors import UserError
from services.files import read_bounded

if TYPE_CHECKING:
    from services.config.env import EnvSection
    from services.config.sections import PromptingSection

HIDDEN = "***"
REDIS_PASSWORD_VARIABLE = "GAGPO_REDIS_PASSWORD"  # noqa: S105 - the variable's name
ENV_TOKEN_VARIABLE = "GAGPO_ENV_TOKEN"  # noqa: S105 - the variable's name
"""Environment variable with the bearer token of environment servers."""
AGENT_TOKEN_VARIABLE = "GAGPO_AGENT_TOKEN"  # noqa: S105 - the variable's name
"""Environment variable with the bearer token of `gagpo serve-agent`."""
ENDPOINT_KEY_VARIABLE = "GAGPO_ENDPOINT_KEY"
"""Environment variable with the key of the endpoint that `gagpo eval --policy` asks."""
EXPLORE_TOKEN_VARIABLE = "GAGPO_EXPLORE_TOKEN"  # noqa: S105 - the variable's name
"""Environment variable with the token that the explorer asks for if other machines can reach it."""
OTHERS_VARIABLES = (
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "GOOGLE_APPLICATION_CREDENTIALS",
    "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_EXPORTER_OTLP_TRACES_HEADERS", "RAY_AUTH_TOKEN", "REDISCLI_AUTH")
"""Environment variables in which the libraries that a run uses look for secrets."""
VARIABLES = (REDIS_PASSWORD_VARIABLE, ENV_TOKEN_VARIABLE, AGENT_TOKEN_VARIABLE, ENDPOINT_KEY_VARIABLE,
             EXPLORE_TOKEN_VARIABLE, *OTHERS_VARIABLES)
"""Environment variables with secrets, which programs that we start for users do not get."""
SECRET_BYTES = 4096


def masked(url: str) -> str:
    """Returns the URL with `***` in place of its password."""
    url = re.sub(r"([?&]password=)[^&#]*", rf"\1{HIDDEN}", url)
    head, at, tail = url.rpartition("@")
    match = re.match(r"\w+:/+", head)  # one slash, or none, is a mistake whose password is hidden, too
    scheme, user = (match[0], head[match.end():]) if match else ("", head)
    name, colon, password = user.partition(":")
    return f"{scheme}{name}:{HIDDEN}{at}{tail}" if colon and password else url


def env_token(env: EnvSection) -> str | None:
    """Returns the bearer token of the environment servers: from env.token_file, else $GAGPO_ENV_TOKEN."""
    return _token(env.token_file, ENV_TOKEN_VARIABLE)


def endpoint_key(prompting: PromptingSection) -> str | None:
    """Returns the key of the endpoint: from prompting.key_file, else $GAGPO_ENDPOINT_KEY."""
    return _token(prompting.key_file, ENDPOINT_KEY_VARIABLE)


def token_from(variable: str) -> str | None:
    """Returns the bearer token in an environment variable, or None if it is empty or not set.

    White space around it is dropped, because files of secrets end with a line end. Raises UserError if a header cannot
    carry the token: HTTP libraries would repeat it in their error.
    """
    return _sendable(os.environ.get(variable, "").strip(), f"${variable}") or None


def _token(file: Path | None, variable: str) -> str | None:
    return token_from(variable) if file is None else _sendable(read_secret(file), str(file))


def _sendable(token: str, where: str) -> str:
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise UserError(f"the token in {where} holds a space or a character that no HTTP header can carry",
                        "make one such as that of `openssl rand -hex 32`")
    return token


def read_secret(file: Path) -> str:
    """Returns the first line of a file. Raises UserError if the file cannot be read or that line is empty."""
    try:
        lines = read_bounded(file, SECRET_BYTES).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the secret in {file} cannot be read ({type(error).__name__})",
                        "write it on the first line of a file of mode 0600") from None
    if not lines or not lines[0].strip():
        raise UserError(f"there is no secret in {file}", "write it on the first line")
    return lines[0].strip()
