"""Operating-system matters: child processes, signals, threads, addresses, packages and the user's own code."""
