"""The user's own agents: programs that call the model. Each call becomes a step with its own credit."""
