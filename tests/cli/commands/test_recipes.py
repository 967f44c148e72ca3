import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from quantkit.recipes.loader import list_recipes, load_recipe
from quantkit.recipes.schema import document_of

Call = Callable[..., tuple[int, str, str]]


def test_list_has_every_shipped_recipe_with_its_description(quantkit: Call) -> None:
    code, out, _ = quantkit("recipes", "list")
    assert code == 0
    for info in list_recipes():
        assert any(
            line.split()[0] == info.name and line.endswith(info.description)
            for line in out.splitlines()
        )
    document = json.loads(quantkit("recipes", "list", "--json")[1])
    assert [item["name"] for item in document] == [info.name for info in list_recipes()]


def test_show_prints_what_load_reads(quantkit: Call, tmp_path: Path) -> None:
    code, out, _ = quantkit("recipes", "show", "smoothquant")
    assert code == 0
    mine = tmp_path / "mine.yaml"
    mine.write_text(out, encoding="utf-8")
    assert load_recipe(str(mine)) == load_recipe("smoothquant")
    document = json.loads(quantkit("recipes", "show", "smoothquant", "--json")[1])
    assert document == document_of(load_recipe("smoothquant"))


def test_a_faulty_file_is_2_with_every_fault(quantkit: Call, tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("extends: gptq\nscheme: {bits: 9, grp: 3}\n", encoding="utf-8")
    code, _, err = quantkit("recipes", "show", str(mine))
    assert code == 2
    assert err.startswith("error: recipe `mine` has 2 errors\n")
    assert f"{mine}:2:10: scheme.bits: expected 2, 3, 4, 5, 6, 7 or 8, not 9" in err
    assert f"{mine}:2:19: scheme.grp: unknown key" in err


def test_lint_counts_what_becomes_of_a_model_without_torch(tmp_path: Path) -> None:
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 96}
    config |= {"intermediate_size": 128, "num_attention_heads": 4, "torch_dtype": "bfloat16"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "mine.yaml").write_text(
        'extends: gptq\noverrides:\n  - {match: "*.down_proj", bits: 8}\n'
    )
    program = (
        "import sys\n"
        "from quantkit.cli.main import run\n"
        "code = run(['recipes', 'lint', 'mine.yaml', '--model', 'config.json', '--json'])\n"
        "sys.exit(code if 'torch' not in sys.modules else 99)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, check=True, capture_output=True
    )
    found = json.loads(done.stdout)
    assert found["becomes"] == {"W4 g64 sym": 12, "W8 g64 sym": 2}
    assert found["overrides"] == [{"match": "*.down_proj", "linears": 2}]
