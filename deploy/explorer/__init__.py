"""`gagpo explore`: a run's curves, groups, episodes and states in a browser. Reads files, changes none of them."""
