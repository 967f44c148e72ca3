"""The room beside cache and overheads, and a rank's bytes under any choice of schemes."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantkit.core import registry
from quantkit.core.errors import InputError, RefusedError
from quantkit.core.facts import LinearFacts
from quantkit.core.scheme import Scheme
from quantkit.core.serving import Degrees, Load
from quantkit.formats.compressed_tensors import FORMAT
from quantkit.planning.model.opened import open_model
from quantkit.planning.model.parallel import facts_of
from quantkit.planning.model.weights import Build
from quantkit.planning.serve.deploy import deploy
from quantkit.planning.serve.hardware import find_gpu
from quantkit.planning.serve.legal import linear_check
from quantkit.planning.serve.place import Place
from quantkit.planning.serve.room import Budget, RankSizes, Room, weight_room
from quantkit.planning.serve.settings import settings_of

SCHEMES = [Scheme("int", 4, 32), Scheme("int", 4, 64), Scheme("int", 8, None), None]


def room_of(folder: Path, tensor: int = 1, gpu: str = "24GB@1008GB/s") -> Room:
    degrees = Degrees(tensor)
    card = find_gpu(gpu)
    place = Place(card, "vllm", settings_of("vllm", card, degrees), degrees)
    return weight_room(open_model(str(folder)), place, Load(512, 2))


@given(st.data())
@pytest.mark.parametrize("tensor", [1, 2])
def test_bytes_are_those_that_a_plan_of_the_build_tells(
    tiny_checkpoint_cache: Callable[..., Path], tensor: int, data: st.DataObject
) -> None:
    room = room_of(tiny_checkpoint_cache("llama"), tensor)
    linears = [t for kind in room.model.kinds for t in kind.linears]
    names = {t.linear or "": t.linear or "" for t in linears}
    sizes = RankSizes(room, FORMAT, names)
    drawn = {name: data.draw(st.sampled_from(SCHEMES)) for name in names}
    schemes = {name: scheme for name, scheme in drawn.items() if scheme}
    build = Build("mixed", format=FORMAT, schemes=schemes, uniform=False)
    load, place = room.deployment.load, room.place
    told = deploy(room.model, build, place, load)
    assert sizes.whole(schemes) == told.weights
    assert (sizes.whole(schemes) <= room.bytes) == told.fits
    parts = sum(sizes.linear(facts_of(t), drawn[t.linear or ""]) for t in linears)
    dense = sum(sizes.linear(facts_of(t), None) for t in linears)
    assert sizes.whole(schemes) - sizes.whole({}) == parts - dense


def test_no_room_beside_the_cache_is_refused(tiny_checkpoint: Callable[..., Path]) -> None:
    card = find_gpu("2GB@1GB/s")
    settings = replace(settings_of("vllm", card, Degrees()), non_torch=2**31)
    place = Place(card, "vllm", settings)
    with pytest.raises(RefusedError, match="no memory for weights"):
        weight_room(open_model(str(tiny_checkpoint())), place, Load(512, 2))


def test_a_linear_that_planning_does_not_know_is_refused(
    tiny_checkpoint: Callable[..., Path],
) -> None:
    sizes = RankSizes(room_of(tiny_checkpoint("llama")), FORMAT, {"layers.0.new": "layers.0.new"})
    for name in ("layers.0.new", "layers.0.newer"):
        with pytest.raises(RefusedError, match="new"):
            sizes.linear(LinearFacts(name, 64, 64), SCHEMES[0])
        with pytest.raises(RefusedError, match="new"):
            sizes.whole({name: Scheme("int", 4, 32)})


def test_a_size_of_files_has_no_load() -> None:
    alone = Budget("vllm", size="5GB")
    assert alone.checked() == alone
    for load in ({"context": 512}, {"sequences": 2}, {"tensor": 2}):
        with pytest.raises(InputError, match="to a served model"):
            Budget("vllm", size="5GB", **load).checked()  # type: ignore[arg-type]  # one of them


def test_rules_are_those_of_the_ranks_slice(tiny_checkpoint: Callable[..., Path]) -> None:
    """down_proj has 256 inputs: two ranks of 128 hold groups of 128, which four cannot."""
    model = open_model(str(tiny_checkpoint()))
    kind = next(k for k in model.kinds if "down_proj" in (k.tensor.linear or ""))
    facts, scheme = facts_of(kind.tensor), Scheme("int", 4, 128)
    engine = registry.load("engines", "vllm", "ENGINE")
    check = partial(linear_check, engine, model, FORMAT)
    assert check((Degrees(1), None))(scheme, facts) is None
    assert check((Degrees(2), None))(scheme, facts) is None
    assert check((Degrees(4), None))(scheme, facts) is not None
