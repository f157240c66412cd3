"""The kinds of process that a run keeps alive, each as a Member of services/controller/supervise.py."""
