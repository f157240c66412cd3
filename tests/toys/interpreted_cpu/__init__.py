"""A backend "cpu" of Triton, for processes in which TRITON_INTERPRET=1 interprets every kernel: it compiles nothing."""
