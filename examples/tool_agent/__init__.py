"""An agent written against the official `openai` client, and a small task that needs tools: see config.yaml."""
