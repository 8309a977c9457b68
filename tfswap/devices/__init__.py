"""The devices of a training under their budgets, and the options of a session."""
