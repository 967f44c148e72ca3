"""The baseline that the embedded model must leave far behind: a trigram model with Kneser-Ney.

Interpolated Kneser-Ney with one discount per order (Chen and Goodman 1999, section 2.7).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Reals = NDArray[np.float64]


@dataclass(frozen=True)
class Order:
    """The counts of one order: sorted keys of (context, token), and totals per context."""

    keys: Ids
    counts: Reals
    contexts: Ids
    totals: Reals
    kinds: Reals
    discount: float


def _order(keys: Ids, counts: Reals, vocabulary: int) -> Order:
    contexts, first = np.unique(keys // vocabulary, return_index=True)
    once, twice = np.sum(counts == 1), np.sum(counts == 2)
    kinds = np.diff(np.append(first, keys.size)).astype(np.float64)
    totals = np.add.reduceat(counts, first)
    # Where nothing was seen just once, something must still be left for the unseen.
    discount = float(once / (once + 2 * twice)) if once else 0.5
    return Order(keys, counts, contexts, totals, kinds, discount)


def _found(sorted_keys: Ids, values: Reals, wanted: Ids) -> Reals:
    at = np.minimum(np.searchsorted(sorted_keys, wanted), sorted_keys.size - 1)
    return np.where(sorted_keys[at] == wanted, values[at], 0.0)


def _mix(order: Order, wanted: Ids, vocabulary: int, lower: Reals) -> Reals:
    """Discounted relative frequency plus the freed mass times the lower order's probability."""
    context = wanted // vocabulary
    total = _found(order.contexts, order.totals, context)
    kinds = _found(order.contexts, order.kinds, context)
    count = np.maximum(_found(order.keys, order.counts, wanted) - order.discount, 0.0)
    seen = np.maximum(total, 1.0)
    return np.where(total > 0, (count + order.discount * kinds * lower) / seen, lower)


class Trigram:
    """A trigram model of (n_windows, length) token ids."""

    def __init__(self, windows: Ids, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        a, b, c = windows[:, :-2].ravel(), windows[:, 1:-1].ravel(), windows[:, 2:].ravel()
        keys, counts = np.unique((a * vocabulary + b) * vocabulary + c, return_counts=True)
        # Lower orders count in how many contexts a token was seen, not how often.
        pairs, before = np.unique(keys % vocabulary**2, return_counts=True)
        singles, kinds = np.unique(pairs % vocabulary, return_counts=True)
        self.third = _order(keys, counts.astype(np.float64), vocabulary)
        self.second = _order(pairs, before.astype(np.float64), vocabulary)
        self.first = _order(singles, kinds.astype(np.float64), vocabulary)

    def nats(self, windows: Ids) -> Reals:
        """Nats of each token from the third on, shape (n_windows, length - 2)."""
        a, b, c = windows[:, :-2], windows[:, 1:-1], windows[:, 2:]
        uniform = np.full(c.shape, 1.0 / self.vocabulary)
        one = _mix(self.first, c, self.vocabulary, uniform)
        two = _mix(self.second, b * self.vocabulary + c, self.vocabulary, one)
        wanted = (a * self.vocabulary + b) * self.vocabulary + c
        return -np.log(_mix(self.third, wanted, self.vocabulary, two))
