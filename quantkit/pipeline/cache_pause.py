"""Where the forwards of a block wait before attention, for the scales of its cache.

Scales are found once all batches stand here: k's first, then v's beside rounded keys. Magnitudes
are those of all calibration tokens; the error of attention's output is measured on the first batch.
"""

from collections.abc import Callable
from dataclasses import replace
from math import isfinite
from typing import Any

import torch
from greenlet import getcurrent
from torch import nn

from quantkit.core.errors import IntegrityError
from quantkit.core.ranks import Ranks
from quantkit.grid.exchange import exchange
from quantkit.grid.kv_cache import CacheScales, candidates, rounded
from quantkit.model.attention import AttentionCall


class CachePause:
    """Sees the calls of one attention: pauses each, and rounds keys and values from then on.

    The original block, where one runs beside, keeps its cache as it is, so nothing is compared.
    """

    compared = False

    def __init__(self, where: str, module: nn.Module, ranks: Ranks) -> None:
        self.where, self.module, self.ranks, self.arrived = where, module, ranks, 0
        self.first: AttentionCall | None = None
        self.largest: list[torch.Tensor] = []
        self.scales: CacheScales | None = None

    def see(self, call: AttentionCall) -> Any:
        """The attention's output, beside a cache in 8 bits."""
        if self.scales is None:
            self._take(call)
        assert self.scales is not None
        return _cached(call, self.scales).run()

    def solve(self, _: object) -> None:
        """As `Pause`; the rank with the first batch measures for all."""
        ranks = self.ranks
        largest = self._largest_of_all()
        leader = exchange(ranks, self.first is not None).index(True)
        mine = None
        if ranks.rank == leader and self.first is not None:
            mine = least_error(self.first, *largest)
        self.scales = next(each for each in exchange(ranks, mine) if each is not None)
        self.first, self.largest = None, []

    def _take(self, call: AttentionCall) -> None:
        self.first = self.first or call
        states = torch.stack((call.key.detach(), call.value.detach()))
        self.largest.append(states.abs().flatten(1).amax(1).float())
        self.arrived += 1
        getcurrent().parent.switch()

    def _largest_of_all(self) -> tuple[float, float]:
        """The largest magnitudes of keys and values, of all ranks' tokens."""
        own = torch.stack(self.largest).amax(0).tolist() if self.largest else None
        each = [found for found in exchange(self.ranks, own) if found is not None]
        key, value = torch.tensor(each).amax(0).tolist()
        if not isfinite(key + value):
            raise IntegrityError(
                f"the keys or values of `{self.where}` are not finite",
                hint="check the weights of the blocks before it, or use bf16 where fp16 overflows",
            )
        return key, value


def _cached(call: AttentionCall, scales: CacheScales) -> AttentionCall:
    key, value = scales.change(call.key, call.value)
    return replace(call, key=key, value=value)


def least_error(call: AttentionCall, key: float, value: float) -> CacheScales:
    """The scales that change the output of a call least; `key`, `value`: largest magnitudes.

    The keys' scale is found first, then the values' beside rounded keys. The pair is no worse
    than that which spans all, or than 1 where this clips nothing.
    """
    exact = call.run()[0].float()

    def error(tried: AttentionCall) -> float:
        return float((tried.run()[0].float() - exact).square_().sum(dtype=torch.float64))

    def of_both(scales: CacheScales) -> float:
        return error(_cached(call, scales))

    keys, values = candidates(key), candidates(value)
    best = min(keys, key=lambda scale: error(replace(call, key=rounded(call.key, scale))))
    found = min((CacheScales(best, scale) for scale in values), key=of_both)
    plain = [CacheScales(1.0, 1.0)] if 1.0 in keys and 1.0 in values else []
    return min((found, CacheScales(keys[0], values[0]), *plain), key=of_both)


def through(pauses: list[CachePause]) -> Callable[[AttentionCall], Any]:
    """Has each pause see the calls of its attention; others go on."""
    by_module = {pause.module: pause for pause in pauses}

    def see(call: AttentionCall) -> Any:
        pause = by_module.get(call.module)
        return call.run() if pause is None else pause.see(call)

    return see
