"""Training under a budget: from the first step to the last."""
