"""The HTTP endpoints of all processes: how they listen, which limits they keep, and whom they refuse."""
