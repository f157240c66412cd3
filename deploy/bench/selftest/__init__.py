"""`gagpo selftest`: shows on a GPU what no other machine can show."""
