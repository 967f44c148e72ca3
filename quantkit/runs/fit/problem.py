"""The fit problem: every legal choice of schemes, with its bytes and its expected KL."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from quantkit.calibration.tokens import Calibration
from quantkit.checkpoint.shards import DEFAULT_SHARD_SIZE, TensorSpec, beside, plan_shards
from quantkit.core.errors import RefusedError
from quantkit.core.facts import Check, LinearFacts
from quantkit.core.progress import Report, silent
from quantkit.core.recipe import SchemeSpec, spread_of
from quantkit.core.rules import rules_of
from quantkit.core.scheme import Scheme
from quantkit.model.batches import Room
from quantkit.pipeline.choices import Choice, choices_of, overrides_for
from quantkit.pipeline.prepare import Prepared, parts_of, prepare
from quantkit.pipeline.sensitivity import Probe, measure_effects
from quantkit.pipeline.write import planned_tensors
from quantkit.runs.fit.allocate import Option
from quantkit.runs.fit.expected import costs, to_solve

STATISTICS_TOKENS, PROBE_WINDOWS, PROBE_LENGTH = 1 << 15, 4, 256
"""Sizes of the text on which KL is measured. On the embedded model, four times the tokens with
every option measured gives choices with a KL 0.4 to 2.6 % lower."""
MIXED = "compressed-tensors"
"""The only format that supports several schemes."""

Chosen = tuple[Scheme | None, ...]


class Sizes(Protocol):
    """The bytes that count against a budget: of weight files, or of a rank's memory."""

    def linear(self, linear: LinearFacts, scheme: Scheme | None) -> int:
        """Bytes of a linear in a scheme."""

    def whole(self, schemes: Mapping[str, Scheme]) -> int:
        """Bytes of all weights, with these linears quantized."""


@dataclass(frozen=True)
class FileSizes:
    """Bytes of the weight files, headers included."""

    prepared: Prepared

    def linear(self, linear: LinearFacts, scheme: Scheme | None) -> int:
        """Bytes of a linear in a scheme, at most."""
        model = self.prepared.model
        name, stored = model.stored_spec(f"{linear.name}.weight")
        layout = {name: stored}
        if scheme is not None:
            layout = beside(name, self.prepared.format.layout(scheme, linear, model.dtype_name))
        return sum(TensorSpec(part, *layout[part]).stored_bytes for part in layout)

    def whole(self, schemes: Mapping[str, Scheme]) -> int:
        """Bytes of all files, exactly."""
        prepared = self.prepared
        specs = planned_tensors(prepared.model, schemes, prepared.format, prepared.cache)
        return sum(shard.nbytes for shard in plan_shards(specs, DEFAULT_SHARD_SIZE))


@dataclass(frozen=True)
class Problem:
    """The groups of a model, with the options of each, their bytes and expected KL.

    `fixed`: bytes of all other tensors. `single`: the format supports one scheme only.
    """

    prepared: Prepared
    choices: tuple[Choice, ...]
    items: tuple[tuple[Option, ...], ...]
    sizes: Sizes
    fixed: int
    single: bool

    @property
    def smallest(self) -> int:
        """Bytes of the smallest choice, mixed ones included."""
        return self.fixed + sum(min(option.bytes for option in row) for row in self.items)

    def chosen(self, indices: Sequence[int]) -> Chosen:
        """The scheme of each group by the index of its option."""
        return tuple(c.schemes[j] for c, j in zip(self.choices, indices, strict=True))

    def kl(self, chosen: Chosen) -> float:
        """Expected KL in nats: the sum of the KL of each group quantized alone."""
        pairs = zip(self.choices, self.items, chosen, strict=True)
        return sum(options[choice.schemes.index(s)].cost for choice, options, s in pairs)

    def bytes(self, chosen: Chosen) -> int:
        """Exact bytes that count against the budget."""
        return self.sizes.whole(self.schemes(chosen))

    def schemes(self, chosen: Chosen) -> dict[str, Scheme]:
        """The scheme of each linear that is quantized."""
        return {
            linear.name: scheme
            for choice, scheme in zip(self.choices, chosen, strict=True)
            for linear in choice.linears
            if scheme is not None
        }

    def active_bytes(self, chosen: Chosen) -> int | None:
        """Bytes of the weights that one token reads; None without experts."""
        config = self.prepared.model.text_config
        active = getattr(config, "num_experts_per_tok", None)
        active = max(active) if isinstance(active, list) else active
        experts = [
            (options[choice.schemes.index(scheme)].bytes, choice.experts)
            for choice, options, scheme in zip(self.choices, self.items, chosen, strict=True)
            if choice.experts
        ]
        return read_bytes(self.bytes(chosen), experts, active) if experts and active else None

    def uniforms(self) -> Iterator[Chosen]:
        """Every choice that gives all groups one scheme."""
        for scheme in dict.fromkeys(s for choice in self.choices for s in choice.schemes if s):
            if all(scheme in choice.schemes for choice in self.choices):
                yield (scheme,) * len(self.choices)

    def prepared_for(self, chosen: Chosen, name: str) -> Prepared:
        """The model prepared with the recipe of this choice.

        Raises:
            RefusedError: the choice quantizes nothing.
        """
        counts = Counter(self.schemes(chosen).values())
        if not counts:
            raise RefusedError("no linear would be quantized", hint="a smaller budget")
        most = max(counts, key=lambda scheme: (counts[scheme], scheme.label()))
        recipe = self.prepared.plan.recipe
        wanted = replace(
            recipe,
            name=name,
            scheme=spec_of(most),
            overrides=(*recipe.overrides, *overrides_for(self.choices, chosen, most)),
        )
        return prepare(self.prepared.model, wanted)


