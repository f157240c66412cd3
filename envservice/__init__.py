"""The environment server, its client, and one folder per environment."""
