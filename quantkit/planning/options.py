"""Refuses options that nothing uses, such as a server's where no GPU is named."""

from collections.abc import Mapping

from quantkit.core.errors import InputError

SERVED = {
    "context": "--context",
    "batch": "--batch",
    "engine": "--engine",
    "tp": "--tp",
    "pp": "--set pp",
    "ep": "--set ep",
    "kv": "--kv",
    "settings": "--set of an engine",
}
"""Options of a server on a GPU, as the command line calls them."""
TRAINED = ("context", "batch")
"""Those that a training run uses, too."""


def require_used(stated: Mapping[str, object], *, gpu: bool, training: bool) -> None:
    """Return where each option that was `stated` changes the plan; others are None.

    Raises:
        InputError: an option applies to a served model, and there is no GPU; or not to a training
            run; or the engine has no such cache.
    """
    options = {**SERVED, "recipes": "--recipe, --bits"}
    named = [options[key] for key, value in stated.items() if value not in (None, {})]
    if training:
        used = [SERVED[key] for key in TRAINED]
        unused = [name for name in named if name not in used]
        if unused:
            raise InputError(
                f"{applies(unused)} to a served model, and --train plans a training run",
                hint=f"the same without {', '.join(unused)}",
            )
        return
    unused = [name for name in named if name in SERVED.values()]
    if unused and not gpu:
        raise InputError(
            f"{applies(unused)} to a served model, and no GPU is named",
            why="without a GPU, plan shows the size of the weights alone",
            hint="--gpu 4090",
        )
    if stated.get("engine") == "transformers" and stated.get("kv") == 8:
        raise InputError(
            "transformers has no 8-bit KV cache",
            why="its DynamicCache keeps keys and values in the dtype of the model",
            hint="--engine vllm",
        )


def applies(options: list[str]) -> str:
    """The start of a sentence: `--tp applies`, `--tp, --kv apply`."""
    return f"{', '.join(options)} {'applies' if len(options) == 1 else 'apply'}"
