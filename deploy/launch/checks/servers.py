"""Checks that the servers which a config names answer, and that they are the right ones.

A run that continues with its old addresses waits for servers that do not answer, as long as an active run would. A new
address may be wrong, so a run waits only `supervision.reach_seconds` for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import httpx

from envservice.registry import check_tools
from envservice.wire import Info
from services.config.redis import redis_url
from services.config.secrets import ENV_TOKEN_VARIABLE, env_token
from services.config.tree import Config
from services.errors import Unanswered, UserError, in_short
from services.http.bounded import get
from services.outages import retry_server
from services.store.connection import Connection
from services.store.redis_server import find_redis

PROBE_S = 5.0
INFO_S = 60.0
"""Longest wait for a server's /v1/info: the server may have to read all its data first."""
Report = Callable[[str], object]


def check_redis(config: Config, before: Config | None, report: Report) -> None:
    """Checks the Redis of `config`, or that a private one can be started. Raises UserError.

    `before` is the config of the run that continues; None for a new run. `report` takes a line if the run waits.
    """
    url = redis_url(config.redis)
    if url is None:
        find_redis()
        return
    same = before is not None and _address(before) == _address(config)
    retry_server(Connection(url, config.name, PROBE_S, config.redis).check,
                 config.redis.outage_seconds if same else config.supervision.reach_seconds, report)


def check_servers(config: Config, before: Config | None, report: Report) -> None:
    """Checks that all running environment servers of `config` answer. Raises UserError. See check_redis."""
    retry_server(lambda: _answer(config.env.urls), _wait_s(config, before), report)


def check_played(config: Config, before: Config | None, report: Report, *, env: str, engine: str) -> None:
    """Calls `check_versions` for the running environment servers of `config`. Raises UserError. See check_redis."""
    retry_server(lambda: check_versions(config.env.urls, env=env, engine=engine, token=env_token(config.env)),
                 _wait_s(config, before), report)


def check_agents_tools(config: Config, before: Config | None, report: Report) -> None:
    """Checks that the tools of an agent's environment can be listed. Raises UserError. A run that continues waits for
    the server that offers them; a new one does not, since its own code may be what fails."""
    def ask() -> None:
        try:
            check_tools(config.env)
        except UserError as error:
            raise Unanswered(error.what, error.fix) from error

    retry_server(ask, 0.0 if before is None else config.env.outage_seconds, report)


def check_versions(urls: Sequence[str], *, env: str, engine: str, token: str | None = None) -> None:
    """Raises UserError if a running server plays another environment or version than the results would name.

    `engine`: the name that `engine_name` returns. It includes the data if a task's id does not determine its content.
    The lists of tasks are not compared: a task that a server lacks fails at run time.
    """
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    for url in urls:
        try:
            reply = get(f"{url}/v1/info", seconds=INFO_S, headers=headers)
            if reply.status_code == httpx.codes.UNAUTHORIZED:
                raise UserError(f"{url} asks for another token",
                                f"set {ENV_TOKEN_VARIABLE} or env.token_file to the server's token")
            info = Info.model_validate_json(reply.raise_for_status().content)
        except (httpx.HTTPError, ValueError) as error:
            raise Unanswered(f"{url} does not say what it plays ({in_short(error)})",
                             "start it with `gagpo serve-env` of this version") from None
        theirs, ours = f"{info.name} by {info.engine} {info.version}", f"{env} by {engine}"
        if theirs != ours:
            raise UserError(f"{url} plays {theirs}, and this config {ours}",
                            "give both the same data, settings and packages")


def _answer(urls: Sequence[str]) -> None:
    for url in urls:
        try:
            get(f"{url}/healthz", seconds=PROBE_S).raise_for_status()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Unanswered(f"no environment server answers at {url} ({in_short(error)})",
                             "start one with `gagpo serve-env`, or leave env.urls out") from None


def _wait_s(config: Config, before: Config | None) -> float:
    """Returns for how many seconds to wait for environment servers."""
    same = before is not None and before.env.urls == config.env.urls
    return config.env.outage_seconds if same else config.supervision.reach_seconds


def _address(config: Config) -> object:
    """Returns redis.url without its password, as the config in a run's folder has it."""
    return config.model_dump(mode="json")["redis"]["url"]
