"""Nodes of the forest behind the handles that users have."""

from activedb.transactions import Node, Transaction

__all__ = ["node_of"]


def node_of(t: Transaction) -> Node:
    return t._node
