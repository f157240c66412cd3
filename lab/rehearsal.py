"""`python -m lab.rehearsal [--short]`: rehearses a cluster on this machine, and prints what happened and when.

Three Ray nodes in network namespaces, Redis and environment servers in containers, and a laptop in a fourth namespace,
which submits the job. While it trains, this program changes the number of workers and servers up and down, and kills a
node and brings it back. Then it kills the head with the driver, brings the cluster back, and submits the job again, as
a supervisor would. The job must finish, `gagpo audit` must find nothing, and every board must show data.

The short form adds one worker and one server, kills the node's processes, not its network, ends the job by SIGTERM
instead of the head's loss, and measures no rates.
It needs root, podman and the image gagpo-alfworld (docs/tasks/rehearsal.md). Status 0: all of it happened.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
from contextlib import nullcontext
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "toys"))

from tests.chaos.prometheus_api import shows
from tests.toys.dashboards import list_queries
from tests.toys.job import Job, Lost
from tests.toys.site import Site, cannot, site
from tests.toys.timeline import Timeline

STEP_S, SHORT_STEP_S = 0.25, 0.1
"""Seconds that each step of the environment takes, so that a server takes four or ten steps a second at most."""
WITHOUT_VALUE = ("FLOP utilisation", "Replays")
"""Panels that need GPUs, or a session that was lost."""
MEASURE_S = 30.0
MORE_STEPS = 3
"""Learner steps that the job takes after it was submitted again."""


class Rehearsal:
    """The acts, in order. Each waits until what it did has its effect, or raises Lost."""

    def __init__(self, stage: Site, job: Job, told: Timeline, *, short: bool) -> None:
        self.stage, self.job, self.told, self.short = stage, job, told, short

    def play(self) -> None:
        """All acts."""
        self.start()
        self.measure()
        self.scale_servers(2 if self.short else 4)
        self.measure()
        self.scale_workers(2 if self.short else 3)
        self.measure()
        self.lose_a_node()
        self.scale_workers(1)
        self.scale_servers(1)
        self.measure()
        if self.short:
            self.stop()
        else:
            self.lose_the_head()
            self.finish()
        self.audit()

    def start(self) -> None:
        with self.told.act("three Ray nodes are up"):
            self.stage.start_nodes()
        self.job.submit("steps=100000")
        with self.told.act("the job, submitted from the laptop, has taken its first learner step"):
            self.job.wait("a learner step", lambda: self.job.steps() >= 1)

    def scale_servers(self, count: int) -> None:
        """Starts or ends containers, and waits until the run plays on all that are left, and on no other."""
        before = len(self.stage.servers)
        with self.told.act(f"environment servers {before} -> {count}: the run plays on {count}"):
            self.stage.want_servers(count)
            self.job.wait("the list of servers", lambda: sorted(self.job.servers()) == self.stage.servers)
            if count < before:
                self.stage.end_servers()
            played = self.stage.steps_by_server()
            self.job.wait("steps on every server", lambda: all(
                steps > played.get(url, 0.0) for url, steps in self.stage.steps_by_server().items()))

    def scale_workers(self, count: int) -> None:
        """Calls `gagpo scale` on the laptop, and waits until so many workers play, and none leaves."""
        with self.told.act(f"gagpo scale rollout={count}: {count} play"):
            done = self.stage.call("gagpo", "scale", str(self.job.folder), f"rollout={count}")
            if done.returncode or "the run is stopped" in done.stdout:
                raise Lost(f"gagpo scale: {done.stdout}{done.stderr}")
            self.job.wait(f"{count} workers", lambda: self.job.workers() == {"running": count})
            self.job.wait_for_episodes_of(count)

    def lose_a_node(self) -> None:
        """Takes away the node with most processes of the run, and starts it again once the run has missed it.

        The long form cuts the node off the network: then only Ray's health check can notice.
        """
        wanted = sum(self.job.workers().values())
        node = max(self.stage.workers, key=lambda one: one.runs("ray::RolloutHost", "ray::LearnerRank"))
        restarts = self.job.restarts()
        with self.told.act("a node of the run is lost: the run has noticed"):
            node.kill() if self.short else node.cut()
            self.job.wait("a restart", lambda: self.job.restarts() > restarts)
        with self.told.act(f"the node is back: {wanted} workers run, the learner has gone on"):
            node.start()
            self.job.wait("all workers", lambda: self.job.workers() == {"running": wanted})
            steps = self.job.steps()
            self.job.wait("two learner steps", lambda: self.job.steps() >= steps + 2)

    def stop(self) -> None:
        """Stops the job by SIGTERM."""
        with self.told.act("ray job stop: it has left a checkpoint"):
            self.job.stop()

    def lose_the_head(self) -> None:
        """Kills the head, on which the driver runs. The other nodes leave by themselves, and all are started again."""
        with self.told.act("the head is killed: the laptop knows that the job has ended"):
            self.stage.head.kill()
            if self.job.end() == 0:
                raise Lost("a job whose driver was killed ended with status 0")
        with self.told.act("the other nodes have left it"):
            self.stage.wait_for_nodes_to_leave()
        with self.told.act("a new cluster is up"):
            self.stage.start_nodes()

    def finish(self) -> None:
        steps = self.job.steps() + MORE_STEPS
        self.job.submit(f"steps={steps}")
        with self.told.act(f"submitted again with steps={steps}: the job has finished"):
            if (status := self.job.end()) != 0:
                raise Lost(f"the job ended with status {status}")

    def audit(self) -> None:
        with self.told.act("gagpo audit"):
            audit = self.stage.call("gagpo", "audit", str(self.job.folder))
            if audit.returncode:
                raise Lost(f"gagpo audit: {audit.stdout}{audit.stderr}")
        self.told.note(audit.stdout.strip().splitlines()[-1])

    def measure(self) -> None:
        """Measures the steps of the environment that are taken in a second; the short form does not."""
        if self.short:
            return
        workers, servers = sum(self.job.workers().values()), len(self.stage.servers)
        rate = self.stage.rate(MEASURE_S)
        self.told.note(f"workers: {workers}, servers: {servers}, turns/s: {rate:.1f}")


def check_boards(prometheus: str) -> None:
    """Raises Lost if a query of a board has had no value."""
    dark = {f"{query.panel}: {query.expr}" for query in list_queries()
            if query.panel not in WITHOUT_VALUE and not shows(prometheus, query.expr)}
    if dark:
        raise Lost(f"panels without data: {dark}")


def hold(stage: Site, job: Job, told: Timeline, *, short: bool) -> None:
    """Plays all acts under the eyes of a Prometheus, if it is installed."""
    with stage.watched() if shutil.which("prometheus") else nullcontext() as prometheus:
        Rehearsal(stage, job, told, short=short).play()
        if prometheus is None:
            told.note("boards not asked: prometheus is not installed")
            return
        with told.act("every board shows data"):
            check_boards(prometheus)


def main() -> int:
    """Prints the table. Returns the exit status."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--short", action="store_true", help="no loss of the head or of a network")
    parser.add_argument("--log", type=Path, help="folder for the logs of the nodes and of the job; default: none")
    args = parser.parse_args()
    if reason := cannot():
        print(f"skipped: {reason}")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    told = Timeline()
    with site(worker_nodes=2, cpus=2, step_s=SHORT_STEP_S if args.short else STEP_S) as stage:
        job = Job(stage, name="rehearsal")
        try:
            hold(stage, job, told, short=args.short)
        except (Lost, AssertionError) as error:
            print(f"{told.table()}\nfailed: {error}\n{job.said()[-6000:]}", flush=True)
            return 1
        finally:
            job.kill()
            if args.log:
                stage.keep_logs(args.log)
    print(told.table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
