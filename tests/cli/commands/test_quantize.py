import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quantkit.core.facts import LinearFacts
from quantkit.core.figure import Figure
from quantkit.core.plan import Disposition, Plan
from quantkit.core.progress import Progress
from quantkit.core.recipe import Recipe
from quantkit.core.resources import REPLAYED, Files, Memory, Time, Work
from quantkit.core.scheme import Scheme
from quantkit.pipeline.measure import Cost
from quantkit.recipes.loader import build_recipe, load_recipe
from quantkit.recipes.schema import document_of
from quantkit.results.schema import GateOutcome
from quantkit.runs.produce import QuantizeResult

Call = Callable[..., tuple[int, str, str]]


def result(gates: tuple[GateOutcome, ...] = ()) -> QuantizeResult:
    names = [f"model.layers.{i}.mlp.down_proj" for i in range(3)]
    modules = [
        {"name": name, "scheme": "W4 g64 sym", "loss": 0.01 * i, "notes": []}
        for i, name in enumerate(names)
    ]
    return QuantizeResult(
        output=Path("out"),
        bytes=12_345_678,
        bits_per_weight=6.53,
        quantized_bits_per_weight=4.25,
        cost=Cost(75.0, 150.0, 2 * 10**9),
        planned={"bytes": 12_345_678, "work_bytes": 8 * 10**8, "peak_rss_bytes": 1_300_000_000},
        measured={"seconds": 60.0, "cpu_seconds": 120.0, "peak_rss_bytes": 1_200_000_000},
        engines={"sglang": None, "transformers": None, "vllm": None},
        recipe=document_of(build_recipe()),
        modules=tuple(modules),
        evaluation=None,
        gates=gates,
        remarks=("group size 64: the largest that divides every quantized width",),
    )


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the command hands to the API, whose work is not done."""
    seen: dict[str, Any] = {"result": result()}

    def quantize(model: str, output: Path, **arguments: Any) -> QuantizeResult:
        seen.update(arguments, model=model, output=output)
        arguments["report"](Progress("quantize", 1, 1, "model.layers.0"))
        found: QuantizeResult = seen["result"]
        return found

    monkeypatch.setattr("quantkit.api.artifacts.quantize", quantize)
    return seen


def test_flags_become_a_recipe_and_arguments(quantkit: Call, called: dict[str, Any]) -> None:
    flags = (
        "--method awq --bits 3 --group-size channel --symmetric --format compressed-tensors "
        "--calibration text.jsonl --samples 7 --sequence-length 99 --set options.duo=true "
        "--max-shard-size 2GB --device cpu --max-ram 9GB --no-eval --trust-remote-code"
    )
    code, _, err = quantkit("quantize", "org/name@main", "-o", "out", *flags.split())
    assert code == 0, err
    assert called["model"] == "org/name@main"
    assert called["output"] == Path("out")
    assert called["max_shard_size"] == 2 * 10**9
    assert (called["max_ram"], called["max_vram"]) == ("9GB", None)
    assert (called["device"], called["evaluate"], called["trust_remote_code"]) == (
        "cpu",
        False,
        True,
    )
    assert called["recipe"] == build_recipe(
        method="awq",
        bits=3,
        group_size="channel",
        symmetric=True,
        format="compressed-tensors",
        calibration="text.jsonl",
        samples=7,
        sequence_length=99,
        settings=["options.duo=true"],
    )


def test_nothing_stated_is_the_default_recipe_and_evaluated(
    quantkit: Call, called: dict[str, Any]
) -> None:
    assert quantkit("quantize", "m", "-o", "out")[0] == 0
    assert called["recipe"] == load_recipe("gptq")
    assert (called["evaluate"], called["trust_remote_code"]) == (True, False)


def test_the_closing_table_joins_like_linears_and_says_what_it_cost(
    quantkit: Call, called: dict[str, Any]
) -> None:
    assert called
    code, out, err = quantkit("quantize", "m", "-o", "out")
    assert code == 0
    assert "model.layers.*.mlp.down_proj  W4 g64 sym      3         0.01        0.02" in out
    assert "out: 12.3 MB, 4.25 bits a weight in the quantized linears, 6.53 over the wh" in out
    assert "\nquantizing took 1 min 00 s, 1.2 GB peak memory (planned 1.3 GB)\n" in out
    assert "\nthe whole run took 1 min 15 s, 2 min 30 s of CPU, 2 GB peak memory\n" in out
    assert "group size 64: the largest" in out
    assert 'next: vllm serve out\nor: quantkit generate out "Once upon a time"' in out
    assert err == "[   0 s] quantize: model.layers.0\n"


def test_json_is_the_result_alone(quantkit: Call, called: dict[str, Any]) -> None:
    code, out, err = quantkit("quantize", "m", "-o", "out", "--json", "--quiet")
    assert (code, err) == (0, "")
    assert json.loads(out) == json.loads(json.dumps(called["result"].to_dict()))
    wanted = "output bytes bits_per_weight seconds cpu_seconds peak_rss_bytes recipe modules"
    assert set(wanted.split()) <= set(json.loads(out))


def test_a_missed_gate_is_3_after_the_result(quantkit: Call, called: dict[str, Any]) -> None:
    missed = GateOutcome(expression="kl.mean < 0.01", value=0.2, limit=0.01, status="failed")
    called["result"] = result((missed,))
    code, out, err = quantkit("quantize", "m", "-o", "out", "--json")
    assert code == 3
    assert json.loads(out)["gates"][0]["status"] == "failed"
    assert "kl.mean < 0.01  0.2       -              0.01   failed" in err
    code, out, _ = quantkit("quantize", "m", "-o", "out")
    assert code == 3
    assert out.splitlines()[-1].endswith("failed")


def test_an_undecided_gate_is_3_where_the_result_says_so(
    quantkit: Call, called: dict[str, Any]
) -> None:
    called["result"] = result((GateOutcome(expression="kl.mean < 1", status="undecided"),))
    assert quantkit("quantize", "m", "-o", "out")[0] == 0
    called["result"] = replace(called["result"], undecided="fail")
    assert quantkit("quantize", "m", "-o", "out")[0] == 3


def test_gates_of_the_command_line_join_those_of_the_recipe(
    quantkit: Call, called: dict[str, Any]
) -> None:
    flags = [
        "--set",
        "gates=[kl.mean < 1]",
        "--gate",
        "artifact.bytes<=5GB",
        "--baseline",
        "b.json",
    ]
    assert quantkit("quantize", "m", "-o", "out", *flags)[0] == 0
    assert [str(gate) for gate in called["recipe"].gates] == [
        "kl.mean < 1",
        "artifact.bytes <= 5GB",
    ]
    assert called["baseline"] == "b.json"


def test_print_recipe_is_a_recipe_and_needs_no_model(quantkit: Call, tmp_path: Path) -> None:
    code, out, _ = quantkit("quantize", "nowhere", "--recipe", "nf4-double", "--print-recipe")
    assert code == 0
    mine = tmp_path / "mine.yaml"
    mine.write_text(out, encoding="utf-8")
    assert load_recipe(str(mine)) == load_recipe("nf4-double")


def test_a_dry_run_shows_every_linear_and_needs_no_output(
    quantkit: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan(model: str, *, recipe: Recipe, **_: object) -> Plan:
        linears = [LinearFacts(f"{model}.layers.{i}.fc", 64, 128) for i in range(4)]
        dispositions = [Disposition(linear, Scheme()) for linear in linears[:3]]
        dispositions.append(Disposition(linears[3], None, "left out by the recipe"))
        return Plan(
            recipe,
            tuple(dispositions),
            ("a remark",),
            Files({"model.safetensors": 5_700_000_000}),
            Memory((Figure("solving", 10**9, "all of it"),), 4 * 10**8, 1_430_000_000),
            Time(Work(), "BF16", (120.0, 300.0)),
        )

    monkeypatch.setattr("quantkit.api.artifacts.dry_run", plan)
    code, out, _ = quantkit("quantize", "m", "--dry-run")
    assert code == 0
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "m.layers.*.fc 64 x 128 W4 g64 sym 3" in lines
    assert "m.layers.*.fc 64 x 128 as it is left out by the recipe 1" in lines
    assert lines[-3:] == [
        "method gptq, format gptq",
        "a remark",
        "planned: 5.7 GB of files, 1.43 GB peak memory, 2 to 5 minutes",
    ]
    document = json.loads(quantkit("quantize", "m", "--dry-run", "--json")[1])
    assert len(document["modules"]) == 4
    assert document["modules"][3]["scheme"] is None
    assert document["planned"] == {
        "bytes": 5_700_000_000,
        "work_bytes": 10**9,
        "base_rss_bytes": 4 * 10**8,
        "peak_rss_bytes": 1_430_000_000,
        "least_seconds": 120.0,
        "most_seconds": 300.0,
        "disk_bytes": 5_985_000_000,
        "peak": {"name": "solving", "bytes": 10**9, "rule": "all of it"},
        "activations": "paused",
        "forwards": 1.0,
    }


def test_a_limit_that_nothing_fits_is_5_before_any_work(
    quantkit: Call, tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    output = tmp_path / "out"
    command = ["quantize", str(tiny_checkpoint("llama")), "-o", str(output), "--no-eval"]
    command += ["--samples", "4", "--sequence-length", "64", "--device", "cpu"]
    code, out, err = quantkit(*command, "--max-ram", "50MB")
    assert (code, out) == (5, "")
    assert "of memory, and --max-ram allows 50 MB" in err
    assert not output.exists()
    size = float(err.rpartition("try: --max-ram ")[2].removesuffix("GB\n"))
    code, out, _ = quantkit(*command, "--max-ram", "50MB", "--dry-run")
    assert code == 0
    assert "and --max-ram allows 50 MB; try: --max-ram" in out
    assert quantkit(*command, "--max-ram", f"{size + 0.5:g}GB")[0] == 0
    assert output.is_dir()


def test_a_dry_run_says_how_activations_are_held(
    quantkit: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = (Figure("solving", 10**9, "all of it"),)
    memory = Memory(stages, 4 * 10**8, 1_430_000_000, REPLAYED, 2.04)
    files = Files({"model.safetensors": 5_700_000_000})
    plan = Plan(build_recipe(), files=files, memory=memory)
    monkeypatch.setattr("quantkit.api.artifacts.dry_run", lambda *_, **__: plan)
    out = quantkit("quantize", "m", "--dry-run")[1]
    told = "planned: 5.7 GB of files, 1.43 GB peak memory, activations replayed, 2.0 forwards"
    assert told in out
    document = json.loads(quantkit("quantize", "m", "--dry-run", "--json")[1])
    assert (document["planned"]["activations"], document["planned"]["forwards"]) == (
        "replayed",
        2.04,
    )


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("", "--output is required"),
        ("-o out --bits 9", "expected 2, 3, 4, 5, 6, 7 or 8, not 9"),
        ("-o out --method gptw", "try: --method gptq"),
        ("-o out --recipe gptw", "try: --recipe gptq"),
        ("-o out --max-shard-size big", "`big` is not a valid size"),
        ("-o out --set damp=0.1", "unknown key"),
        ("-o out --gate kl.men<1", "the nearest are kl.mean"),
    ],
)
def test_wrong_usage_is_2_before_any_work(
    flags: str, told: str, quantkit: Call, called: dict[str, Any]
) -> None:
    code, out, err = quantkit("quantize", "m", *flags.split())
    assert (code, out) == (2, "")
    assert told in err
    assert "\ntry: " in err
    assert "model" not in called
