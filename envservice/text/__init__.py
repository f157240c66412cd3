"""Text that policies read and write: plain prompts, answers in tags, tool calls, meta answers."""