def read_bytes(total: int, experts: Sequence[tuple[int, int]], active: int) -> int:
    """Bytes of `total` that one token reads if it uses `active` experts of each block.

    `experts`: bytes of all experts and their number, for each block; all are of equal size.
    """
    return total - sum(size * max(0, count - active) // count for size, count in experts)


def spec_of(scheme: Scheme) -> SchemeSpec:
    """The scheme as a recipe states it."""
    return SchemeSpec(scheme.kind.name, scheme.bits, spread_of(scheme), scheme.symmetric)


def state_problem(
    prepared: Prepared, schemes: Sequence[Scheme], sizes: Sizes, checks: Sequence[Check] = ()
) -> Problem:
    """The problem with the bytes of each option; costs are 0 until `with_costs`.

    `checks` are rules in addition to those of method, format and engine.

    Raises:
        RefusedError: no scheme is legal for any group.
    """
    method, output, engines, _ = parts_of(prepared.plan.recipe)
    rules = [*rules_of(method, output, engines), *checks]
    quantized = [each.linear for each in prepared.plan.dispositions if each.scheme is not None]
    skeleton, structure = prepared.model.skeleton, prepared.structure
    overrides = prepared.plan.recipe.overrides
    choices = tuple(choices_of(quantized, skeleton, structure, schemes, rules, overrides))
    if all(choice.schemes == (None,) for choice in choices):
        raise RefusedError(
            "this model, format and engine support none of the schemes",
            why=f"tried: {', '.join(scheme.label() for scheme in schemes)}",
            hint="--bits 4,8 --group-size 32,64,128,channel",
        )
    items = tuple(
        tuple(Option(sum(sizes.linear(f, s) for f in choice.linears), 0.0) for s in choice.schemes)
        for choice in choices
    )
    fixed = sizes.whole({}) - sum(row[-1].bytes for row in items)
    return Problem(prepared, choices, items, sizes, fixed, output.name != MIXED)


def require_suitable(problem: Problem, budget: int) -> None:
    """Check that the model has to be quantized for the budget, and that a choice fits.

    Raises:
        RefusedError: the unquantized model fits, or no choice does.
    """
    whole = problem.bytes((None,) * len(problem.choices))
    if whole <= budget:
        raise RefusedError(
            f"the model fits without quantization: it needs {whole:,} of {budget:,} bytes",
            hint="a smaller budget, or quantkit quantize",
        )
    least = min(map(problem.bytes, problem.uniforms()), default=whole)
    if not problem.single:
        least = min(least, problem.smallest)
    if least > budget:
        files = isinstance(problem.sizes, FileSizes)  # else bytes of a rank: no option sets them
        larger = f"--size {least}B" if files else "a larger GPU, more of them"
        raise RefusedError(
            f"the weights do not fit {budget:,} bytes",
            why=f"the smallest build of these schemes needs {least:,}",
            hint=f"{larger}, or fewer bits",
        )


def with_costs(
    problem: Problem, calibration: Calibration, report: Report = silent, room: Room = list
) -> Problem:
    """The problem with its options measured on calibration text; hidden states wait in `room`."""
    prepared = problem.prepared
    method, _, _, options = parts_of(prepared.plan.recipe)
    policy = prepared.plan.recipe.calibration.experts
    probe = replace(probe_of(calibration), experts=policy)
    model = replace(prepared.model, room=room)
    solved = [to_solve(choice) for choice in problem.choices]
    probed = {each.choice: each.probed for each in solved}
    choices = [each.choice for each in solved]
    effects = measure_effects(model, choices, method, options, probe, probed.__getitem__, report)
    expected = (
        costs(choice.schemes, each, [(effect.loss, effect.kl) for effect in row])
        for choice, each, row in zip(problem.choices, solved, effects, strict=True)
    )
    items = tuple(
        tuple(replace(option, cost=cost) for option, cost in zip(row, kls, strict=True))
        for row, kls in zip(problem.items, expected, strict=True)
    )
    return replace(problem, items=items)


def probe_of(calibration: Calibration) -> Probe:
    """Short windows spread over the text for the KL, and other windows for the statistics.

    Raises:
        RefusedError: the text has one window only.
    """
    ids = calibration.input_ids
    length = min(ids.shape[1], PROBE_LENGTH)
    if len(ids) == 1:
        raise RefusedError("fit needs two windows of text", hint="--samples 128, or more text")
    count = min(PROBE_WINDOWS, max(1, len(ids) // 2))
    scored = [len(ids) * i // count for i in range(count)]
    rest = [i for i in range(len(ids)) if i not in scored]
    wanted = max(1, STATISTICS_TOKENS // ids.shape[1])
    kept = rest[:: max(1, len(rest) // wanted)][:wanted]
    return Probe(ids[torch.tensor(kept)], ids[torch.tensor(scored)][:, :length])
