"""ALFWorld: engine, tasks, generator, prompt and parser."""
