"""Sections: batches and images too large for a single layer, and the least budgets."""
