"""Web dashboard of a running process; see README.md.

It needs the extra ``dashboard``, which brings NiceGUI: ``pip install '.[dashboard]'``.
"""

from activedb.dashboard._server import serve

__all__ = ["serve"]
