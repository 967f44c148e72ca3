from typing import Any

from quantkit.results.error_map import error_map


def test_losses_become_a_row_a_block_and_a_column_a_kind_of_linear() -> None:
    modules: list[dict[str, Any]] = [
        {"name": "model.layers.0.self_attn.q_proj", "loss": 0.1},
        {"name": "model.layers.2.mlp.experts.0.up_proj", "loss": 0.2},
        {"name": "model.layers.2.mlp.experts.1.up_proj", "loss": 0.3},
        {"name": "lm_head", "loss": 0.9},
        {"name": "model.layers.1.self_attn.q_proj", "loss": None},
    ]
    found = error_map(modules)
    assert found.columns == ["q", "up"]
    assert found.relative_output_error == [[0.1, None], [None, None], [None, 0.3]]
    assert error_map([]).relative_output_error == []


def test_tokens_of_experts_become_their_spread_and_how_many_had_few() -> None:
    few = "0 calibration tokens reached this expert: rounded to nearest"
    modules: list[dict[str, Any]] = [
        {"name": "model.layers.0.mlp.experts.1.up_proj", "loss": 0.2, "notes": []},
        {"name": "model.layers.0.mlp.experts.1.down_proj", "loss": 0.2, "notes": [few]},
        {"name": "model.layers.0.mlp.experts.1.gate_proj", "loss": 0.2, "notes": [few]},
        {"name": "model.layers.1.mlp.experts.1.gate_proj", "loss": 0.2, "notes": [few]},
    ]
    tokens = {"model.layers.0.mlp.experts": (7, 0), "model.layers.1.mlp.experts": [90, 3]}
    found = error_map(modules, tokens).experts
    assert found is not None
    assert found.model_dump() == {
        "count": 4,
        "least": 0,
        "median": 5.0,
        "most": 90,
        "few": 2,
        "unreached": 1,
    }
    assert error_map(modules).experts is None
