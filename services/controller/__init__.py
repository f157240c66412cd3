"""The controller: it issues tickets, keeps the processes alive, evaluates and reports."""
