"""Swap plans: their schema, file format, cache and renaming."""
