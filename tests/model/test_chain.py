"""Models whose blocks, or what follows them, read more than the output of the block before."""

import pytest
import transformers

from quantkit.core.errors import RefusedError
from quantkit.model.chain import require_chain
from quantkit.model.skeleton import Skeleton, build_skeleton
from tests.conftest import SHAPE


def skeleton_of(name: str, **settings: object) -> Skeleton:
    config = getattr(transformers, name)(**SHAPE | settings)
    return build_skeleton(config)


@pytest.mark.parametrize("name", ["LlamaConfig", "Gemma3TextConfig", "MixtralConfig"])
def test_a_plain_decoder_is_a_chain(name: str) -> None:
    require_chain(skeleton_of(name))


def test_residuals_from_earlier_blocks_are_refused() -> None:
    """Inkling 2 attends to the outputs of earlier blocks; run one by one they would be lost."""
    sizes = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    heads = {"swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "swa_head_dim": 32}
    skeleton = skeleton_of("Inkling2TextConfig", **sizes, **heads)
    with pytest.raises(RefusedError, match="from block to block"):
        require_chain(skeleton)
    assert all(parameter.is_meta for parameter in skeleton.model.parameters())
