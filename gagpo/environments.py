"""Everything that an environment of your own is written with, and what its tests need.

    from gagpo.environments import Outcome, Teacher, answer, text_spec

A game with Gymnasium's reset and step is one call: `text_spec(Game, name="safe")`. docs/tasks/own-environment.md begins
there. These names are stable: a test freezes them.
"""

from envservice.adapters.dataset import dataset_spec
from envservice.adapters.gymnasium import plays_twice, text_spec
from envservice.adapters.mcp_client import McpCall, McpEpisode, mcp_spec
from envservice.adapters.openenv import openenv_spec, openenv_tools_spec
from envservice.base import Environment, Outcome, ParsedAction, PromptTemplate, Replay, Session, Turn, with_data
from envservice.client.client import EnvClient
from envservice.registry import find_spec, make_template
from envservice.spec import EnvironmentSpec, Teacher
from envservice.text.response_format import answer, read_answer, read_lowered
from services.config.tree import EnvSection, SftSection
from services.errors import EnvFault, Unavailable, UserError
from services.seeds import seed_for

__all__ = [
    "EnvClient",
    "EnvFault",
    "EnvSection",
    "Environment",
    "EnvironmentSpec",
    "McpCall",
    "McpEpisode",
    "Outcome",
    "ParsedAction",
    "PromptTemplate",
    "Replay",
    "Session",
    "SftSection",
    "Teacher",
    "Turn",
    "Unavailable",
    "UserError",
    "answer",
    "dataset_spec",
    "find_spec",
    "make_template",
    "mcp_spec",
    "openenv_spec",
    "openenv_tools_spec",
    "plays_twice",
    "read_answer",
    "read_lowered",
    "seed_for",
    "text_spec",
    "with_data",
]
