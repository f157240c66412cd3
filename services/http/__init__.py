"""The HTTP endpoints of all processes: how they listen, their limits, and which requests they refuse."""
