"""KL from a distribution of which only the likeliest tokens and a few samples were kept.

With S the kept tokens of p, T the rest, tau = p(T) and sigma = q(T), the chain rule gives
KL(p || q) = L + tau * KL(p_T || q_T) with L = sum over S of p ln(p/q) + tau ln(tau/sigma), so L is
a lower bound. On T no p is above c, the smallest kept one, and sum p ln(p/q) is convex in p, so its
maximum is a vertex: floor(tau/c) times c where q is smallest, what is left of tau on the next one:
the upper bound U. With samples i of p_T, u = ln(p_i/q_i) - ln(tau/sigma) and phi(u) = e^-u - 1 + u,
L + tau * mean phi(u) is unbiased, as E[phi(u)] = KL(p_T || q_T), and no term is negative.

All sums are of p * phi(ln p - ln q) = q - p + p ln(p/q), whose terms are not negative, in fp64.
"""

from dataclasses import dataclass

import torch

from quantkit.stats.divergence import FAR

KEPT = 256
SAMPLES = 8


@dataclass(frozen=True)
class TopK:
    """Rows of a distribution: kept `ids` and their log probabilities (rows, kept), likeliest first.

    `tail` (rows,) is the probability of all others; `sample_ids`, `sample_log_p` (rows, samples)
    are drawn from them with replacement, in proportion to it.
    """

    ids: torch.Tensor
    log_p: torch.Tensor
    tail: torch.Tensor
    sample_ids: torch.Tensor
    sample_log_p: torch.Tensor


@dataclass(frozen=True)
class TopKDivergence:
    """KL in nats per row (rows,) fp64: estimate, its variance by sampling, and proven bounds."""

    estimate: torch.Tensor
    variance: torch.Tensor
    lower: torch.Tensor
    upper: torch.Tensor


def compress(
    log_p: torch.Tensor, generator: torch.Generator, kept: int = KEPT, samples: int = SAMPLES
) -> TopK:
    """What is kept of log probabilities (rows, vocabulary) fp32; `generator` is the CPU's."""
    top = log_p.topk(min(kept, log_p.shape[1]), dim=-1)
    rest = log_p.scatter(1, top.indices, -torch.inf)
    tail = rest.exp().sum(dim=-1, dtype=torch.float64)
    # A row without a rest is drawn from itself: with no probability behind it, that counts nothing.
    weights = torch.where(tail[:, None] > 0, rest, log_p)
    weights = (weights - weights.amax(dim=-1, keepdim=True)).exp().cpu()
    drawn = torch.multinomial(weights, samples, replacement=True, generator=generator)
    drawn = drawn.to(log_p.device)
    return TopK(top.indices.int(), top.values, tail.float(), drawn.int(), log_p.gather(1, drawn))


def divergence(kept: TopK, log_q: torch.Tensor) -> TopKDivergence:
    """KL of the kept rows from `log_q` (rows, vocabulary) fp32, known in full."""
    ids = kept.ids.long()
    log_p, own = kept.log_p.double(), log_q.gather(1, ids).double()
    rest = log_q.scatter(1, ids, -torch.inf)
    log_sigma = torch.logsumexp(rest.double(), dim=-1)
    tau = kept.tail.double()
    log_tau = tau.log()
    on_kept = _terms(log_p, own).sum(dim=-1)
    lower = on_kept + _terms(log_tau, log_sigma)
    drawn = log_q.gather(1, kept.sample_ids.long()).double()
    u = kept.sample_log_p.double() - drawn - (log_tau - log_sigma)[:, None]
    phi = torch.where(tau[:, None] > 0, torch.expm1(-u) + u, 0.0)
    mean, count = phi.mean(dim=-1), phi.shape[1]
    spread = phi.var(dim=-1) / count if count > 1 else torch.zeros_like(mean)
    upper = on_kept + _largest_tail(rest, kept, tau, log_sigma.exp())
    return TopKDivergence(lower + tau * mean, tau**2 * spread, lower, torch.maximum(upper, lower))


def _terms(log_p: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
    """The terms p * phi(ln p - ln q) = q - p + p ln(p/q); where p is next to nothing, q."""
    delta = log_p - log_q
    near = log_p.exp() * (torch.expm1(-delta) + delta)
    terms = torch.where(delta < FAR, log_q.exp(), near)
    return torch.where(log_p == log_q, 0.0, terms)


def _largest_tail(
    rest: torch.Tensor, kept: TopK, tau: torch.Tensor, sigma: torch.Tensor
) -> torch.Tensor:
    """The largest sum over T of q - p + p ln(p/q) that tau and c allow."""
    log_c = kept.log_p[:, -1].double()
    free = rest.shape[1] - kept.ids.shape[1]
    if free == 0:
        return torch.zeros_like(tau)
    # fp32 sums may say that the tail holds a little more than its tokens can: then all are at c
    full = torch.clamp((tau / log_c.exp()).floor(), max=free).long()
    most = min(int(full.max()) + 1, free)
    smallest = rest.masked_fill(rest == -torch.inf, torch.inf).topk(
        most, largest=False, sorted=True
    )
    log_q = smallest.values.double()
    summed = torch.cat([torch.zeros_like(log_q[:, :1]), log_q.cumsum(dim=-1)], dim=-1)
    count = full.double()
    left = (tau - count * log_c.exp()).clamp(min=0)
    next_q = log_q.gather(1, full.clamp(max=most - 1)[:, None])[:, 0]
    at_c = log_c.exp() * (count * log_c - summed.gather(1, full[:, None])[:, 0])
    return sigma - tau + at_c + torch.xlogy(left, left) - left * next_q
