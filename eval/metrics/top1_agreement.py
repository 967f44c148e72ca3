"""Top-1 agreement: how often the model's likeliest next token is the reference's."""

from quantkit.eval.metric import Figure, Figures, Metric, Scores
from quantkit.results.bootstrap import mean_interval


def measure(scores: Scores) -> Figures:
    """Share of tokens, 0 to 1, its standard error and interval."""
    agreement = scores.beside.get("agreement")
    if agreement is None:
        return {}
    share = scores.mean(agreement)
    return {
        "top1_agreement": share.value,
        "top1_standard_error": share.standard_error,
        "top1_ci95": mean_interval(scores.sums(agreement), scores.counts, scores.domains),
    }


METRIC = Metric(
    "top1_agreement",
    "same likeliest token as the reference",
    {"top1_agreement": Figure("Same top token", "fraction", "higher")},
    measure,
)
