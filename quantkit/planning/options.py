"""What is stated of a server does not go unheard: where none is planned, it is refused."""

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
SCHOOLED = ("context", "batch")
"""Those that a training run goes by, too."""


def require_heard(stated: Mapping[str, object], *, gpu: bool, training: bool) -> None:
    """Nothing, where each option that was `stated` changes what is told; others are None.

    Raises:
        InputError: some are of a server, and there is no GPU; or they are not of a training run; or
            the engine has no such cache.
    """
    options = {**SERVED, "recipes": "--recipe, --bits"}
    named = [options[key] for key, value in stated.items() if value not in (None, {})]
    if training:
        heard = [SERVED[key] for key in SCHOOLED]
        deaf = [name for name in named if name not in heard]
        if deaf:
            raise InputError(
                f"{', '.join(deaf)}: not of a training run",
                why="nothing is served, and the model is trained as --train says",
                hint=f"the same without {', '.join(deaf)}",
            )
        return
    deaf = [name for name in named if name in SERVED.values()]
    if deaf and not gpu:
        raise InputError(
            f"{', '.join(deaf)}: of a server, and no GPU was named",
            why="without one, only what the weights take is told",
            hint="--gpu 4090",
        )
    if stated.get("engine") == "transformers" and stated.get("kv") == 8:
        raise InputError(
            "transformers is not planned with a cache of 8 bits",
            why="its DynamicCache keeps keys and values in the dtype of the model",
            hint="--engine vllm",
        )
