"""Environments of Prime Intellect's verifiers, and the agents that play them: one row of their data is one task.

verifiers needs other versions of `openai` and `mcp` than gagpo, so it lives in a virtual environment of its own, with
the package of the environment. Versions below 0.4 play its environments (MultiTurnEnv, ToolEnv and what is made of
them), newer ones its tasksets.

    python -m venv hub
    hub/bin/pip install 'verifiers<0.4' my-environment       # an environment
    hub/bin/pip install 'verifiers>=0.4' my-taskset          # a taskset
    gagpo train --config my_config.yaml env.name=hub:SPEC agent.name=hub:environment eval.episodes=100

The program plays the row whose number is that of the task.
"""

from gagpo.agents import AgentProgram
from gagpo.environments import text_spec


class Row:
    """One row of the data. The program plays, so there is nothing to play here."""

    def reset(self, *, seed):
        """Returns the first observation."""
        return f"row {seed}", {}

    def step(self, _action):
        """Ends the episode."""
        return "The program plays.", 0.0, True, False, {}


SPEC = text_spec(Row, name="hub", sizes=(800, 100, 100))  # rows to train on, to choose by, to report on
environment = AgentProgram("hub/bin/python", "environment_program.py", "my_environment")
taskset = AgentProgram("hub/bin/python", "taskset_program.py", "owner/name")
