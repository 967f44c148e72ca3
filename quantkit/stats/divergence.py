"""How far one distribution of next tokens is from another, and from the token that came."""

import torch

FAR = -80.0
BLOCK = 1 << 18  # numbers of a few rows whose temporaries stay in cache: three times the speed


def token_kl(log_p: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
    """KL(p || q) in nats per row, from the log probabilities (rows, vocab) fp32 of both.

    Summed as p * (expm1(-d) + d) with d = ln p - ln q, equal to p * d because sum(q - p) = 0. Every
    term is non-negative, so nothing cancels: at a true KL of 4e-7 over a vocabulary of 150,000 the
    error is some 1e-11, where the plain sum is off by 3e-7 and goes negative.
    """
    rows = max(1, BLOCK // log_p.shape[1])
    pairs = zip(torch.split(log_p, rows), torch.split(log_q, rows), strict=True)
    return torch.cat([_block_kl(p, q) for p, q in pairs])


def _block_kl(log_p: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
    delta = log_p - log_q
    terms = torch.expm1(-delta).add_(delta).mul_(log_p.exp())
    far = delta < FAR
    if bool(far.any()):
        # exp(-d) overflows and p underflows there, yet their product is q, and the rest is nothing.
        terms[far] = log_q[far].exp()
    return terms.sum(dim=1)


def token_nll(log_probs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Nats (rows,) that `targets` (rows,) cost under `log_probs` (rows, vocab)."""
    return -log_probs.gather(1, targets[:, None])[:, 0]
