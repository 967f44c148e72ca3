"""The figures of a result that a table of many results shows."""

from pydantic import Field

from quantkit.core.units import with_error
from quantkit.results.record import MetricFigure, Record


class Summary(Record):
    """The figures of a result that go into a table of many."""

    bytes: int | None = None
    bits_per_weight: float | None = None
    quantized_bits_per_weight: float | None = None
    perplexity: float | None = None
    perplexity_standard_error: float | None = None
    kl_mean: float | None = None
    kl_standard_error: float | None = None
    top1_agreement: float | None = None
    metrics: dict[str, MetricFigure] = Field(default_factory=dict)
    gates_missed: int = 0

    def figures(self) -> dict[str, object]:
        """The figures by their labels, with standard errors."""
        return {
            "KL, nats a token": with_error(self.kl_mean, self.kl_standard_error),
            "same top-1": self.top1_agreement,
            "perplexity": with_error(self.perplexity, self.perplexity_standard_error),
            "bytes": self.bytes,
            "bits, quantized linears": self.quantized_bits_per_weight,
            "bits, whole model": self.bits_per_weight,
        }
