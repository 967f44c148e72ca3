"""Checks the options of a recipe against those of its method."""

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
    """The options object of `method`, with the values that `recipe` sets.

    Raises:
        InputError: the method has no such option, or the value is invalid.
    """
    shape = method.options
    known = {field.name: field.default for field in fields(shape)}
    hints = get_type_hints(shape)
    for key, value in recipe.options.items():
        if key not in known:
            raise InputError(
                f"method {method.name} has no option `{key}`",
                why=f"its options: {', '.join(known) or 'none'}",
                hint=_setting(nearest(key, tuple(known)), known),
            )
        if fault := _misfit(hints[key], value):
            raise InputError(
                f"invalid value {value!r} for option `{key}` of method {method.name}",
                why=fault,
                hint=_setting(key, known),
            )
    try:
        return shape(**recipe.options)
    except ValueError as error:
        raise InputError(
            f"invalid options for method {method.name}",
            why=str(error),
            hint="the same without --set options",
        ) from error


def _misfit(wanted: Any, value: Any) -> str | None:
    """Why `value` is not of type `wanted`, or negative; None if it is valid."""
    try:
        TypeAdapter(wanted).validate_python(value, strict=True)
    except ValidationError as error:
        legal = [e["msg"].removeprefix("Input should be ") for e in error.errors()]
        return f"expected {' or '.join(legal)}"
    negative = isinstance(value, int | float) and value < 0
    return "expected a number >= 0" if negative else None


def _setting(key: str, known: Mapping[str, Any]) -> str:
    return f"--set options.{key}={json.dumps(known[key])}"
