"""Quantize decoder language models, prove what it cost, ship what engines load.

The names below are all there is for callers; each is loaded when it is first used, so that
importing this package costs nothing.

    make         quantize   fit   resume   dry_run
    measure      evaluate   sweep   report   generate
    prove        verify
    look ahead   plan   doctor
    try          demo
    recipes      Recipe   Scheme   build_recipe   load_recipe   list_recipes
    progress     Progress, which a `report` callback gets
    errors       QuantkitError, with `what`, `why`, `hint` and `exit_code`

Long work takes `report=`, a function that is called with a `Progress` (stage, done, total);
results show themselves as tables in notebooks.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quantkit.api.artifacts import dry_run, fit, quantize, resume
    from quantkit.api.evaluation import demo, evaluate, generate, report, sweep
    from quantkit.api.planning import doctor, plan
    from quantkit.api.verification import verify
    from quantkit.core.errors import QuantkitError
    from quantkit.core.progress import Progress
    from quantkit.core.recipe import Recipe
    from quantkit.core.scheme import Scheme
    from quantkit.core.version import __version__
    from quantkit.recipes.loader import build_recipe, list_recipes, load_recipe

_HOME = {
    "Progress": "core.progress",
    "QuantkitError": "core.errors",
    "Recipe": "core.recipe",
    "Scheme": "core.scheme",
    "__version__": "core.version",
    "build_recipe": "recipes.loader",
    "demo": "api.evaluation",
    "doctor": "api.planning",
    "dry_run": "api.artifacts",
    "evaluate": "api.evaluation",
    "fit": "api.artifacts",
    "generate": "api.evaluation",
    "list_recipes": "recipes.loader",
    "load_recipe": "recipes.loader",
    "plan": "api.planning",
    "quantize": "api.artifacts",
    "report": "api.evaluation",
    "resume": "api.artifacts",
    "sweep": "api.evaluation",
    "verify": "api.verification",
}

__all__ = [
    "Progress",
    "QuantkitError",
    "Recipe",
    "Scheme",
    "__version__",
    "build_recipe",
    "demo",
    "doctor",
    "dry_run",
    "evaluate",
    "fit",
    "generate",
    "list_recipes",
    "load_recipe",
    "plan",
    "quantize",
    "report",
    "resume",
    "sweep",
    "verify",
]


def __getattr__(name: str) -> Any:
    """Public name `name`, imported now (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module 'quantkit' has no attribute '{name}'")
    value = getattr(import_module(f"quantkit.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
