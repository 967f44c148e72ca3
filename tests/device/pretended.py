"""A device without hardware: real numbers in host memory under the rules of a GPU.

A `Pretended` tensor wraps one of the host and says that it lies on `pretended:0`. Its operators run
on the host, after the check that a GPU makes: an operator whose tensors lie on two devices raises.
Launches, waits of the host, and copies are counted by the line of quantkit that caused them.

With shapes alone nothing is computed, so that models of any size are counted in seconds. What the
host reads is made up: conditions hold, numbers are 0, and of several fp numbers the last is least.

It has no streams and no kernels of its own: an operator of the dispatcher that makes no view counts
as one launch. Its memory is unlimited unless a limit is given.
"""

import math
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from tests.device.counts import Counts, Held, line_of_quantkit, lock

NAME = "pretended"
COPIES = {"aten::_to_copy", "aten::copy_"}
INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
RESIZING = (torch.ops.aten.arange, torch.ops.aten.eye)
WAITING = {
    "aten::_local_scalar_dense",
    "aten::equal",
    "aten::is_nonzero",
    "aten::masked_select",
    "aten::nonzero",
    "aten::_unique2",
    "aten::unique_dim",
}
READING = {"aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero"}
NO_LAUNCH = {
    "aten::_local_scalar_dense",
    "aten::_reshape_alias",
    "aten::_unsafe_view",
    "aten::alias",
    "aten::detach",
    "aten::empty",
    "aten::empty_like",
    "aten::empty_strided",
    "aten::lift_fresh",
    "aten::new_empty",
    "aten::new_empty_strided",
    "aten::set_",
}


class MixedDevicesError(RuntimeError):
    """An operator was given tensors of the host and of the device."""


_held = Held()
_counts = Counts()
_shapes_only = False


class Pretended(torch.Tensor):
    """A tensor of the host, or a mere shape, `inner`, that says it lies on the device."""

    inner: Any

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> "Pretended":
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            layout=inner.layout,
            device=_device(),
            requires_grad=False,
        )
        made.inner = inner
        storage = inner.untyped_storage()
        whole = storage._cdata, storage.nbytes()
        _held.take(*whole)
        weakref.finalize(made, _held.leave, *whole)
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's own says otherwise
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return _run(func, args, kwargs or {})

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Pretended({self.inner!r})"


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An operator on the tensors of the host behind those of the device; counted."""
    name = func._schema.name
    tensors = list(_tensors((args, *kwargs.values())))
    ours = {id(x.inner): x for x in tensors if isinstance(x, Pretended)}
    hosts = {id(x) for x in tensors if _is_of_host(x)}
    target = kwargs.get("device")
    there = torch.device(target).type if target is not None else NAME if ours else "cpu"
    if name in COPIES:
        _count_copy(args, kwargs, there)
    else:
        _check(name, list(ours.values()), args, kwargs)
        _count(func, name, args)
    given = args, kwargs
    args = _mapped(_inner, args)
    kwargs = {key: _mapped(_inner, value) for key, value in kwargs.items()}
    if there == NAME and "device" in kwargs:
        kwargs["device"] = "meta" if _shapes_only else "cpu"

    def wrapped(x: torch.Tensor) -> torch.Tensor:
        if id(x) in ours:
            return ours[id(x)]
        return Pretended(x) if there == NAME and _is_inner(x) and id(x) not in hosts else x

    if _shapes_only and _is_read(name, args, there):
        return _made_up(name, *args, **kwargs)
    if _shapes_only and there == NAME and (into := _written(func, given)) is not None:
        return into
    found = _mapped(wrapped, func(*args, **kwargs))
    if there == NAME and name == "aten::index":  # torch widens indices of 32 bits
        _held.pass_by(sum(8 * x.numel() for x in args[1] if x is not None and x.dtype == torch.int))
    return found


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in an operator's arguments or results."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _tensors(each)


def _mapped(change: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """The same arguments or results with other tensors."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, tuple | list):
        return type(value)([_mapped(change, each) for each in value])
    return value


def _inner(x: torch.Tensor) -> torch.Tensor:
    return x.inner if isinstance(x, Pretended) else x


def _is_read(name: str, args: tuple[Any, ...], there: str) -> bool:
    """Whether the host gets numbers that a mere shape does not have."""
    to_host = _is_of_host(args[0]) if name == "aten::copy_" else there == "cpu"
    return name in READING or (name in COPIES and to_host)


