"""A taskset of Prime Intellect's verifiers as an environment, and the agent that plays it.

verifiers 0.4 needs other versions of `openai` and `mcp` than gagpo, so it lives in a virtual environment of its own,
with the package of the taskset and `uv`, which it calls:

    python -m venv hub
    hub/bin/pip install verifiers==0.4.0 uv
    gagpo train --config my_config.yaml env.name=hub:SPEC agent.name=hub:agent eval.episodes=100

The program (hub_program.py) plays the row whose number is that of the task.
"""

from gagpo.agents import AgentProgram
from gagpo.environments import text_spec


class Row:
    """One row of the taskset. The program plays, so there is nothing to play here."""

    def reset(self, *, seed):
        """Returns the first observation."""
        return f"row {seed}", {}

    def step(self, _action):
        """Ends the episode."""
        return "The program plays.", 0.0, True, False, {}


SPEC = text_spec(Row, name="hub", sizes=(800, 100, 100))  # rows to train on, to choose by, to report on
agent = AgentProgram("hub/bin/python", "hub_program.py")
