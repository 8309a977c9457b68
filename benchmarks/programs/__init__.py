"""Third-party programs, run unchanged under a budget: `python -m benchmarks.programs`."""
