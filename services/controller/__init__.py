"""The loops that issue tickets, watch over processes and report."""
