"""Online Bidding: bids take items, sellers alter prices and top up quantities.

===========  =====================================================================================
event        effect
===========  =====================================================================================
BID          takes a quantity of one item; aborts if it offers less than the price, or if the
             quantity is not available
ALTER_PRICE  sets the prices of some items; aborts if a price is not positive
TOP_UP       adds to the quantities of some items; aborts if an addition is not positive
===========  =====================================================================================

Of eight events, six are bids, one alters prices and one tops up: the auction site of benchmarks for
stream transactions. There are 10,000 items; ALTER_PRICE and TOP_UP change 4 items at once. An
altered price therefore decides which later bids abort.

With ``--check``, a plain loop over the same events must give the same prices, quantities and
aborts, and every unit that ever existed must still exist or be sold.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from _columns import GeneratedEvents, Skewed, aborting, times
from _command import report, up_to_ten, workload_parser
from _delays import delayed
from _running import exit_status
from _workload import Expected

from activedb.scheduling import Access, Outcome, Program, SharedTable

if TYPE_CHECKING:
    import argparse

ITEMS = 10_000
BATCH = 10_240  # events between two punctuations
LENGTH = 4  # items whose prices are altered, or quantities topped up, by one event
PRICE = 50.0  # initial price
QUANTITY = 100.0
PRICE_MAX = 100
SHARES = (0.75, 0.125, 0.125)  # shares of the event types


# -- the program -----------------------------------------------------------------------------------


def program(items: int = ITEMS, length: int = LENGTH, turns: int = 0) -> Program:
    """Return the program, with separate tables; outputs are the quantities that bids left.

    Parameters
    ----------
    items : int
        Number of items.
    length : int
        Items whose prices are altered, or quantities topped up, by one event.
    turns : int
        Iterations of the loop that slows each function down; see `delayed`.
    """
    prices = SharedTable("prices", initial=PRICE, size=items)
    quantities = SharedTable("quantities", initial=QUANTITY, size=items)
    bidding = Program("online_bidding", [prices, quantities])
    takes, puts, adds = (delayed(f, turns) for f in (take, put, add))

    @bidding.on("BID")
    def bids(e: Mapping[str, Any], access: Access) -> None:
        item = quantities[e["item0"]]
        reads = (item, prices[e["item0"]])
        access.write(item, takes, e["price0"], e["quantity0"], reads=reads)

    @bidding.on("ALTER_PRICE")
    def alters(e: Mapping[str, Any], access: Access) -> None:
        for number in range(length):
            access.write(prices[e[f"item{number}"]], puts, e[f"price{number}"], reads=())

    @bidding.on("TOP_UP")
    def tops_up(e: Mapping[str, Any], access: Access) -> None:
        for number in range(length):
            access.write(quantities[e[f"item{number}"]], adds, e[f"quantity{number}"])

    @bidding.post_process
    def left(type_: str, e: Mapping[str, Any], outcome: Outcome) -> float | None:
        return outcome.results[0] if type_ == "BID" and outcome.committed else None

    return bidding


def take(quantity: float, price: float, offered: float, wanted: float) -> float | None:
    """Return the quantity that a bid leaves."""
    if offered < price or quantity < wanted:
        return None
    return quantity - wanted


def put(price: float) -> float | None:
    """Return a price if it is valid, else None."""
    if price <= 0:
        return None
    return price


def add(quantity: float, more: float) -> float | None:
    """Return the quantity after a top-up."""
    if more <= 0:
        return None
    return quantity + more


# -- the events ------------------------------------------------------------------------------------


def columns(
    events: int,
    *,
    items: int = ITEMS,
    length: int = LENGTH,
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
    items, length : int
        As for `program`; at least `length` items.
    skew : float
        Theta of the items, see `Skewed`.
    aborts : float
        Share of events that offer, set or add nothing. Other bids abort, too, if the price is too
        high or the quantity too low.
    disorder : int
        Number of events that may overtake one.
    seed : int
        Seed of the generator.
    """
    rng = np.random.default_rng(seed)
    bad = aborting(rng, events, aborts)
    codes = rng.choice(len(SHARES), events, p=SHARES).astype(np.int64)
    bids, alters, _ = (codes == code for code in range(3))
    params: dict[str, Any] = {}
    for number, column in enumerate(Skewed(rng, items, skew).distinct(events, length)):
        params[f"item{number}"] = column
        prices = rng.integers(1, PRICE_MAX, events, endpoint=True).astype(np.float64)
        prices[bids] += PRICE_MAX / 2  # most bids suffice
        params[f"price{number}"] = np.where(bad & (bids | alters), 0.0, prices)
        quantities = rng.integers(1, 10, events, endpoint=True).astype(np.float64)
        params[f"quantity{number}"] = np.where(bad & ~bids, 0.0, quantities)
    numbers = range(length)
    takes = {
        "BID": ("item0", "price0", "quantity0"),
        "ALTER_PRICE": tuple(f"{name}{n}" for n in numbers for name in ("item", "price")),
        "TOP_UP": tuple(f"{name}{n}" for n in numbers for name in ("item", "quantity")),
    }
    return GeneratedEvents(takes, codes, times(events), params).late(rng, disorder)


# -- the check -------------------------------------------------------------------------------------


def replay(events: GeneratedEvents, items: int = ITEMS) -> Expected:
    """Return the expected result of events, computed by a plain loop."""
    ordered = events.in_order()
    rows = {name: column.tolist() for name, column in ordered.params.items()}
    numbers = range(len(rows) // 3)
    prices, quantities = [PRICE] * items, [QUANTITY] * items
    sold, added = 0.0, 0.0
    committed, outputs = [], []
    for row, code in enumerate(ordered.codes.tolist()):
        lines = [
            tuple(rows[f"{name}{number}"][row] for name in ("item", "price", "quantity"))
            for number in numbers
        ]
        item, price, quantity = lines[0]
        if code == 0:
            right = price >= prices[item] and quantities[item] >= quantity
            if right:
                quantities[item] -= quantity
                sold += quantity
                outputs.append(quantities[item])
        elif code == 1:
            right = all(price > 0 for _, price, _ in lines)
            for item, price, _ in lines if right else ():
                prices[item] = price
        else:
            right = all(quantity > 0 for *_, quantity in lines)
            for item, _, quantity in lines if right else ():
                quantities[item] += quantity
                added += quantity
        committed.append(right)
    totals = {"quantities": QUANTITY * items + added - sold}
    return Expected(committed, {"prices": prices, "quantities": quantities}, outputs, totals)


# -- the command -----------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit status."""
    options = workload_parser(__doc__ or "", batch=BATCH)
    options.add_argument(
        "--length",
        type=up_to_ten,
        default=LENGTH,
        metavar="N",
        help="items per altering or topping up, 1 to 10 (default: %(default)s)",
    )
    return exit_status(_command, options.parse_args(arguments))


def _command(options: argparse.Namespace) -> int:
    events = columns(
        options.events,
        length=options.length,
        skew=options.skew,
        aborts=options.aborts,
        disorder=options.disorder,
        seed=options.seed,
    )
    return report(options, program(length=options.length), events, replay)


if __name__ == "__main__":
    sys.exit(main())
