import json
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
    mine.write_text("extends: gptq\nscheme: {bits: 5, grp: 3}\n", encoding="utf-8")
    code, _, err = quantkit("recipes", "show", str(mine))
    assert code == 2
    assert err.startswith("error: recipe `mine` has 2 errors\n")
    assert f"{mine}:2:10: scheme.bits: expected 2, 3, 4 or 8, not 5" in err
    assert f"{mine}:2:19: scheme.grp: unknown key" in err
