"""Example trainings. The benchmarks use their nets too."""
