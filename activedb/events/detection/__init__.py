"""Evaluation of event expressions by a tree of nodes. See README.md."""

__all__: list[str] = []
