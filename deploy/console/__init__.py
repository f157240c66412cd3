"""The progress output of commands."""
