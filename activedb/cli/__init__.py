"""Placeholder; filled in by its room."""
