"""A server of MCP with a counter, files and several ways to break: `doors.py` on standard input, or `doors.py PORT`."""

import os
import sys
import time
from pathlib import Path

from mcp.server import MCPServer
from mcp.types import ImageContent

server = MCPServer("doors")
opened: list[int] = []


@server.tool()
def open_door(number: int) -> str:
    """Opens a door."""
    opened.append(number)
    return f"{len(opened)} open."


@server.tool()
def read(name: str) -> str:
    """Reads a file."""
    return Path(name).read_text()


@server.tool()
def grade() -> dict[str, float]:
    """Says what the doors are worth."""
    return {"grade": float(sum(opened))}


@server.tool()
def draw() -> ImageContent:
    """Draws the doors."""
    return ImageContent(type="image", data="AAAA", mime_type="image/png")


@server.tool()
def wait() -> str:
    """Takes long."""
    time.sleep(60)
    return ""


@server.tool()
def leave() -> str:
    """Ends the server."""
    os._exit(3)


if len(sys.argv) > 1:
    server.run("streamable-http", port=int(sys.argv[1]))
else:
    server.run()
