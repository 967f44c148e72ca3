import time
from pathlib import Path
from typing import Any

import pytest

from quantkit.core.manifest import Manifest
from quantkit.recipes.document import parse
from quantkit.runs.card import model_card

EVALUATION = {
    "status": "valid",
    "perplexity": {"value": 29.13, "standard_error": 1.3},
    "reference_perplexity": {"value": 27.68, "standard_error": 1.2},
    "kl": {
        "mean": 0.0241,
        "standard_error": 0.0013,
        "median": 0.011,
        "p99": 0.32,
        "max": 4.6,
        "floor_mean": 1e-9,
    },
    "top1_agreement": 0.93,
    "top1_standard_error": 0.002,
    "protocol": {
        "name": "documents",
        "text": "smoke",
        "sequence_length": 512,
        "windows": 16,
        "dtype": "bfloat16",
    },
}


def manifest(**changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "source": {"id": "org/Example-8B", "revision": "a" * 40},
        "recipe": {"name": "gptq", "method": "gptq", "description": ""},
        "format": "compressed-tensors",
        "calibration": {
            "source": "default",
            "samples": 128,
            "sequence_length": 2048,
            "sha256": "f",
        },
        "modules": ({"name": "m", "scheme": "W4 g64 sym"}, {"name": "n", "scheme": "W4 g64 sym"}),
        "tensors": {},
        "side_files": {},
        "bytes": 5_700_000_000,
        "bits_per_weight": 4.41,
        "quantized_bits_per_weight": 4.25,
        "evaluation": EVALUATION,
        "remarks": ("group size 64: the largest that divides every quantized width",),
        "environment": {"torch": "2.13.0"},
        "planned": {},
        "measured": {},
        "engines": {},
    }
    return Manifest(**fields | changes).to_dict()


def front_matter(card: str) -> dict[str, Any]:
    _, text, _ = card.split("---\n", 2)
    return parse(text, "card").data


def test_front_matter_says_what_the_hub_asks() -> None:
    assert front_matter(model_card(manifest())) == {
        "base_model": "org/Example-8B",
        "base_model_relation": "quantized",
        "pipeline_tag": "text-generation",
        "library_name": "transformers",
        "tags": ["quantkit", "gptq", "compressed-tensors", "4-bit"],
    }


@pytest.mark.parametrize(
    ("original", "kept"),
    [
        ("license: other\nlicense_name: llama3\ntags:\n- conversational\n", ("other", "llama3")),
        ("license: apache-2.0\nlicense_name: 'a: b # \"c'\n", ("apache-2.0", 'a: b # "c')),
        ("license: &a x\nlicense_name: *a\n", (None, None)),
        ("", (None, None)),
    ],
)
def test_the_licence_is_the_original_s(
    tmp_path: Path, original: str, kept: tuple[str | None, str | None]
) -> None:
    (tmp_path / "README.md").write_text(f"---\n{original}\n---\n# Example\n", encoding="utf-8")
    found = front_matter(model_card(manifest(), tmp_path))
    assert (found.get("license"), found.get("license_name")) == kept
    assert ("conversational" in found["tags"]) == ("conversational" in original)


def test_figures_come_with_their_errors() -> None:
    card = model_card(manifest())
    assert "| perplexity | 27.68 ± 1.2 | 29.13 ± 1.3 |" in card
    assert "mean, nats per token | 1e-09 | 0.0241 ± 0.0013 |" in card
    assert "| same most likely token, share |  | 0.93 ± 0.002 |" in card
    assert "5,700,000,000 bytes, 4.25 bits a weight in the quantized linears, 4.41 over the" in card
    assert "small bundled text" in card


def test_further_metrics_have_a_row_each() -> None:
    metrics = {
        "new.mean": {"label": "P(a|b) lost", "unit": "nats", "value": 0.5, "standard_error": 0.01},
        "share": {"label": "Share", "unit": "fraction", "value": 0.25, "standard_error": None},
        "absent": {"label": "Not measured", "unit": "number", "value": None},
    }
    card = model_card(manifest(evaluation=EVALUATION | {"metrics": metrics}))
    assert "| P(a\\|b) lost, nats |  | 0.5 ± 0.01 |\n" in card
    assert "| Share |  | 0.25 |\n" in card
    assert "Not measured" not in card
    table = card.partition("|---")[2].partition("\n\n")[0]
    assert table.count("\n") == 8


