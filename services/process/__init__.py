"""Operating-system matters: child processes, threads, addresses, shared folders, installed packages."""
