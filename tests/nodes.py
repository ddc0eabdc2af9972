"""Nodes of the forest behind the handles that users have."""

from activedb.transactions import Transaction, TransactionNode

__all__ = ["node_of"]


def node_of(t: Transaction) -> TransactionNode:
    return t._node
