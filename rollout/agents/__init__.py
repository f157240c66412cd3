"""Agents of the user's own: programs that ask the model. Each call becomes a step with its credit."""
