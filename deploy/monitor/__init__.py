"""Prometheus and Grafana over runs: boards, and the processes of `gagpo monitor`."""
