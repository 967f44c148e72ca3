"""Several processes for one run: one on each device, or those that torchrun has started."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from multiprocessing.process import BaseProcess
from time import monotonic, sleep
from typing import Any

import torch
import torch.distributed as group
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]  # as documented

from quantkit.core import errors
from quantkit.core.errors import InputError, QuantkitError, ResourceError
from quantkit.core.progress import silent
from quantkit.core.ranks import Ranks
from quantkit.core.session import Session
from quantkit.pipeline.start import device_of

LAUNCHED = "TORCHELASTIC_RUN_ID"
"""In the environment of the processes that torchrun starts."""
WAIT = timedelta(hours=2)
"""Longest wait for a rank that computes longer than the others."""

PATIENCE = 10
"""Seconds to wait for the reason why another rank is gone."""

Assist = Callable[[Session], object]
"""What the ranks other than the first do; a function that can be sent to another process."""


def devices_of(text: str) -> list[str]:
    """The devices that `0,1`, `cuda:0,cuda:1`, `cpu,cpu` or `all` (GPUs) name.

    Raises:
        InputError: there is none, or a GPU is named twice.
    """
    if text == "all":
        names = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
        if not names:
            raise InputError("there is no GPU for `--devices all`", hint="leave out --devices")
        return names
    parts = [part.strip() for part in text.split(",")]
    names = [f"cuda:{part}" if part.isdecimal() else part for part in parts]
    if again := [name for name in names if name != "cpu" and names.count(name) > 1]:
        raise InputError(f"device `{again[0]}` is named twice", hint="--devices 0,1")
    if len({name.partition(":")[0] for name in names}) > 1:
        raise InputError("--devices must be of one kind", hint="--devices 0,1")
    for name in names:
        try:
            device_of(name)
        except InputError as error:
            raise InputError(error.what, why=error.why, hint="leave out --devices") from error
    return names


@contextmanager
def ranks_of(session: Session, devices: Sequence[str], assist: Assist) -> Iterator[Session]:
    """The session of this process as the first rank; the others call `assist` with theirs.

    With several `devices` a process is started for each but the first. Processes that torchrun has
    started all come here, and all but the first end here.

    Raises:
        QuantkitError: what another rank has raised.
        SystemExit: this process is not the first, and has done its part.
    """
    count = int(os.environ.get("WORLD_SIZE", "1")) if LAUNCHED in os.environ else 1
    if count > 1:
        with _launched(session, devices, count) as joined:
            if joined.ranks.leads:
                yield joined
                return
            assist(joined)
        raise SystemExit(0)
    if len(devices) < 2:
        yield session.on(devices[0]) if devices else session
        return
    with _started(session, devices, assist) as joined:
        yield joined


@contextmanager
def _launched(session: Session, devices: Sequence[str], count: int) -> Iterator[Session]:
    """The session of a process that torchrun has started, with the devices' kind."""
    local = int(os.environ["LOCAL_RANK"])
    if devices and local >= len(devices):
        raise InputError(
            f"torchrun starts more processes than there are --devices ({len(devices)})",
            hint=f"torchrun --nproc-per-node {len(devices)}",
        )
    name = devices[local] if devices else session.device
    if name == "cuda":  # what `auto` has found
        name = device_of(f"cuda:{local}")
    with _group(name, int(os.environ["RANK"]), count):
        yield session.among(Ranks(int(os.environ["RANK"]), count)).on(name)


@contextmanager
def _started(session: Session, devices: Sequence[str], assist: Assist) -> Iterator[Session]:
    """The first rank's session, with a process started for each other device."""
    store = TCPStore("127.0.0.1", 0, len(devices), is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("spawn")
    told = context.SimpleQueue()
    quiet = replace(session, report=silent)
    others = [
        context.Process(
            target=_assist, args=(assist, quiet, rank, devices, store.port, told), daemon=True
        )
        for rank in range(1, len(devices))
    ]
    threads = torch.get_num_threads()
    for other in others:
        other.start()
    try:
        if devices[0] == "cpu":
            torch.set_num_threads(max(1, threads // len(devices)))
        with _group(devices[0], 0, len(devices), store):
            yield session.among(Ranks(0, len(devices))).on(devices[0])
        for other in others:
            other.join()
    except QuantkitError:
        raise
    except Exception as error:
        if cause := _cause(others, told):
            raise cause from error
        raise
    finally:
        torch.set_num_threads(threads)
        for other in others:
            other.terminate()
            other.join()


@contextmanager
def _group(device: str, rank: int, count: int, store: Store | None = None) -> Iterator[None]:
    """Torch's process group, over a store or the addresses in the environment."""
    kind = torch.device(device).type
    if kind == "cuda":
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo"
    group.init_process_group(backend, timeout=WAIT, store=store, rank=rank, world_size=count)
    try:
        yield
    finally:
        group.destroy_process_group()


def _assist(
    assist: Assist, session: Session, rank: int, devices: Sequence[str], port: int, told: Any
) -> None:
    """The life of another rank's process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first rank ends the others
    try:
        if devices[rank] == "cpu":
            torch.set_num_threads(max(1, torch.get_num_threads() // len(devices)))
        store = TCPStore("127.0.0.1", port, len(devices), is_master=False)
        with _group(devices[rank], rank, len(devices), store):
            assist(session.among(Ranks(rank, len(devices))).on(devices[rank]))
    except QuantkitError as error:
        told.put((type(error).__name__, error.what, error.why, error.hint))
        raise SystemExit(1) from error
    except Exception as error:
        what = f"rank {rank} on {devices[rank]} failed"
        told.put((ResourceError.__name__, what, f"{type(error).__name__}: {error}", None))
        raise SystemExit(1) from error


def _cause(others: Sequence[BaseProcess], told: Any) -> QuantkitError | None:
    """Why another rank has ended, if one has; a connection may end seconds before its process."""
    last = monotonic() + PATIENCE
    while monotonic() < last:
        if not told.empty():
            name, what, why, hint = told.get()
            found: QuantkitError = getattr(errors, name)(what, why=why, hint=hint)
            return found
        for rank, other in enumerate(others, 1):
            if other.exitcode not in (None, 0, 1):  # with 1 it has told
                why = f"exit code {other.exitcode}; -9 is what Linux does where memory runs out"
                return ResourceError(f"the process of rank {rank} has ended", why=why)
        sleep(0.05)
    return None
