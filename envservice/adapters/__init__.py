"""Environments of others: games with Gymnasium's interface, rows of a data set, OpenEnv servers both ways."""
