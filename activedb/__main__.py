"""``python -m activedb``, the same as ``activedb``."""

from activedb.cli import main

main()
