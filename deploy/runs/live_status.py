"""Reads the live status of a run: heartbeats from the driver's endpoint, and the environment servers' own metrics.

A rate is the growth of a counter between two reads of a process, divided by the time between their timestamps. A
learner has the mean duration of its steps instead.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Annotated

import msgspec

from deploy.runs.configs import light_config
from deploy.runs.folder import RunFolder, is_own, withheld
from deploy.runs.stage import read_stage, this_host
from services.config.secrets import env_token
from services.errors import UserError
from services.files import NOT_JSON, Damaged, read_json
from services.telemetry.catalogue import Role, Snapshot
from services.telemetry.heartbeat import Beat

ANSWER_S = 10.0
COUNTED: Mapping[Role, tuple[str, dict[str, str], str]] = {
    "rollout": ("gagpo_rollout_tokens_total", {"kind": "response"}, "tokens/s"),
    "environment": ("gagpo_env_steps_total", {}, "steps/s"),
}
"""Role -> the counter that measures its speed, the counter's labels, and the unit of its rate."""


class TargetGroup(msgspec.Struct, frozen=True):
    """One group of addresses in Prometheus' file_sd format."""

    targets: Annotated[list[str], msgspec.Meta(min_length=1)]
    labels: dict[str, str] = {}


@dataclass(slots=True)
class Seen:
    """The last two reads of each process, from which rates are computed."""

    now: dict[str, Beat] = field(default_factory=dict)
    before: dict[str, Beat] = field(default_factory=dict)

    def take(self, look: Mapping[str, Beat]) -> None:
        """Takes a new read. If a process has sent no heartbeat since the last one, its rate stays."""
        earlier = {name: self.now[name] if self.now[name].at < beat.at else self.before.get(name)
                   for name, beat in look.items() if name in self.now}
        self.now, self.before = dict(look), {name: beat for name, beat in earlier.items() if beat is not None}

    def rate(self, name: str) -> tuple[float, str] | None:
        """Returns rate and unit, or None if it is unknown or the process has no counter of its speed."""
        return rate(self.now[name], self.before.get(name))


def look(path: Path) -> dict[str, Beat]:
    """Returns the present processes by name, environment servers last; {} if the run's driver does not answer.

    If the driver answers that it cannot read the heartbeats, its own entry stands for all of them and says why.
    A driver that was killed leaves its address behind. If another run's driver listens there, its processes are shown.
    """
    groups = _targets(path)
    if not groups:
        return {}
    driver, *servers = groups
    beats = _beats(driver.targets[0])
    if beats is None:
        return {}
    token = _token(path) if servers else None
    return beats | {f"env {target}": _server(f"{group.labels.get('__scheme__', 'http')}://{target}", token)
                    for group in servers for target in group.targets}


def silent(path: Path) -> list[str]:
    """Returns the line to show if no process of a run answers; [] if the run is over or has yet to begin."""
    stage, groups = read_stage(RunFolder(path).stage_file), _targets(path)
    if stage is None or not groups:
        return []
    line = f"  its processes do not answer at {groups[0].targets[0]}"
    return [line if stage.host == this_host() else f"{line}: ask on {stage.host.split()[0]}, or give metrics.host an "
            "address that other machines reach"]


def _targets(path: Path) -> list[TargetGroup]:
    """Returns the addresses of a run in progress: its driver's first. [] if it is over or has yet to write them."""
    stage = read_stage(RunFolder(path).stage_file)
    if stage is not None and not stage.alive:
        return []
    try:
        groups = read_json(RunFolder(path).targets, list[TargetGroup])
    except OSError:  # there is none, or its folder is another user's
        return []
    if not groups:
        raise Damaged(f"{RunFolder(path).targets} names no process", "delete it; a run writes it again")
    return groups


def _token(path: Path) -> str | None:
    """Returns the token of servers that were given to the run, which guards their metrics; None if this machine does
    not have it. A run's own servers show their metrics to all."""
    run = RunFolder(path)
    env = light_config(run.config_file).env
    if env.token_file is not None and withheld_token(path):
        env = env.model_copy(update={"token_file": None})
    try:
        return env_token(env) if env.urls else None
    except UserError:
        return None


