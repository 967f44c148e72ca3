from quantkit.core.facts import LinearFacts
from quantkit.core.plan import Disposition, Plan
from quantkit.core.scheme import Scheme

STORED = Scheme("int", 4, 64, rounded_to="nf4")


def test_methods_go_by_one_grid_and_formats_by_the_other() -> None:
    assert STORED.kind.name == "nf4"
    assert STORED.storage.name == "int"
    assert STORED.label() == "NF4 g64"
    assert STORED.scale_dtype("bfloat16") == "bfloat16"
    assert STORED.scale_count(64, 96) == 64 * 2
    assert STORED.read == Scheme("int", 4, 64) != STORED


def test_a_grid_that_stores_itself_has_one_name() -> None:
    scheme = Scheme("nf4", 4, 64)
    assert scheme.stored() is scheme
    assert scheme.read is scheme
    assert scheme.scale_count(64, 96) == 64 * 96 // 64


def test_what_engines_mix_is_what_they_read() -> None:
    linear = LinearFacts("layers.0.fc", 64, 128)
    plan = Plan(dispositions=(Disposition(linear, STORED), Disposition(linear, None)))
    assert plan.schemes == {"layers.0.fc": STORED}
    assert Plan(dispositions=plan.dispositions[:1]).by_name == {"layers.0.fc": STORED.read}
