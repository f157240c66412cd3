"""How a process ended, in one line, and whether it said so itself."""

import pytest
from ray.exceptions import ActorDiedError, OutOfMemoryError

from deploy.members.endings import of_actor, of_exit
from services.errors import EngineFault, UserError

FULL = """\
1 worker(s) were killed due to the node running low on memory. \
Memory on the node (IP: 10.0.0.7, ID: ab) was 15.2GB used / 16.0GB limit (0.950000)
OOM kill reason: the node's memory is above the threshold
Object store memory usage: [- objects spillable: 0]
Ray killed 1 worker(s) based on the killing policy
To see more information about memory usage on this node, use `ray logs raylet.out -ip 10.0.0.7`
Top 10 memory users: PID\tMEM(GB)\tCOMMAND
4711\t9.51\tpython -c hoard everything that there is on this machine and then some more
12\t0.40\tray::LearnerRank
"""


def test_a_kill_for_want_of_memory_says_who_held_it_and_which_key_lowers_ours():
    end = of_actor(OutOfMemoryError(FULL), "learner")
    assert end.killed
    assert end.reason == (
        "killed by Ray because its machine ran out of memory (15.2GB of 16.0GB used); most is held by process 4711 "
        "with 9.51 GB: python -c hoard everything that there is on this machine ...; "
        "learner.token_budget lowers its memory")


def test_a_child_that_was_killed_said_nothing_itself():
    end = of_exit(-9, "it said nothing", "environment")
    assert end == ("killed by SIGKILL, as the kernel does when memory is short: env.memory_gb lowers its memory; "
                   "it said nothing", True)
    assert of_exit(-35, "", "environment") == ("killed by signal 35; ", True), "signals from 35 to 63 have no name"
    assert of_exit(1, "error: no such file", "environment") == ("exit code 1; error: no such file", False)


def test_a_fault_is_the_processs_own_word():
    assert of_actor(EngineFault("start: ValueError: heads of 16"), "rollout") == (
        "start: ValueError: heads of 16", False)


def test_of_a_dead_actor_rays_guesses_are_left_out():
    error = ActorDiedError()
    error.args = ("x",)
    error.error_msg = "Worker unexpectedly exits. Some common causes include: (1) the OOM killer"
    end = of_actor(error, "rollout")
    assert end.killed
    assert "common causes" not in end.reason


def test_a_users_mistake_is_raised():
    with pytest.raises(UserError, match="no model"):
        of_actor(UserError("no model", "give one"), "rollout")