def withheld_token(path: Path) -> list[str]:
    """Returns the line that says that env.token_file is not used; [] if the run is this user's own or has none."""
    run = RunFolder(path)
    if not run.targets.exists() or light_config(run.config_file).env.token_file is None:
        return []
    return [] if is_own(run, run.targets, run.targets.parent) else [withheld("env.token_file", run)]


def _beats(address: str) -> dict[str, Beat] | None:
    """Returns the heartbeats that a driver has read; if its Redis gave it none, a heartbeat that says why."""
    status, body = _get(f"http://{address}/status")
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        why = body.decode(errors="replace").partition("\n")[0]
        return {"driver": Beat(role="controller", doing=f"cannot read the heartbeats: {why}", since=0.0, progress=0.0,
                               metrics={}, at=time.time())}
    try:
        return msgspec.json.decode(body, type=dict[str, Beat]) if status == HTTPStatus.OK else None
    except NOT_JSON:  # another program answers there
        return None


def _get(url: str) -> tuple[int | None, bytes]:
    """Returns status and body of an answer; None and no body if there is none."""
    import httpx

    from services.http.bounded import get

    try:
        reply = get(url, seconds=ANSWER_S)
    except httpx.HTTPError:
        return None, b""
    return reply.status_code, reply.content


def _server(url: str, token: str | None) -> Beat:
    """Returns an environment server's metrics as a heartbeat. The start of its current activity is unknown."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    at, metrics = time.time(), scrape(url, seconds=ANSWER_S, headers=headers)
    beat = Beat(role="environment", doing="does not answer", since=0.0, progress=0.0, metrics=metrics, at=at)
    live, limit = value(beat, "gagpo_env_sessions"), value(beat, "gagpo_env_sessions_limit")
    if live is None or limit is None:
        return beat
    return msgspec.structs.replace(beat, doing=f"{live:.0f} of at most {limit:.0f} sessions live")


def rate(beat: Beat, before: Beat | None) -> tuple[float, str] | None:
    """Returns a rate: for a learner the mean seconds of its steps so far, else the growth of its counter per second."""
    if beat.role == "learner":
        steps = value(beat, "gagpo_learner_steps_total")
        return (sum(_values(beat, "gagpo_learner_phase_seconds_total")) / steps, "s a step") if steps else None
    if beat.role not in COUNTED or before is None or beat.at <= before.at:
        return None
    name, labels, unit = COUNTED[beat.role]
    total, earlier = value(beat, name, **labels), value(before, name, **labels)
    if total is None or earlier is None or total < earlier:  # it was restarted in between
        return None
    return (total - earlier) / (beat.at - before.at), unit


def value(beat: Beat, name: str, **labels: str) -> float | None:
    """Returns the value of one sample of a process, or None."""
    return next((number for _, its, number in beat.metrics.get(name, []) if its == labels), None)


def _values(beat: Beat, name: str) -> Iterator[float]:
    return (number for _, _, number in beat.metrics.get(name, []) if number is not None)


def scrape(server: str, *, seconds: float, headers: Mapping[str, str] | None = None) -> Snapshot:
    """Returns the metrics that the server at a URL exposes for Prometheus, or {} if it sends none within `seconds`:
    it is unavailable, refuses, or is another program."""
    import httpx
    from prometheus_client.parser import text_string_to_metric_families

    from services.http.bounded import get

    meters: Snapshot = {}
    try:
        reply = get(f"{server}/metrics", seconds=seconds, headers=headers).raise_for_status()
        for family in text_string_to_metric_families(reply.content.decode()):
            for sample in family.samples:
                name = family.name if family.type == "histogram" else sample.name
                meters.setdefault(name, []).append((sample.name, dict(sample.labels), sample.value))
    except (httpx.HTTPError, ValueError):  # ValueError: these are no metrics
        return {}
    return meters
