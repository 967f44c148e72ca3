"""Softmax and KL divergence of rows whose logits arrive in tiles of columns.

A row's sums are in fp64, those within a tile in fp32. Tiles are overwritten, and further memory of
their size is allocated once, so that every pass over a small tile finds it in cache.
"""

import torch

FAR = 40.0
"""Differences of log probabilities at which one of the two probabilities counts nothing."""


class RunningSoftmax:
    """ln sum e^z, the likeliest token and the target's logit of each row.

    `largest` (rows,) fp32 is the largest logit so far, `total` (rows,) fp64 the sum of
    e^(z - largest), `likeliest` (rows,) int64 the first column with the largest logit.
    """

    def __init__(self, targets: torch.Tensor) -> None:
        """`targets` (rows,) int64 are columns."""
        self._targets = targets
        self._seen = 0
        self._target = torch.zeros_like(targets, dtype=torch.float32)
        # A finite start: a tile that is -inf throughout must not give -inf - -inf.
        self.largest = torch.full_like(self._target, torch.finfo(torch.float32).min)
        self.total = torch.zeros_like(targets, dtype=torch.float64)
        self.likeliest = torch.zeros_like(targets)

    def add(self, logits: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Add logits (rows, columns), and return e^(logits - largest) in `out` of that shape.

        `out` may be the logits themselves.
        """
        self._find_target(logits)
        top = logits.amax(dim=1)
        higher = (top > self.largest).nonzero()[:, 0]
        if len(higher):  # few rows after the first tiles, and argmax costs ten times amax
            self.likeliest[higher] = self._seen + logits[higher].argmax(dim=1)
        largest = torch.maximum(top, self.largest)
        weights = torch.sub(logits, largest[:, None], out=out).exp_()
        self.total *= (self.largest - largest).double().exp_()
        self.total += weights.sum(dim=1)
        self.largest = largest
        self._seen += logits.shape[1]
        return weights

    def _find_target(self, logits: torch.Tensor) -> None:
        """Keep the targets' logits where they are among these."""
        place = self._targets - self._seen
        found = logits.gather(1, place.clamp(0, logits.shape[1] - 1)[:, None])[:, 0]
        inside = (place >= 0) & (place < logits.shape[1])
        self._target = torch.where(inside, found, self._target)

    def nll(self) -> torch.Tensor:
        """Nats (rows,) fp32 that the targets cost."""
        return (self.largest.double() + self.total.log() - self._target.double()).float()

    def confidence(self) -> torch.Tensor:
        """The largest probability (rows,) fp32."""
        return self.total.reciprocal().float()


class RunningDivergence:
    """KL(p || q) and KL(q || p) in nats of each row, from both models' logits.

    With w = e^(z_p - a), v = e^(z_q - b) and d = ln v - ln w, where b is such that w and v have the
    same sum W over all columns so far, the divergences of these columns are F / W and R / W of

        F = sum w (e^d - 1 - d)    R = sum w (e^d (d - 1) + 1)

    F and R have no negative terms, so nothing cancels: at a KL of 1e-7 they keep four digits. When
    a tile moves a and b, so that w becomes A w and v becomes B v, d falls by t = ln A - ln B, and
    the sums over the columns before it follow, with k = B - A and V = sum v:

        F' = A F + k V + A t W    R' = B R - k W - B t V
    """

    def __init__(self, targets: torch.Tensor) -> None:
        """`targets` (rows,) int64 are columns."""
        self.p, self.q = RunningSoftmax(targets), RunningSoftmax(targets)
        self._a, self._b = self.p.largest.double(), self.q.largest.double()
        zeros = torch.zeros_like(self._a)
        self._w, self._v, self._forward, self._reverse = (zeros.clone() for _ in range(4))
        self._room = self.p.largest.new_empty(2, 0)

    def add(self, z_p: torch.Tensor, z_q: torch.Tensor) -> None:
        """Add the same columns of both, each (rows, columns), and overwrite them."""
        if self._room.shape[1] < z_p.numel():
            self._room = z_p.new_empty(2, z_p.numel())
        w, d = (room[: z_p.numel()].view(z_p.shape) for room in self._room)
        self.p.add(z_p, out=w)
        self.q.add(z_q, out=d)
        self._move()
        torch.sub(z_q, z_p, out=d).sub_((self._b - self._a).float()[:, None])
        low, high = d.aminmax()
        if low > -FAR and high < FAR:
            forward, reverse = _sums(w, d, z_p, z_q)
        else:
            v = (z_q - self.q.largest[:, None]).exp_()
            v *= (self.q.largest - self._b).exp().float()[:, None]
            neither = (z_p == -torch.inf) & (z_q == -torch.inf)
            forward, reverse = _sums_far(w, v, d.masked_fill(neither, 0.0))
        self._forward += forward
        self._reverse += reverse

    def _move(self) -> None:
        """Give the sums the new a and b."""
        a = self.p.largest.double()
        p, q = (softmax.total.clamp(min=1).log() for softmax in (self.p, self.q))  # 0 if all -inf
        b = self.q.largest.double() + (q - p)
        fall_a, fall_b = self._a - a, self._b - b
        A, B, t = fall_a.exp(), fall_b.exp(), fall_a - fall_b
        k = torch.where(t > 0, A * torch.expm1(-t), -B * torch.expm1(t))
        self._forward = A * self._forward + (k * self._v + A * t * self._w)
        self._reverse = B * self._reverse - (k * self._w + B * t * self._v)
        self._a, self._b = a, b
        self._w, self._v = self.p.total.clone(), self.q.total * (p - q).exp()

    def kl(self) -> torch.Tensor:
        """KL(p || q) (rows,) fp32."""
        return (self._forward / self._w).float()

    def reverse_kl(self) -> torch.Tensor:
        """KL(q || p) (rows,) fp32."""
        return (self._reverse / self._w).float()


def _sums(
    w: torch.Tensor, d: torch.Tensor, x: torch.Tensor, y: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Summands (rows,) of F and R; w and the room `x` and `y` are overwritten."""
    torch.expm1(d, out=x).mul_(w)
    torch.sub(x, w.mul_(d), out=y)
    return y.sum(dim=1), -y.addcmul_(x, d, value=-1).sum(dim=1)


def _sums_far(
    w: torch.Tensor, v: torch.Tensor, d: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `_sums` where e^d may overflow: of two weights FAR apart, the smaller one is nothing."""
    above, below = d >= FAR, d <= -FAR
    near = d.masked_fill(above | below, 0.0)
    grown, linear = torch.expm1(near) * w, near * w
    forward, reverse = grown - linear, grown * near - grown + linear
    forward = torch.where(above, v, torch.where(below & (w > 0), w * (-d - 1), forward))
    reverse = torch.where(above & (v > 0), v * (d - 1), torch.where(below, w, reverse))
    return forward.sum(dim=1), reverse.sum(dim=1)
