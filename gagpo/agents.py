"""Parts that agents of your own are made of: a program as an agent, and tools as an environment offers them.

    from gagpo.agents import AgentProgram, read_call, tool

An agent that is an async function needs none of these (docs/tasks/own-agent.md). These names are stable: a test freezes
them.
"""

from envservice.text.tool_calls import Tool, ToolCall, read_call, tool
from rollout.agents.program import AgentProgram

__all__ = ["AgentProgram", "Tool", "ToolCall", "read_call", "tool"]
