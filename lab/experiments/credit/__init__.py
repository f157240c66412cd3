"""Credit estimators on ALFWorld: one small agent for each arm and seed, from one cold start. README.md has the plan."""
