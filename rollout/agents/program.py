"""An agent that is a program. It is started for each episode, and finds the model by its client's own variables."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rollout.agents.session import AgentSession
from rollout.agents.world import AgentWorld
from services.config.secrets import VARIABLES
from services.errors import AgentFault, UserError
from services.process.child_processes import ending_with_parent
from services.process.guard import processes_with

SCRIPTS = frozenset({".py", ".sh", ".js", ".mjs", ".ts", ".rb", ".pl"})
"""File name extensions of scripts."""
CODE = ("-c", "-m")
"""Python's options that are followed by code or a module, and not by a script."""
LAST_BYTES = 400
"""Bytes of a failed program's output that its error repeats."""
USERS_LOGIN = "ANTHROPIC_AUTH_TOKEN"
"""The variable of a user's own login, which clients of Anthropic would send next to the episode's key."""
MARK = "GAGPO_PROGRAM"
"""The variable that marks the processes of one episode's program, in whatever session they are."""
KILL_S, LOOK_S = 5.0, 0.05
"""For how long remaining processes are killed again and again, since they may start others, and the pause between."""


@dataclass(frozen=True)
class AgentProgram:
    """`AgentProgram("python", "my_agent.py")` as an agent. Any client of OpenAI or of Anthropic in it talks to the
    episode.

    $GAGPO_TASK has the task, and $GAGPO_ENV_URL the environment's address (`/reset`, `/step`). The episode ends when
    the program ends, and all processes that it has started end with it (without Linux only those of its process group).
    It does not get the run's passwords and tokens, those of its object store, trackers and Ray included, because a
    model may control it. Raises AgentFault with the end of its output if its status is not 0.
    """

    command: Sequence[str]

    def __init__(self, *command: str) -> None:
        object.__setattr__(self, "command", command)

    def check(self, name: str) -> None:
        """Raises UserError if it names no program that can be started here, or a script that is not here.

        Only the first argument, after Python's short options, is taken for a script: any other may name a file that the
        program will write. `name`: the agent's, for the message.
        """
        program = self.command[0] if self.command else ""
        if shutil.which(program) is None:
            raise UserError(f"the agent {name} starts the program {program!r}, and there is none",
                            "correct its name in AgentProgram, or install it")
        python = Path(program).name.startswith("python")
        script = next((word for word in self.command[1:]
                       if not python or word in CODE or len(word) != 2 or word[0] != "-"), "")
        if Path(script).suffix in SCRIPTS and not script.startswith("-") and not Path(script).is_file():
            raise UserError(f"the agent {name} starts {script}, and there is no such file in {Path.cwd()}",
                            "correct its name in AgentProgram, or give its full path")

    async def __call__(self, task: str, llm: AgentSession, env: AgentWorld) -> None:
        """Runs the program to its end. It is killed with the episode, and all that it has started with it."""
        del env  # the program reaches it over HTTP
        mark = f"{MARK}={secrets.token_hex(8)}"
        variables = {"OPENAI_BASE_URL": llm.base_url, "OPENAI_API_KEY": llm.api_key,
                     "ANTHROPIC_BASE_URL": llm.server_url, "ANTHROPIC_API_KEY": llm.api_key, "GAGPO_TASK": task,
                     "GAGPO_ENV_URL": f"{llm.server_url}/env", MARK: mark.partition("=")[2]}
        environ = {name: value for name, value in os.environ.items() if name not in (*VARIABLES, USERS_LOGIN)}
        with tempfile.TemporaryFile() as printed:  # a child of the program could hold a pipe open for ever
            process = await asyncio.create_subprocess_exec(
                *ending_with_parent(self.command), env=environ | variables, stdin=asyncio.subprocess.DEVNULL,
                stdout=printed, stderr=asyncio.subprocess.STDOUT, start_new_session=True)
            try:
                await process.wait()
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
                await asyncio.to_thread(_kill_remaining, mark.encode())
            if process.returncode:
                printed.seek(max(0, printed.seek(0, os.SEEK_END) - LAST_BYTES))
                output = printed.read().decode(errors="replace").strip()
                raise AgentFault(f"{self.command[0]} ended with status {process.returncode}: {output}")


def _kill_remaining(mark: bytes) -> None:
    """Kills processes outside the program's process group, such as browsers and the shells of tools. Linux only."""
    until = time.monotonic() + KILL_S
    while sys.platform == "linux" and time.monotonic() < until and (left := processes_with(mark.__eq__)):
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(LOOK_S)
