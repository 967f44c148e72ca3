"""Top-1 agreement: how often the model's likeliest next token is the reference's."""

from quantkit.eval.estimate import clustered_mean
from quantkit.eval.metric import Figure, Metric, Scores


def measure(scores: Scores) -> dict[str, Figure]:
    """Share of tokens, 0 to 1, and its standard error."""
    if scores.agreement is None:
        return {}
    share = clustered_mean(scores.agreement, scores.clusters)
    return {
        "top1_agreement": share.value,
        "top1_standard_error": share.standard_error,
    }


METRIC = Metric("top1_agreement", "same likeliest token as the reference", "1", "higher", measure)
