"""Asks a server of MCP that it starts, with the client of the package `mcp`: `play.py CALLS COMMAND...`.

CALLS is a JSON list of tools with their arguments. Prints the names of the server's tools, and the results, as JSON.
"""

import asyncio
import json
import os
import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


async def main() -> None:
    calls, command, *arguments = sys.argv[1:]
    async with stdio_client(StdioServerParameters(command=command, args=arguments, env=dict(os.environ))) as streams, \
            ClientSession(*streams) as client:
        await client.initialize()
        tools = [tool.name for tool in (await client.list_tools()).tools]
        results = [(await client.call_tool(*call)).model_dump(by_alias=True, mode="json") for call in json.loads(calls)]
        print(json.dumps({"tools": tools, "results": results}))


asyncio.run(main())
