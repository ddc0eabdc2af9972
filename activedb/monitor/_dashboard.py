"""Grafana dashboard."""

from __future__ import annotations

from importlib import resources

__all__ = ["grafana_dashboard"]


def grafana_dashboard() -> str:
    """Return a dashboard over the metrics of `collector`, as JSON that Grafana imports."""
    return (resources.files(__package__) / "grafana" / "activedb.json").read_text("utf-8")
