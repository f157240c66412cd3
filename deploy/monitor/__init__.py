"""Prometheus and Grafana over runs: the child processes of `gagpo monitor`."""