def _written(func: Any, given: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
    """The tensor that an operator writes into and gives back; None where it makes one."""
    args, kwargs = given
    if func._schema.name.endswith("_") and torch.Tag.inplace_view not in func.tags:
        return args[0]
    return kwargs.get("out")


def _made_up(name: str, first: torch.Tensor, *_: Any, **kwargs: Any) -> Any:
    """What the host reads where nothing was computed."""
    if name == "aten::copy_":
        return first.zero_()
    if name != "aten::_to_copy":
        return True if name == "aten::equal" or first.dtype == torch.bool else 0
    found = torch.zeros(first.shape, dtype=kwargs.get("dtype") or first.dtype)
    few = found.is_floating_point() and found.ndim == 1
    return torch.linspace(2, 1, len(found), dtype=found.dtype) if few else found


def _is_inner(x: Any) -> bool:
    return type(x) is torch.Tensor and x.device.type in ("cpu", "meta")


def _is_of_host(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and not isinstance(x, Pretended) and x.device.type == "cpu"


def _check(name: str, ours: list[Pretended], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse what CUDA refuses: tensors of both sides, and random numbers of the other one.

    Numbers without a dimension may lie on the host, and so may the indices of a tensor.
    """
    generator = kwargs.get("generator")
    there = bool(ours) or torch.device(kwargs.get("device") or "cpu").type == NAME
    if generator is not None and there and generator.device.type == "cpu":
        raise MixedDevicesError(f"{name} with a generator of the host at {line_of_quantkit()}")
    together = (args[0], *args[2:]) if name in INDEXING else args
    tensors = _tensors((together, *kwargs.values()))
    if ours and any(_is_of_host(x) and x.dim() for x in tensors):
        raise MixedDevicesError(f"{name} at {line_of_quantkit()}")


def _count_copy(args: tuple[Any, ...], kwargs: dict[str, Any], there: str) -> None:
    """Copies between the sides, and kernels for those within the device; to the host they wait."""
    source, into = (args[1], args[0].device.type) if len(args) > 1 else (args[0], there)
    kind = {
        ("cpu", NAME): _counts.to_device,
        (NAME, "cpu"): _counts.to_host,
        (NAME, NAME): _counts.launches,
    }.get((source.device.type, into))
    if kind is not None:
        _add(kind)
    if kind is _counts.to_host and not kwargs.get("non_blocking"):
        _add(_counts.waits)


def _count(func: Any, name: str, args: tuple[Any, ...]) -> None:
    by_mask = name in INDEXING and any(
        x is not None and x.dtype in (torch.bool, torch.uint8) for x in args[1]
    )
    if name in INDEXING and any(_is_of_host(x) for x in args[1]):
        _add(_counts.to_device)
    if name in WAITING or by_mask:
        _add(_counts.waits)
    if not func.is_view and name not in NO_LAUNCH:
        _add(_counts.launches)


def held_bytes() -> int:
    """Bytes of the tensors that are on the device."""
    return _held.now


def peak_bytes() -> int:
    """The most bytes that tensors on the device had at a time since `pretended` was entered."""
    return _held.peak


def restart_peak() -> None:
    """Forget the peak so far."""
    with lock:
        _held.peak, _held.at_peak = _held.now, _held.lines.copy()


def peak_table() -> str:
    """What was held at the peak, in MB by the line that made it, for people."""
    return _held.table()


def _add(counter: Counter[str]) -> None:
    line = line_of_quantkit()
    with lock:
        counter[line] += 1


def _attention(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """torch chooses its kernel in C++, for a device that it knows."""

    def attention(*args: Any, **kwargs: Any) -> torch.Tensor:
        ours = [x for x in _tensors((args, *kwargs.values())) if isinstance(x, Pretended)]
        if not ours:
            return original(*args, **kwargs)
        _check("attention", ours, args, kwargs)
        _add(_counts.launches)
        kwargs = {key: _mapped(_inner, value) for key, value in kwargs.items()}
        return Pretended(original(*_mapped(_inner, args), **kwargs))

    return attention


def _made(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """torch.tensor makes its result in C++, for a device that it knows."""

    def made(*args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
        found = original(*args, **kwargs)
        return found if device is None else found.to(device)

    return made


@cache  # torch has one name to give away in a process
def _device() -> torch.device:
    _setup_privateuseone_for_python_backend(NAME)
    for operator in RESIZING:
        for overload in operator.overloads():  # type: ignore[no-untyped-call]
            if "out" not in overload:
                op = getattr(operator, overload)
                run = partial(_run_factory, op)
                _factories().impl(op, run, "PrivateUse1")  # type: ignore[no-untyped-call]
    _library().fallback(  # type: ignore[no-untyped-call]
        lambda op, *args, **kwargs: _run(op, args, kwargs), "PrivateUse1"
    )
    return torch.device(NAME, 0)


def _run_factory(op: Any, *args: Any, **kwargs: Any) -> Any:
    return _run(op, args, kwargs)


@cache
def _factories() -> torch.library.Library:
    """What torch makes empty and resizes, which a wrapper cannot follow."""
    return torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]


@cache  # what it registers lives as long as it does
def _library() -> torch.library.Library:
    """Factories have no tensor that tells the device: the dispatcher does."""
    return torch.library.Library("_", "IMPL")  # type: ignore[no-untyped-call]


@contextmanager
def pretended(further_bytes: float = math.inf, *, shapes_only: bool = False) -> Iterator[Counts]:
    """Makes the device `pretended:0` usable, and counts what is asked of it from now on.

    It has room for `further_bytes` more than it holds now.
    """
    global _shapes_only  # noqa: PLW0603 - torch calls functions, not an object that we hold
    _device()
    _shapes_only = shapes_only
    for counter in vars(_counts).values():
        counter.clear()
    restart_peak()
    _held.limit = _held.now + further_bytes
    functional = torch.nn.functional
    attention, tensor = functional.scaled_dot_product_attention, torch.tensor
    functional.scaled_dot_product_attention = _attention(attention)
    torch.tensor = _made(tensor)
    try:
        yield _counts
    finally:
        _shapes_only = False
        functional.scaled_dot_product_attention, torch.tensor = attention, tensor
        _held.limit = math.inf
