"""Estimators and state keys with a log-linear policy on ALFWorld games. README.md has the plan."""
