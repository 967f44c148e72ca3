"""Training runs on a GPU: hints that hold, each by itself or all of one line at once."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from quantkit.core.training import Training, Zero
from quantkit.planning.model.weights import PlannedModel
from quantkit.planning.serve.hardware import find_gpu
from quantkit.planning.train.training import train, training_hints

Planned = Callable[..., PlannedModel]
FIELDS = {"train": "method", "batch": "sequences", "context": "tokens"}


def followed(training: Training, hint: str) -> Training:
    words = hint.split()
    changes: dict[str, Any] = {}
    for option, value in zip(words[::2], words[1::2], strict=True):
        name = option.removeprefix("--")
        changes[FIELDS.get(name, name)] = int(value) if name in ("batch", "context") else value
    return replace(training, **changes)


@pytest.mark.parametrize(
    ("name", "gpu", "training"),
    [
        ("Llama-3-70B", "4090", Training(tokens=8192)),
        ("Llama-3-8B", "4090", Training(tokens=8192)),
        ("Llama-3-8B", "4090", Training("qlora", tokens=2048, sequences=8)),
        ("Llama-3-8B", "h100", Training(gpus=8)),
        ("SmolLM2-135M", "3060", Training(tokens=8192)),
    ],
)
def test_every_hint_makes_it_fit(planned: Planned, name: str, gpu: str, training: Training) -> None:
    model, card = planned(name), find_gpu(gpu)
    assert not train(model, training, card).fits
    hints = training_hints(model, training, card)
    assert hints
    for hint in hints:
        assert train(model, followed(training, hint), card).fits, hint
    words = hints[0].split(" --")
    for i in range(len(words) if len(words) > 1 else 0):  # nothing of it is needless
        less = " --".join(words[:i] + words[i + 1 :])
        less = less if less.startswith("--") else f"--{less}"
        if words[i].strip("-") != "zero 3":  # which --offload needs
            assert not train(model, followed(training, less), card).fits


@pytest.mark.parametrize(("name", "gpus"), [("Llama-3-8B", 2), ("Llama-3-8B", 8)])
@pytest.mark.parametrize("method", ["full", "lora"])
def test_what_keeps_the_method_comes_first(
    planned: Planned, name: str, gpus: int, method: Any
) -> None:
    """The least ZeRO stage that suffices is offered, and QLoRA behind all else."""
    card = find_gpu("h100" if method == "full" else "16GB")
    model, training = planned(name), Training(method, gpus=gpus, checkpointing="full", tokens=512)
    stages: tuple[Zero, ...] = ("0", "1", "2", "3")
    enough = [s for s in stages if train(model, replace(training, zero=s), card).fits]
    assert enough
    assert "0" not in enough
    assert training_hints(model, training, card)[0] == f"--zero {enough[0]}"
    hints = training_hints(model, training, card)
    assert [hint for hint in hints if "--train" in hint] == [hints[-1]]


def test_all_that_keeps_the_method_is_tried_before_another(planned: Planned) -> None:
    model, card = planned("Llama-3-70B"), find_gpu("h100")
    hints = training_hints(model, Training(gpus=8, tokens=8192), card)
    assert ["--train qlora" in hint for hint in hints] == [False, True]


def test_what_fits_or_never_will_gets_no_hint(planned: Planned) -> None:
    model = planned("Llama-3-8B")
    assert training_hints(model, Training("qlora", checkpointing="full"), find_gpu("h100")) == ()
    assert training_hints(model, Training(), find_gpu("1GB")) == ()
    assert training_hints(model, Training(), None) == ()
