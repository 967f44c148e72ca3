"""What the figures say: a build to take under a target, and sentences about it.

The page's script looks decisions up in `decisions` and fills the same SENTENCES.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf

from quantkit.eval.report.numbers import error, fixed, percent, significant, unit_of, visible
from quantkit.eval.report.study import Build, Study, Target
from quantkit.results.answers import losses
from quantkit.results.level import KlLevel
from quantkit.results.schema import FLOOR_FACTOR, EvalResult, GateOutcome

SMALLER = 0.97
"""A build counts as smaller from this share of the recommended one's size."""
ROOM = 256
"""Tokens of context from which a build is worth naming although it does not fit."""
NEEDS = {"memory": "needs", "disk": "takes"}
SENTENCES = {
    "nothing": ("Nothing to compare.", "No build has a measured KL."),
    "original": (
        "Keep the original.",
        "It {needs} {size} and fits, so quantization would only gain speed.",
    ),
    "misses": ("No build meets the limits.", "The closest, {label}, has KL {kl}."),
    "none_fits": (
        "No build fits.",
        "The smallest one that meets the limits, {label}, {needs} {size} of {usable} usable.{room}",
    ),
    "pick": ("{label}", "{facts}."),
    "smaller": ("Smaller: {label}", "saves {saved}; KL goes from {pick_kl} to {kl}."),
    "better": ("Better: {label}", "has KL {kl} and {needs} {more} more{over}."),
}
"""Name and text of each sentence, with the names of what is filled in."""
PARTS = {
    "room": " It fits with at most {room} tokens of context.",
    "over": ", {over} over the limit",
    "fits": "fits in {size}",
    "size": "{needs} {size}",
    "top1": "keeps the top token on {top1} of positions",
    "kl": "has KL {kl}",
}
"""Parts of sentences; those about a build are joined by "and"."""


@dataclass(frozen=True)
class Statement:
    """A sentence and the words before it that bear it."""

    name: str
    text: str


@dataclass(frozen=True)
class Decision:
    """The rule that decides under a target, the build it is about, and neighbours of a pick.

    `rule` is a key of SENTENCES. `build` is recommended where it is "original" or "pick".
    """

    rule: str
    build: Build | None = None
    smaller: Build | None = None
    better: Build | None = None

    @property
    def pick(self) -> Build | None:
        """The build to take, if there is one."""
        return self.build if self.rule in ("original", "pick") else None


@dataclass(frozen=True)
class Choice:
    """The build to take under a target, the verdict about it, and the neighbours worth a look."""

    pick: Build | None
    verdict: Statement
    others: tuple[Statement, ...] = ()


def choose(study: Study, target: Target) -> Choice:
    """The decision under a target, in words."""
    found, words = decide(study, target), _Words(study, target)
    if found.rule == "pick" and found.build is not None:
        verdict = words.statement("pick", found.build)
        others = (("smaller", found.smaller), ("better", found.better))
        neighbours = tuple(words.statement(r, b, found.build) for r, b in others if b is not None)
        return Choice(found.pick, verdict, neighbours)
    return Choice(found.pick, words.statement(found.rule, found.build))


def decide(study: Study, target: Target) -> Decision:
    """The lowest KL that fits; among those not distinguishable from it, the smallest.

    The original, where it fits as well; nothing, where no build fits or meets its gates.
    """
    return _decide(study, target, _sizes(study, target))


def decisions(study: Study, targets: Iterator[Target]) -> Iterator[Decision]:
    """The decision under each target; targets of one size of cache in a row share the sizes."""
    known: tuple[object, dict[str, int | None]] = (None, {})
    for target in targets:
        same = (target.axis, target.context_tokens, target.sequences)
        if known[0] != same:
            known = same, _sizes(study, target)
        yield _decide(study, target, known[1])


def _sizes(study: Study, target: Target) -> dict[str, int | None]:
    return {build.key: study.size_at(build, target) for build in study.everything}


def _decide(study: Study, target: Target, sizes: Mapping[str, int | None]) -> Decision:
    compared = [build for build in study.builds if build.kl]
    original = study.reference
    if not compared:
        return Decision("nothing")
    if original and target.usable_bytes and target.holds(sizes[original.key]):
        return Decision("original", original)
    good = [build for build in compared if meets(build, target)]
    if not good:
        return Decision("misses", min(compared, key=_kl))
    fitting = [build for build in good if target.holds(sizes[build.key])]
    if not fitting:
        return Decision("none_fits", min(good, key=lambda build: sizes[build.key] or inf))
    best = min(fitting, key=_kl)
    equal = [build for build in fitting if build is best or not study.better(best, build)]
    pick = min(equal, key=lambda build: (sizes[build.key] or inf, _kl(build)))
    own = sizes[pick.key]
    if own is None:
        return Decision("pick", pick)
    sized = [(size, b) for b in compared if (size := sizes[b.key]) is not None]
    smaller = [b for size, b in sized if size < SMALLER * own and meets(b, target)]
    better = [(size, b) for size, b in sized if size > own and study.better(b, pick)]
    return Decision(
        "pick",
        pick,
        min(smaller, key=_kl, default=None),
        min(better, key=lambda found: found[0], default=(0, None))[1],
    )


