"""Adapters: games with Gymnasium's interface, rows of a dataset, and OpenEnv and MCP servers in both directions."""
