"""Sections: batches and images of which a single layer does not fit, and the least budgets."""
