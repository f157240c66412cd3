"""`gagpo explore`: shows a run's curves, groups, episodes and states in a browser. It only reads the run's files."""
