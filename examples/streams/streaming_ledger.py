"""Streaming Ledger: deposits to, and transfers between, accounts and assets.

A transfer moves an amount between two accounts and another between two assets. These are four
writes; each is a function of the balance that it changes and, for a receiver, of the sender's
balance (Mao et al., figure 1 and algorithm 2). A transfer aborts as a whole if a sender's balance
is too low. A deposit is one write of an account and one of an asset; it aborts if an amount is not
positive. The defaults are those of the paper's table 6: 122,880 accounts and as many assets, every
fourth event a deposit.

With ``--check``, a plain loop over the same events must give the same balances and aborts, and the
money must be the initial amount plus the deposits.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from _columns import GeneratedEvents, Skewed, aborting, times
from _command import even_length, ratio, report, workload_parser
from _delays import delayed
from _running import exit_status
from _workload import Expected

from activedb.scheduling import Access, Program, SharedTable

if TYPE_CHECKING:
    import argparse

ACCOUNTS = 122_880  # and as many assets
BATCH = 10_240  # events between two punctuations
LENGTH = 4  # writes of a transfer
BALANCE = 1_000_000.0
AMOUNT = 100  # maximum that is moved
TOO_MUCH = 10**12  # more than any balance


# -- the program -----------------------------------------------------------------------------------


def program(accounts: int = ACCOUNTS, length: int = LENGTH, turns: int = 0) -> Program:
    """Return the ledger, with separate tables.

    Parameters
    ----------
    accounts : int
        Number of accounts, and of assets.
    length : int
        Writes of a transfer, an even number: two per amount moved, alternately of accounts and
        assets. A deposit has half as many.
    turns : int
        Iterations of the loop that slows each function down; see `delayed`.
    """
    tables = tuple(
        SharedTable(name, initial=BALANCE, size=accounts) for name in ("accounts", "assets")
    )
    ledger = Program("streaming_ledger", tables)
    gets, sends, receives = (delayed(f, turns) for f in (deposit, send, receive))
    moves = [(tables[move % 2], move) for move in range(length // 2)]

    @ledger.on("DEPOSIT")
    def deposits(e: Mapping[str, Any], access: Access) -> None:
        for table, move in moves:
            access.write(table[e[f"to{move}"]], gets, e[f"amount{move}"])

    @ledger.on("TRANSFER")
    def transfers(e: Mapping[str, Any], access: Access) -> None:
        for table, move in moves:
            sender, receiver = table[e[f"from{move}"]], table[e[f"to{move}"]]
            access.write(sender, sends, e[f"amount{move}"])
            access.write(receiver, receives, e[f"amount{move}"], reads=(receiver, sender))

    return ledger


def deposit(balance: float, amount: float) -> float | None:
    """Return the balance after a deposit."""
    if amount <= 0:
        return None
    return balance + amount


def send(balance: float, amount: float) -> float | None:
    """Return the sender's balance after a transfer."""
    if balance < amount:
        return None
    return balance - amount


def receive(balance: float, of_sender: float, amount: float) -> float | None:
    """Return the receiver's balance after a transfer."""
    if of_sender < amount:
        return None
    return balance + amount


# -- the events ------------------------------------------------------------------------------------


def columns(
    events: int,
    *,
    accounts: int = ACCOUNTS,
    length: int = LENGTH,
    deposits: float = 0.25,
    skew: float = 0.2,
    aborts: float = 0.01,
    disorder: int = 0,
    seed: int = 1,
) -> GeneratedEvents:
    """Return generated events.

    Parameters
    ----------
    events : int
        Number of events.
    accounts, length : int
        As for `program`; at least `length` accounts.
    deposits : float
        Share of deposits.
    skew : float
        Theta of the accounts and assets, see `Skewed`.
    aborts : float
        Share of events with an invalid amount.
    disorder : int
        Number of events that may overtake one.
    seed : int
        Seed of the generator.
    """
    rng = np.random.default_rng(seed)
    codes = (rng.random(events) >= deposits).astype(np.int64)
    bad = aborting(rng, events, aborts)
    keys = [Skewed(rng, accounts, skew) for _ in range(2)]
    params: dict[str, Any] = {}
    moves = range(length // 2)
    for table in range(2):
        of_table = moves[table::2]
        drawn = iter(keys[table].distinct(events, 2 * len(of_table)))
        for move in of_table:
            params[f"from{move}"], params[f"to{move}"] = next(drawn), next(drawn)
    for move in moves:
        amounts = rng.integers(1, AMOUNT, events, dtype=np.int64, endpoint=True)
        params[f"amount{move}"] = np.where(bad, np.where(codes == 0, -1, TOO_MUCH), amounts)
    takes = {
        "DEPOSIT": tuple(f"{name}{move}" for move in moves for name in ("to", "amount")),
        "TRANSFER": tuple(f"{name}{move}" for move in moves for name in ("from", "to", "amount")),
    }
    return GeneratedEvents(takes, codes, times(events), params).late(rng, disorder)


# -- the check -------------------------------------------------------------------------------------


def replay(events: GeneratedEvents, accounts: int = ACCOUNTS) -> Expected:
    """Return the expected result of events, computed by a plain loop."""
    ordered = events.in_order()
    books = {"accounts": [BALANCE] * accounts, "assets": [BALANCE] * accounts}
    rows = {name: column.tolist() for name, column in ordered.params.items()}
    count = sum(name.startswith("to") for name in rows)
    totals = dict.fromkeys(books, BALANCE * accounts)
    committed = []
    for row, code in enumerate(ordered.codes.tolist()):
        moves = [
            (name, *(rows[f"{part}{move}"][row] for part in ("from", "to", "amount")))
            for move, name in zip(range(count), ["accounts", "assets"] * count, strict=False)
        ]
        if code == 0:
            right = all(amount > 0 for *_, amount in moves)
        else:
            right = all(books[name][sender] >= amount for name, sender, _, amount in moves)
        committed.append(right)
        for name, sender, receiver, amount in moves if right else ():
            books[name][receiver] += amount
            if code == 0:
                totals[name] += amount
            else:
                books[name][sender] -= amount
    return Expected(committed, books, totals=totals)


# -- the command -----------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit status."""
    options = workload_parser(__doc__ or "", batch=BATCH)
    options.add_argument(
        "--length",
        type=even_length,
        default=LENGTH,
        metavar="N",
        help="writes of a transfer, 2, 4, 6, 8 or 10 (default: %(default)s)",
    )
    options.add_argument(
        "--deposits",
        type=ratio,
        default=0.25,
        metavar="RATIO",
        help="the share of deposits (default: %(default)s)",
    )
    return exit_status(_command, options.parse_args(arguments))


def _command(options: argparse.Namespace) -> int:
    events = columns(
        options.events,
        length=options.length,
        deposits=options.deposits,
        skew=options.skew,
        aborts=options.aborts,
        disorder=options.disorder,
        seed=options.seed,
    )
    return report(options, program(length=options.length), events, replay)


if __name__ == "__main__":
    sys.exit(main())
