"""Programs that others wrote, run unchanged under a budget: `python -m benchmarks.programs`."""
