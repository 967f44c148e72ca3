"""Several processes make the bytes of one; nothing here needs a GPU: gloo connects them."""

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import torch

import quantkit
from quantkit.checkpoint.source import resolve
from quantkit.checkpoint.stored import Source
from quantkit.core.errors import InputError, ResourceError
from quantkit.core.ranks import ALONE
from quantkit.core.recipe import Recipe
from quantkit.core.resources import OFFLOADED, REPLAYED, Holding
from quantkit.core.session import Session
from quantkit.grid.exchange import deal, exchange, stream
from quantkit.model.embedded_model import FOLDER
from quantkit.recipes.loader import build_recipe
from quantkit.runs import forecast
from quantkit.runs.produce import Order, assist_with, produce, ready
from quantkit.runs.ranks import devices_of, ranks_of
from tests.conftest import TinyCheckpoint

Runs = Sequence[tuple[Source, Recipe]]
RECIPES = ["gptq", "awq", "smoothquant", "nf4-double", "rtn"]
FAMILIES = ["llama", "experts_fused"]
ALL = "calibration.experts=all"
COMPENSATE = "calibration.compensate=true"


@pytest.fixture
def wanted(tiny_checkpoint: TinyCheckpoint) -> Runs:
    """Five methods of a dense model and of one with experts, some of which get no token."""
    sources = [resolve(str(tiny_checkpoint(f, dtype="bfloat16"))) for f in FAMILIES]
    runs = [
        (source, build_recipe(name, samples=5, sequence_length=500))
        for source in sources
        for name in RECIPES
    ]
    few = build_recipe("gptq", samples=3, sequence_length=64, settings=[ALL])
    moved = build_recipe("gptq", samples=5, sequence_length=500, settings=[COMPENSATE])
    cached = build_recipe("w4a16-fp8kv", samples=5, sequence_length=500)
    return [
        *runs,
        *((source, moved) for source in sources),
        (sources[1], few),
        (sources[0], cached),
    ]


def made(runs: Runs, folder: Path, session: Session = Session()) -> dict[str, str]:
    """SHA-256 of each run's files but for the manifest, which has times in it."""
    folder.mkdir()
    hashes = {}
    for number, (source, recipe) in enumerate(runs):
        order = Order(*ready(source, recipe, session), folder / str(number), 1 << 30)
        produce(order, session=session)
        for file in (order.output / "model.safetensors", order.output / "README.md"):
            hashes[f"{number} {recipe.name} {file.name}"] = digest(file)
    return hashes


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def helped(runs: Runs, session: Session) -> None:
    for source, recipe in runs:
        assist_with(source, recipe, session)


@pytest.mark.long
def test_any_number_of_ranks_makes_the_bytes_of_one(wanted: Runs, tmp_path: Path) -> None:
    alone = made(wanted, tmp_path / "alone")
    for count in (2, 4):
        with ranks_of(Session(), ["cpu"] * count, partial(helped, wanted)) as session:
            assert session.ranks.count == count
            assert made(wanted, tmp_path / f"{count}", session) == alone


@pytest.mark.long
@pytest.mark.parametrize("holding", [REPLAYED, OFFLOADED], ids=str)
def test_ranks_that_replay_make_the_bytes_of_one(
    wanted: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holding: Holding
) -> None:
    """The first rank chooses the way; the others, in processes of their own, are told."""
    some = (wanted[0], wanted[2], *wanted[-3:])  # with and without folded scales, and experts
    alone = made(some, tmp_path / "alone")
    monkeypatch.setattr(forecast, "ways", lambda *_: (holding,))
    with ranks_of(Session(), ["cpu", "cpu"], partial(helped, some)) as session:
        assert made(some, tmp_path / "two", session) == alone


def test_torchrun_starts_the_ranks(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    source = str(tiny_checkpoint("llama", dtype="bfloat16"))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = ["-m", "quantkit", "quantize", source, "-o", str(tmp_path / "two"), "--no-eval"]
    options = ["--samples", "4", "--set", "calibration.sequence_length=64", "--device", "cpu"]
    done = subprocess.run(
        [*torchrun, "--nproc-per-node", "2", *command, *options],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("method gptq") == 1  # one of them reports
    recipe = build_recipe("gptq", samples=4, sequence_length=64)
    produce(Order(*ready(resolve(source), recipe), tmp_path / "one", 1 << 30))
    assert digest(tmp_path / "two/model.safetensors") == digest(tmp_path / "one/model.safetensors")


def passed(session: Session) -> None:
    """All that is sent arrives, whatever its dtype and shape, and in the ranks' order."""
    ranks = session.ranks
    mine = {
        "half": torch.full((2, 3), ranks.rank + 0.5, dtype=torch.bfloat16).T,
        "codes": [torch.arange(ranks.rank, dtype=torch.uint8), None, "text"],
        "number": torch.tensor(7.0),
    }
    for rank, found in enumerate(exchange(ranks, mine)):
        assert found["half"].tolist() == [[rank + 0.5] * 2] * 3
        assert found["half"].dtype == torch.bfloat16
        assert found["codes"][0].tolist() == list(range(rank))
        assert found["codes"][1:] == [None, "text"]
        assert found["number"].shape == ()
    dealt = deal(ranks, [torch.tensor([ranks.rank, other]) for other in range(ranks.count)])
    assert [each.tolist() for each in dealt] == [[r, ranks.rank] for r in range(ranks.count)]
    tensors = [torch.full((2, 2), ranks.rank * 10 + i).T for i in range(ranks.rank + 1)]
    streamed = [int(each[0, 0]) for each in stream(ranks, tensors)]
    assert streamed == [r * 10 + i for r in range(ranks.count) for i in range(r + 1)]


def test_what_is_passed_arrives() -> None:
    passed(Session(ranks=ALONE))
    with ranks_of(Session(), ["cpu"] * 3, passed) as session:
        passed(session)


def refused(_: Session) -> None:
    raise InputError("the text is gone", why="a disk", hint="another one")


def killed(_: Session) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def broken(_: Session) -> None:
    raise ValueError("a bug")


@pytest.mark.parametrize(
    ("part", "error", "what"),
    [
        (refused, InputError, "the text is gone"),
        (killed, ResourceError, "the process of rank 1 has ended"),
        (broken, ResourceError, "rank 1 on cpu failed"),
    ],
)
def test_another_ranks_end_is_told(part: object, error: type[Exception], what: str) -> None:
    with (
        pytest.raises(error, match=what),
        ranks_of(Session(), ["cpu", "cpu"], part) as session,  # type: ignore[arg-type]
    ):
        exchange(session.ranks, torch.ones(3))


def test_one_device_or_several(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="both given"):
        quantkit.quantize(str(FOLDER), tmp_path / "out", device="cpu", devices="cpu,cpu")


def test_devices_by_number_name_and_all() -> None:
    assert devices_of("cpu, cpu") == ["cpu", "cpu"]
    for text, why in (("cpu,meta", "one kind"), ("x", "not available"), ("meta,meta", "twice")):
        with pytest.raises(InputError, match=why):
            devices_of(text)
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="no GPU"):
            devices_of("all")
        with pytest.raises(InputError, match="cuda:1"):
            devices_of("1")
