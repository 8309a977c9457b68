"""Trainings to run; their nets are the benchmarks' too."""
