"""An agent that is a program: started for each episode, told where the model is by OpenAI's environment variables."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass

from rollout.agents.session import AgentSession
from rollout.agents.world import AgentWorld

LAST_LINES = 400
"""Characters of what a failed program printed that its error repeats."""


@dataclass(frozen=True)
class AgentProgram:
    """`AgentProgram("python", "my_agent.py")` as an agent. Any client of OpenAI's API in it talks to the episode.

    It is told the task by $GAGPO_TASK, and the environment's address by $GAGPO_ENV_URL (`/reset`, `/step`). Its end is
    the end of the episode. Raises RuntimeError, with the last of what it printed, if its status is not 0.
    """

    command: Sequence[str]

    def __init__(self, *command: str) -> None:
        object.__setattr__(self, "command", command)

    async def __call__(self, task: str, llm: AgentSession, env: AgentWorld) -> None:
        """Runs the program to its end. It is killed with the episode."""
        del env  # it is reached over HTTP
        told = {"OPENAI_BASE_URL": llm.base_url, "OPENAI_API_KEY": llm.api_key, "GAGPO_TASK": task,
                "GAGPO_ENV_URL": f"{llm.base_url.removesuffix('/v1')}/env"}
        process = await asyncio.create_subprocess_exec(
            *self.command, env=os.environ | told, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT)
        try:
            printed, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            said = printed.decode(errors="replace").strip()[-LAST_LINES:]
            raise RuntimeError(f"{self.command[0]} ended with status {process.returncode}: {said}")
