"""What is run around a release, and is in no distribution."""
