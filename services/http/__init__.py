"""The HTTP endpoints of all processes: how they listen, which requests they refuse, and how answers are bounded."""
