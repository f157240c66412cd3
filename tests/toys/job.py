"""A run that is submitted from the laptop of a Site, and submitted again as a supervisor does it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

from deploy.runs.folder import RunFolder
from deploy.runs.live_status import look, value
from services.controller.member import STATES
from services.files import read_json
from services.telemetry.heartbeat import Beat
from services.telemetry.metrics_file import read_rows
from tests.toys.site import LONGEST_S, POLL_S, Site

SMALL = (
    "--config", "alfworld-tiny", "env.max_steps=6", "model.layers=1", "model.intermediate=64", "sft.demos_per_game=1",
    "sft.minutes=0.05", "rollout.slots=2", "rollout.kv_cache_gb=0.25", "learner.ranks=2", "learner.threads=1",
    "learner.groups_per_step=4", "learner.group_size=4", "learner.staleness=1", "eval.every=1000", "eval.episodes=4",
    "eval.panel=0", "eval.compare_cold_start=false", "checkpoint.every=5", "supervision.leave_seconds=50",
    "supervision.longest_pause_seconds=5")


class Lost(Exception):
    """The run did not do what it should."""


class Job:
    """One run. Its state is read from its heartbeats, as `gagpo status` reads them."""

    def __init__(self, site: Site, *, name: str) -> None:
        self._site = site
        self._log = site.folder / "job.log"
        self._name, self._submitted = name, 0
        self._process: subprocess.Popen[bytes] | None = None
        self.folder = site.runs / name

    def submit(self, *overrides: str) -> None:
        """Submits the job from the laptop. It goes on if it has begun."""
        self._submitted += 1
        command = self._site.on_laptop(
            "ray", "job", "submit", "--address", self._site.dashboard, "--submission-id", f"try-{self._submitted}",
            "--", "gagpo", "train", "--resume", *SMALL, f"name={self._name}", *self._site.arguments(), *overrides)
        with self._log.open("ab") as out:
            self._process = subprocess.Popen(command, env=self._site.environment, cwd=self._site.folder,
                                             stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    def wait(self, what: str, holds: Callable[[], object]) -> None:
        """Waits until it holds. Raises Lost if the job ends before, or if it takes too long."""
        until = time.monotonic() + LONGEST_S
        while not holds():
            if self._process is not None and self._process.poll() is not None:
                raise Lost(f"the job ended with status {self._process.returncode} before {what}")
            if time.monotonic() > until:
                raise Lost(f"no {what} in {LONGEST_S:.0f} s")
            time.sleep(POLL_S)

    def wait_for_episodes_of(self, workers: int) -> None:
        """Waits until so many workers have been seen with episodes."""
        seen: set[str] = set()

        def all_played() -> bool:
            seen.update(self._playing())
            return len(seen) >= workers

        self.wait("episodes of every worker", all_played)

    def stop(self) -> None:
        """Ends the job by SIGTERM, and waits until it has left."""
        stopped, left = (self._site.call("ray", "job", word, "--address", self._site.dashboard,
                                         f"try-{self._submitted}") for word in ("stop", "logs"))
        self.end()
        if "checkpoint is of learner step" not in left.stdout:
            raise Lost(f"it left no checkpoint: {stopped.stdout}{stopped.stderr}{left.stdout}")

    def end(self) -> int:
        """Waits for the end of the job. Returns the exit status that its submitter sees."""
        assert self._process is not None
        try:
            return self._process.wait(LONGEST_S)
        except subprocess.TimeoutExpired:
            raise Lost(f"the job did not end in {LONGEST_S:.0f} s") from None

    def kill(self) -> None:
        """Ends the process on the laptop in every case."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)

    def said(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def steps(self) -> int:
        """The last learner step."""
        return max((row["step"] for row in read_rows(self.folder / "metrics.jsonl")), default=0)

    def servers(self) -> list[str]:
        """The environment servers that the run knows."""
        groups = read_json(RunFolder(self.folder).targets, list[dict[str, object]])
        return [f"http://{target}" for group in groups[1:] for target in list(group["targets"])]  # type: ignore[call-overload]

    def workers(self) -> dict[str, int]:
        """Rollout workers by state, without states that none is in."""
        driver = self._beats().get("controller")
        counts = {state: int(value(driver, "gagpo_controller_members", role="rollout", state=state) or 0)
                  for state in STATES} if driver else {}
        return {state: count for state, count in counts.items() if count}

    def _playing(self) -> set[str]:
        """Names of the workers that play episodes now."""
        return {name for name, beat in self._beats().items()
                if beat.role == "rollout" and value(beat, "gagpo_rollout_tickets", state="playing")}

    def restarts(self) -> int:
        """Number of deaths of the run's processes that the driver has told."""
        return self.said().count(" died (")

    def _beats(self) -> dict[str, Beat]:
        return look(self.folder)
