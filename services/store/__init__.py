"""A run's state in Redis: tickets, episodes, manifests, leases and heartbeats. Scripts in Lua make all changes."""
