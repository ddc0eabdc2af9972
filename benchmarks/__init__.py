"""Benchmarks: ``python -m benchmarks.<name>`` prints a table, ``--json`` one JSON object."""
