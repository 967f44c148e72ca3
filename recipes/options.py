"""The options of a recipe, held against what its method can be told."""

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from quantkit.core.errors import InputError
from quantkit.core.method import Method
from quantkit.core.recipe import Recipe
from quantkit.core.registry import nearest


def checked_options(method: Method, recipe: Recipe) -> Any:
    """The options of `method`, with those that a recipe states.

    Raises:
        InputError: the method has no such option, or it cannot have that value.
    """
    shape = method.options
    known = {field.name: field.default for field in fields(shape)}
    hints = get_type_hints(shape)
    for key, value in recipe.options.items():
        if key not in known:
            raise InputError(
                f"method {method.name} has no option `{key}`",
                why=f"it has: {', '.join(known) or 'none'}",
                hint=_setting(nearest(key, tuple(known)), known),
            )
        if fault := _misfit(hints[key], value):
            raise InputError(
                f"option `{key}` of method {method.name} is {value!r}",
                why=fault,
                hint=_setting(key, known),
            )
    try:
        return shape(**recipe.options)
    except ValueError as error:
        raise InputError(
            f"the options of method {method.name} do not fit",
            why=str(error),
            hint="the same without --set options",
        ) from error


def _misfit(wanted: Any, value: Any) -> str | None:
    """Why `value` is none of type `wanted`, or None; numbers among options are never negative."""
    try:
        TypeAdapter(wanted).validate_python(value, strict=True)
    except ValidationError as error:
        legal = [e["msg"].removeprefix("Input should be ") for e in error.errors()]
        return f"it takes {' or '.join(legal)}"
    negative = isinstance(value, int | float) and value < 0
    return "it takes no negative number" if negative else None


def _setting(key: str, known: Mapping[str, Any]) -> str:
    return f"--set options.{key}={json.dumps(known[key])}"
