"""How a detector finds matches: a tree of nodes. See README.md."""
