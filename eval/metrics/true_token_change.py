"""Change of the true token's probability between model and reference."""

import math

from quantkit.eval.metric import Figure, Figures, Metric, Scores


def measure(scores: Scores) -> Figures:
    """q(token) - p(token): mean with its error, root mean square, 0.1 % and 99.9 % quantile."""
    reference_nll = scores.beside.get("nll")
    if reference_nll is None:
        return {}
    change = (-scores.nll.double()).exp() - (-reference_nll.double()).exp()
    mean = scores.mean(change)
    ordered = change.sort().values
    last = len(ordered) - 1
    return {
        "true_token_change": {
            "mean": mean.value,
            "standard_error": mean.standard_error,
            "rms": math.sqrt(float(change.square().mean())),
            "p001": float(ordered[math.floor(0.001 * last)]),
            "p999": float(ordered[math.ceil(0.999 * last)]),
        }
    }


METRIC = Metric(
    "true_token_change",
    "probability of the true token, model - reference",
    {
        "true_token_change.mean": Figure("True token change", "fraction", "higher"),
        "true_token_change.rms": Figure("True token change, RMS", "fraction", "lower"),
    },
    measure,
)
