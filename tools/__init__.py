"""Release tools, not part of any distribution."""