def meets(build: Build, target: Target) -> bool:
    """Whether no gate was missed and the upper limit of KL is within the reader's."""
    if build.kl is None or build.missed:
        return False
    upper = build.kl.ci95[1] if build.kl.ci95 else _kl(build)
    return target.max_kl is None or upper <= target.max_kl


def task_clause(result: EvalResult) -> str:
    """What the tasks show, or nothing where there are none; the level is shared over the tasks."""
    if not result.tasks:
        return ""
    lost = losses(result.tasks)
    if not lost:
        return "no task loss can be shown"
    worst = min((t for t in result.tasks if t.name in lost), key=lambda task: task.recovery)
    return f"task accuracy drops to {percent(worst.recovery)} of the original's ({worst.name})"


def one_line(build: Build, study: Study) -> str:
    """The verdict on one recipe against its gates, or why there is none."""
    if build.status != "done" or build.result is None:
        return f"{build.status}: {build.why}" if build.why else build.status
    if build.result.status == "invalid":
        return f"Invalid: {'; '.join(build.result.notes) or 'its figures are not finite'}"
    said = _gates(build.result.gates)
    kl = build.kl
    if kl is None or kl.mean is None:
        return f"{said} No KL was measured."
    spread = f" {error(build.kl_half_width)}" if build.kl_half_width is not None else ""
    said += f" KL {significant(kl.mean)}{spread}"
    if study.noise and kl.mean < FLOOR_FACTOR * study.noise:
        said += ", not distinguishable from the original"
    size, whole = build.disk_bytes, study.reference and study.reference.disk_bytes
    if size and whole:
        change = 100 * (1 - size / whole)
        said += f", {fixed(abs(change), 0)}\u00a0% {'smaller' if change >= 0 else 'larger'}"
    return f"{said}."


def level_of(build: Build) -> KlLevel | None:
    """How large its KL is, as its result states it; None where `one_line` says as much."""
    found = build.measured.kl_level if build.measured else None
    return None if found is None or found.level == "noise" else found


def level_line(build: Build) -> str:
    """The level of its KL in one line, with what to try."""
    found = level_of(build)
    if found is None:
        return ""
    steps = f" To try: {'; '.join(map(visible, found.next))}" if found.next else ""
    return f"{visible(found.meaning)}.{steps}"


def _gates(gates: list[GateOutcome]) -> str:
    by_status = {
        status: [gate.expression for gate in gates if gate.status == status]
        for status in ("failed", "undecided", "passed")
    }
    if by_status["failed"]:
        return f"Misses {', '.join(by_status['failed'])}."
    if by_status["undecided"]:
        return f"Undecided: {', '.join(by_status['undecided'])}."
    count = len(gates)
    return f"Passes {count} gate{'s' if count > 1 else ''}." if gates else "No gates set."


def _kl(build: Build) -> float:
    return build.kl.mean if build.kl and build.kl.mean is not None else inf


@dataclass(frozen=True)
class _Words:
    """Sentences about sizes under one target, all in one unit."""

    study: Study
    target: Target

    def bytes(self, count: float) -> str:
        name, factor = unit_of([build.disk_bytes for build in self.study.everything])
        return f"{significant(count / factor)}\u00a0{name}"

    def size(self, build: Build) -> int:
        return self.study.size_at(build, self.target) or 0

    def statement(self, rule: str, build: Build | None, pick: Build | None = None) -> Statement:
        """The sentence of a rule about a build; `pick` is the one that a neighbour is held to."""
        name, text = SENTENCES[rule]
        if build is None:
            return Statement(name, text)
        size, usable, room = self.size(build), self.target.usable_bytes, None
        if rule == "none_fits":
            room = self.study.longest_context(build, self.target)
        over = size - usable if usable is not None else 0
        values = {
            "label": build.label,
            "needs": NEEDS[self.target.axis],
            "size": self.bytes(size),
            "usable": self.bytes(usable or 0),
            "kl": significant(_kl(build)) if build.kl else "",
            "room": PARTS["room"].format(room=room) if room and room >= ROOM else "",
            "facts": self._facts(build) if rule == "pick" else "",
            "over": PARTS["over"].format(over=self.bytes(over)) if over > 0 else "",
        }
        if pick is not None:
            own = self.size(pick)
            values |= {"saved": self.bytes(own - size), "more": self.bytes(size - own)}
            values["pick_kl"] = significant(_kl(pick))
        return Statement(name.format(**values), text.format(**values))

    def _facts(self, build: Build) -> str:
        facts = []
        if self.study.size_at(build, self.target) is not None:
            limited = self.target.axis == "memory" and self.target.usable_bytes is not None
            size, needs = self.bytes(self.size(build)), NEEDS[self.target.axis]
            facts.append(PARTS["fits" if limited else "size"].format(size=size, needs=needs))
        result = build.measured
        if result and result.top1_agreement is not None:
            facts.append(PARTS["top1"].format(top1=percent(result.top1_agreement)))
        elif build.kl:
            facts.append(PARTS["kl"].format(kl=significant(_kl(build))))
        clause = task_clause(result) if result else ""
        return " and ".join(facts) + (f"; {clause}" if clause else "")
