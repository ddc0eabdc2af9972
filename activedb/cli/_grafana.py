"""``activedb grafana``: the dashboard that comes with the metrics."""

from __future__ import annotations

import typer

from activedb.monitor import grafana_dashboard

__all__ = ["grafana"]


def grafana() -> None:
    """Print the Grafana dashboard as JSON, to import it or to provision it as a file."""
    typer.echo(grafana_dashboard(), nl=False)
