"""Redis: tickets, episodes, manifests and leases behind five fenced scripts."""