def test_the_level_of_the_kl_stands_below_the_figures() -> None:
    level = {"level": "large", "meaning": "KL 0.2 is large", "next": ["--method gptq", "b"]}
    card = model_card(manifest(evaluation=EVALUATION | {"kl_level": level}))
    assert "\nKL 0.2 is large.\n- To try: `--method gptq`\n- To try: `b`\n\n## Loading" in card


def test_no_figures_where_none_were_measured_or_they_are_invalid() -> None:
    for evaluation in (None, EVALUATION | {"status": "invalid"}):
        assert "## Quality" not in model_card(manifest(evaluation=evaluation))


def test_engines_are_those_that_load_it() -> None:
    card = model_card(manifest(engines={"transformers": None, "vllm": "3 bits have no kernel"}))
    assert "\n- Group size 64: the largest that divides every quantized width.\n" in card
    assert "pip install transformers compressed-tensors accelerate" in card
    assert "vllm serve" not in card
    assert "vllm does not load it: 3 bits have no kernel." in card
    assert "vllm serve FOLDER" in model_card(manifest(engines={"vllm": None}))


def test_no_engine_is_promised_for_a_format_that_its_file_does_not_list() -> None:
    engines = {"transformers": None, "vllm": "vLLM does not load format `new`"}
    card = model_card(manifest(format="new", engines=engines))
    assert "No engine that quantkit knows loads this folder; `quantkit generate FOLDER" in card
    assert "from_pretrained" not in card
    assert "vllm does not load it: vLLM does not load format `new`." in card


def test_a_local_model_leaves_no_path_behind(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    card = model_card(manifest(source={"id": None, "revision": None}), folder)
    assert str(tmp_path) not in card
    assert "# my-model W4 g64 sym (gptq)" in card
    assert "base_model" not in front_matter(card)


def test_everything_optional_may_be_missing() -> None:
    card = model_card(manifest(calibration=None, evaluation=None, remarks=()))
    assert "Calibration" not in card
    assert not any(line != line.rstrip() for line in card.splitlines())
    assert "\n\n\n" not in card


@pytest.mark.parametrize(
    "text",
    [
        "---\ntags: 5\nlicense: mit\n---\n",
        "---\ntags: true\nlicense: mit\n---\n",
        "---\r\nlicense: mit\r\n---",
    ],
)
def test_odd_front_matter_of_the_original_costs_only_what_is_odd(tmp_path: Path, text: str) -> None:
    (tmp_path / "README.md").write_bytes(text.encode())
    fields = front_matter(model_card(manifest(), tmp_path))
    assert fields["license"] == "mit"
    assert "conversational" not in fields["tags"]


@pytest.mark.parametrize("text", ["---" + "\n" * 200_000, "---\n" + "x: y\n" * 100_000 + "---\n"])
def test_a_card_without_an_end_in_sight_is_let_go_at_once(tmp_path: Path, text: str) -> None:
    (tmp_path / "README.md").write_text(text)
    started = time.perf_counter()
    assert "license" not in front_matter(model_card(manifest(), tmp_path))
    assert time.perf_counter() - started < 5


def test_a_card_that_leads_out_of_the_folder_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("---\nlicense: secret\n---\n")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "README.md").symlink_to(tmp_path / "elsewhere")
    assert "license" not in front_matter(model_card(manifest(), tmp_path / "model"))


def test_a_card_of_a_cache_alone_says_what_is_quantized() -> None:
    recipe = {"name": "fp8kv", "method": "rtn", "description": "", "kv_cache": "fp8-tensor"}
    card = model_card(manifest(recipe=recipe, modules=(), quantized_bits_per_weight=None))
    assert "Only the KV cache is quantized" in card
    assert "KV cache fp8-tensor" in card
    assert "0 linears" not in card
    assert "None" not in card


@pytest.mark.parametrize(
    ("schemes", "tags"),
    [
        (["FP8 channel W8A8"], ["8-bit"]),
        (["MXFP8", "W4 g64 sym"], ["8-bit", "4-bit"]),
        (["NVFP4 W4A4"], ["4-bit"]),
        (["NF4 g64"], ["4-bit"]),
        ([], []),
    ],
)
def test_tags_name_the_bits_of_each_scheme(schemes: list[str], tags: list[str]) -> None:
    modules = tuple({"name": str(n), "scheme": scheme} for n, scheme in enumerate(schemes))
    found = front_matter(model_card(manifest(modules=modules)))["tags"]
    assert sorted(tag for tag in found if tag.endswith("-bit")) == sorted(tags)
