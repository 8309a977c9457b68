"""Traces from elsewhere, and one file format for our own."""
