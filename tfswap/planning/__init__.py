"""From a timeline and a budget to a plan: simulator, bounds, recomputation and planners."""
