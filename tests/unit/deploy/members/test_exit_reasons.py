"""How a process ended, in one line, and whether it said so itself."""

import os
import subprocess

import pytest
from ray.exceptions import ActorDiedError, OutOfMemoryError

from deploy.members.exit_reasons import describe_actor_exit, describe_exit
from services.errors import EngineFault, UserError

FULL = """\
1 worker(s) were killed due to the node running low on memory. \
Memory on the node (IP: {node}, ID: ab) was 15.2GB used / 16.0GB limit (0.950000)
OOM kill reason: the node's memory is above the threshold
Object store memory usage: [- objects spillable: 0]
Ray killed 1 worker(s) based on the killing policy
Considered workers: [
(LearnerRank, pid=4711, actual memory used=9.51GB, worker ID=ab)
]
To see more information about memory usage on this node, use `ray logs raylet.out -ip {node}`
Top 10 memory users: PID\tMEM(GB)\tCOMMAND
{process}\t9.51\tpython -c hoard everything that there is on this machine and then some more
12\t0.40\tray::LearnerRank
"""
KEY = "learner.token_budget lowers its memory"
FREE = "free that memory first"


def ending(process: int, node: str = "127.0.0.1") -> str:
    end = describe_actor_exit(OutOfMemoryError(FULL.format(process=process, node=node)), "learner")
    assert end.killed
    return end.reason


def expected(process: int, owner: str, advice: str) -> str:
    return (f"killed by Ray because its machine ran out of memory (15.2GB of 16.0GB used); most is held by process "
            f"{process}{owner} with 9.51 GB: python -c hoard everything that there is on this machine ...; {advice}")


def test_a_kill_for_want_of_memory_names_a_key_of_ours_if_this_run_holds_most():
    assert ending(4711) == expected(4711, " of this run", KEY), "a worker of the private Ray"
    assert ending(os.getpid()) == expected(os.getpid(), " of this run", KEY)
    with subprocess.Popen(["sleep", "60"]) as child:
        assert ending(child.pid) == expected(child.pid, " of this run", KEY)
        child.kill()
    assert ending(child.pid) == expected(child.pid, ", which has ended,", KEY), "as an engine ends with its worker"


def test_a_kill_for_want_of_memory_names_no_key_if_another_process_holds_most():
    assert ending(os.getppid()) == expected(os.getppid(), ", which is not of this run,", FREE)


def test_on_a_cluster_only_its_workers_are_taken_for_processes_of_the_run():
    assert ending(4711, "10.0.0.7") == expected(4711, ", a worker of this Ray cluster,", KEY)
    assert ending(os.getpid(), "10.0.0.7") == expected(
        os.getpid(), " of 10.0.0.7, no worker of this Ray cluster,", FREE), "its number is that of another machine"


def test_a_child_that_was_killed_said_nothing_itself():
    end = describe_exit(-9, "it printed nothing", "environment")
    assert end == ("killed by SIGKILL, as the kernel does when memory is short: env.memory_gb lowers its memory; "
                   "it printed nothing", True)
    assert describe_exit(-35, "", "environment") == ("killed by signal 35; ", True), "35 to 63 have no name"
    assert describe_exit(1, "error: no such file", "environment") == ("exit code 1; error: no such file", False)


def test_a_fault_is_the_processs_own_word():
    assert describe_actor_exit(EngineFault("start: ValueError: heads of 16"), "rollout") == (
        "start: ValueError: heads of 16", False)


def test_of_a_dead_actor_rays_guesses_are_left_out():
    error = ActorDiedError()
    error.args = ("x",)
    error.error_msg = "Worker unexpectedly exits. Some common causes include: (1) the OOM killer"
    end = describe_actor_exit(error, "rollout")
    assert end.killed
    assert "common causes" not in end.reason


def test_a_users_mistake_is_raised():
    with pytest.raises(UserError, match="no model"):
        describe_actor_exit(UserError("no model", "give one"), "rollout")
