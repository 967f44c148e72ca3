"""Training memory against ZeRO's paper, DeepSpeed's estimator, and worked figures."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

import pytest

from quantkit.core.errors import RefusedError
from quantkit.core.training import Training, TrainingMemory, TrainingMethod, Zero, total
from quantkit.planning.model.architecture import Architecture
from quantkit.planning.model.config import read_architecture
from quantkit.planning.model.inventory import Inventory, PlannedTensor
from quantkit.planning.model.parameters import inventory_from_config
from quantkit.planning.train.memory import lora_parameters, nf4_bytes, training_memory

GB, GIB = 1e9, 1 << 30
STATES = ("weights", "gradients", "fp32 weights", "moments")
LLAMA = "Llama-3-8B"


def of_size(*sizes: int) -> tuple[Architecture, Inventory]:
    """A model of a few tensors, for rules that see no more than their sizes."""
    tensors = (PlannedTensor(f"w{i}", (size,), "BF16", "mlp", i) for i, size in enumerate(sizes))
    empty = Architecture("none", 1, 1, True, (), None, "BF16")
    return empty, Inventory(tuple(tensors), "config.json")


def model(name: str, known_models: Mapping[str, Any]) -> tuple[Architecture, Inventory]:
    config = known_models[name]["config"]
    architecture = read_architecture(config)
    return architecture, inventory_from_config(config, architecture)


def states(memory: TrainingMemory) -> dict[str, int]:
    return {figure.name: figure.bytes for figure in memory.gpu if figure.name in STATES}


@pytest.mark.parametrize(
    ("zero", "gigabytes"), [("0", 120.0), ("1", 31.4), ("2", 16.6), ("3", 1.88), ("fsdp", 1.88)]
)
def test_zero_as_its_paper_says(zero: Zero, gigabytes: float) -> None:
    memory = training_memory(*of_size(7_500_000_000), Training(gpus=64, zero=zero))
    assert sum(states(memory).values()) / GB == pytest.approx(gigabytes, abs=0.05)


def test_deepspeeds_estimate_for_t5_small() -> None:
    # 60,506,624 parameters, the embedding the largest; fp32 gradients, as DeepSpeed keeps them
    largest = 16_449_536
    t5 = of_size(largest, *[(60_506_624 - largest) // 8] * 8)
    training = Training(zero="3", gradient_bytes=4)
    figures = {f.name: f.bytes for f in training_memory(*t5, training).gpu}
    gathered = figures["gathered weights"]
    held = gathered + sum(figures[name] for name in STATES)
    assert held / GIB == pytest.approx(1.08, abs=0.005)
    assert (gathered + figures["weights"]) / GIB == pytest.approx(0.17, abs=0.005)
    away = training_memory(*t5, replace(training, offload="cpu"))
    assert states(away) == {}
    assert gathered / GIB == pytest.approx(0.06, abs=0.005)
    assert total(away.cpu) == 18 * 60_506_624


OPT_175B = 174_604_468_224
WORKED = {
    # w16, g16, master, m+v, sum, ZeRO-1, 2 and 3 of 8, ZeRO-3 of 64, with 8-bit Adam
    "Llama-2-7B": (13.48, 13.48, 26.95, 53.91, 107.8, 37.1, 25.3, 13.5, 1.68, 67.4),
    "Llama-2-70B": (137.95, 137.95, 275.9, 551.8, 1103.6, 379.4, 258.7, 138.0, 17.2, 689.8),
    "OPT-175B": (349.2, 349.2, 698.4, 1396.8, 2793.7, 960.3, 654.8, 349.2, 43.7, 1746.0),
}


@pytest.mark.parametrize("name", WORKED)
def test_worked_states(name: str, known_models: dict[str, Any]) -> None:
    parameters = known_models[name]["parameters"] if name in known_models else OPT_175B
    sized = of_size(parameters)
    parts = states(training_memory(*sized, Training()))
    found = [parts[part] for part in STATES] + [sum(parts.values())]
    sharded: tuple[tuple[int, Zero], ...] = ((8, "1"), (8, "2"), (8, "3"), (64, "3"))
    for gpus, zero in sharded:
        memory = training_memory(*sized, Training(gpus=gpus, zero=zero))
        found.append(sum(states(memory).values()))
    eight = states(training_memory(*sized, Training(optimizer="adamw-8bit")))
    scales = 8 * -(-parameters // 256)
    found.append(sum(eight.values()) - scales)
    assert [figure / GB for figure in found] == pytest.approx(WORKED[name], rel=4e-3)


def test_adapters_of_llama_3_8b(known_models: dict[str, Any]) -> None:
    architecture, inventory = model(LLAMA, known_models)
    assert lora_parameters(inventory, 16) == 41_943_040
    memory = training_memory(architecture, inventory, Training("lora"))
    assert sum(states(memory).values()) == 2 * 8_030_261_248 + 16 * 41_943_040


def test_qlora_holds_nf4_and_decodes_a_linear_at_a_time(known_models: dict[str, Any]) -> None:
    architecture, inventory = model(LLAMA, known_models)
    # the written file has a JSON description of 224 linears besides
    assert nf4_bytes(inventory) == 5_702_539_264
    figures = {
        f.name: f.bytes for f in training_memory(architecture, inventory, Training("qlora")).gpu
    }
    assert figures["weights"] == 5_702_539_264 + 2 * 41_943_040
    assert figures["decoded linear"] == 2 * 4096 * 14_336


def test_logits_outweigh_attention_in_a_large_vocabulary(known_models: dict[str, Any]) -> None:
    training = Training(tokens=8192, checkpointing="full")
    figures = {f.name: f.bytes for f in training_memory(*model(LLAMA, known_models), training).gpu}
    assert figures["logits"] / GB == pytest.approx(4.2, abs=0.05)
    assert figures["working: loss"] > figures["activations"]


@pytest.mark.parametrize("method", get_args(TrainingMethod))
@pytest.mark.parametrize(
    "name", ["Llama-3-8B", "Falcon-7B", "DeepSeek-V2-Lite", "Mamba-2.8B", "Jamba-v0.1"]
)
def test_each_saving_saves(method: TrainingMethod, name: str, known_models: dict[str, Any]) -> None:
    sized = model(name, known_models)

    def gpu(**changes: Any) -> int:
        return total(training_memory(*sized, Training(method, gpus=8, **changes)).gpu)

    assert gpu(zero="3") < gpu(zero="0")
    assert gpu(zero="2", offload="cpu") < gpu(zero="2")
    assert gpu(zero="3", offload="nvme") == gpu(zero="3", offload="cpu") < gpu(zero="3")
    assert gpu(checkpointing="full") < gpu(checkpointing="selective") <= gpu()
    assert gpu(optimizer="adamw-8bit") < gpu()
    assert gpu(tokens=1024) < gpu(sequences=2, tokens=1024)


def test_what_leaves_the_gpu_lies_elsewhere(known_models: dict[str, Any]) -> None:
    sized = model(LLAMA, known_models)
    stay = training_memory(*sized, Training(gpus=8, zero="3"))
    ram = training_memory(*sized, Training(gpus=8, zero="3", offload="cpu"))
    disk = training_memory(*sized, Training(gpus=8, zero="3", offload="nvme"))
    assert total(ram.cpu) == total(disk.cpu + disk.nvme) == sum(states(stay).values())
    assert [figure.name for figure in disk.cpu] == ["gradients"]
    assert (stay.cpu, stay.nvme, ram.nvme) == ((), (), ())


@pytest.mark.parametrize(("offload", "zero"), [("nvme", "2"), ("nvme", "fsdp"), ("cpu", "0")])
def test_offloading_that_nothing_does_is_refused(offload: Any, zero: Zero) -> None:
    with pytest.raises(RefusedError, match="ZeRO"):
        training_memory(*of_size(8), Training(zero=zero, offload=offload))
