"""Quantize a prepared model into a folder, and verify that the files decode to the result."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

import torch

from quantkit.checkpoint.journal import Kept
from quantkit.checkpoint.side_files import carry_side_files, edited_config
from quantkit.checkpoint.spill import Spill
from quantkit.checkpoint.threads import cores, in_order
from quantkit.checkpoint.writer import ArtifactWriter
from quantkit.core.errors import IntegrityError
from quantkit.core.method import Solved
from quantkit.core.progress import Progress, Report
from quantkit.core.resources import PAUSED, Holding
from quantkit.core.scheme import Scheme
from quantkit.core.session import Session
from quantkit.grid.digest import codes_sha256
from quantkit.grid.kv_cache import CacheScales
from quantkit.model.batches import Room
from quantkit.model.open import open_model
from quantkit.model.opened import OpenModel
from quantkit.pipeline.behind import Behind
from quantkit.pipeline.blockloop import quantize_blocks
from quantkit.pipeline.built import BlockRecord, Built, ModuleRecord
from quantkit.pipeline.groups import BlockState, SolverConfig
from quantkit.pipeline.prepare import Prepared, model_facts
from quantkit.pipeline.write import dense_parts, encoded, sources

VERIFIERS = 4
"""Linears that are decoded at a time, in less memory than a block is quantized in."""


def build(
    prepared: Prepared,
    writer: ArtifactWriter,
    input_ids: torch.Tensor | None,
    session: Session = Session(),
) -> Built:
    """Write weights, config and side files into `writer`'s folder, and read the weights back.

    `input_ids` is int64 (windows, length); None quantizes without calibration inputs.

    Raises:
        IntegrityError: the source changed meanwhile, or a file does not decode to its weight.
    """
    model, schemes = prepared.model, prepared.plan.schemes
    memory = prepared.plan.memory
    holding = memory.holding if memory else PAUSED
    room = _room(prepared, holding, writer, input_ids)
    model = replace(model, checkpoint=replace(model.checkpoint, hashed=True), room=room)
    block = prepared.format.config(model_facts(prepared))
    writer.write_json("config.json", edited_config(model.checkpoint.config, block))
    trust = session.trust_remote_code
    side_files = carry_side_files(model.checkpoint, writer, trust_remote_code=trust)
    solver = solver_of(prepared, holding, session)
    journal = writer.journal
    record = sum(map(BlockRecord.of, journal.blocks if journal else ()), BlockRecord())
    finished: list[Future[BlockRecord]] = []
    with Behind(model.device) as behind:
        for state in quantize_blocks(
            model, prepared.structure, solver, input_ids, session.report, journal
        ):
            behind.wait()
            finished.append(_leave(state, prepared, writer, behind))
            del state  # and its codes, as soon as they are hashed
        behind.wait()
    record = sum((each.result() for each in finished), record)
    written = set(record.changed)
    parts = dense_parts(model, schemes)
    ledger = dict(_ledger(model, prepared, written, parts))
    for name, disposition in ledger.items():
        if disposition in ("copied", "decoded"):
            writer.add(name, model.checkpoint.tensor(name))
    for part in parts:
        if model.stored_name(part) not in written:
            writer.add(model.stored_name(part), model.stored(part))
    writer.finish_weights()
    model.checkpoint.check_unchanged()
    artifact = open_model(writer.folder, session, skeleton=model.skeleton)
    verify_weights(artifact, record.modules, session.report)
    verify_cache(artifact, record.cache)
    size = sum(shard.nbytes for shard in writer.shards)
    tokens, peaks = record.expert_tokens, record.peaks
    return Built(record.modules, tokens, ledger, side_files, size, artifact, peaks)


def _room(
    prepared: Prepared, holding: Holding, writer: ArtifactWriter, input_ids: torch.Tensor | None
) -> Room:
    """Where hidden states wait between two blocks: in memory, or in a file beside the output."""
    if not holding.spilled or input_ids is None:
        return list
    model, compensate = prepared.model, prepared.plan.recipe.calibration.compensate
    width = int(model.text_config.hidden_size) * model.dtype.itemsize
    size = (2 if compensate else 1) * input_ids.numel() * width
    return Spill(writer.folder.parent, size).batches


def assist(
    prepared: Prepared, holding: Holding, input_ids: torch.Tensor | None, session: Session
) -> None:
    """The part of `build` that ranks other than the first have: nothing is written."""
    solver = solver_of(prepared, holding, session)
    for _ in quantize_blocks(prepared.model, prepared.structure, solver, input_ids):
        pass


def solver_of(prepared: Prepared, holding: Holding, session: Session) -> SolverConfig:
    """With what the blocks of a prepared model are solved."""
    recipe = prepared.plan.recipe
    return SolverConfig(
        prepared.method,
        prepared.options,
        prepared.plan.schemes,
        recipe.calibration.experts,
        session.ranks,
        holding,
        recipe.calibration.compensate,
        recipe.kv_cache,
    )


def _leave(
    state: BlockState, prepared: Prepared, writer: ArtifactWriter, behind: Behind
) -> Future[BlockRecord]:
    """Have a finished block hashed, written, and committed where a run can go on after it."""
    schemes = prepared.plan.schemes
    records = [
        behind.hash(partial(_record, linear, schemes[linear], solved))
        for linear, solved in state.solved.items()
    ]
    for name, tensor in encoded(state, prepared.format):
        behind.write(partial(writer.add, name, tensor))
    changed, tokens, cache = tuple(state.changed), state.expert_tokens, state.cache
    peaks = {state.name: state.peak_bytes}
    hidden = _keep(state, writer)

    def commit() -> BlockRecord:
        modules = tuple(each.result() for each in records)
        record = BlockRecord(modules, changed, tokens, cache, peaks)
        if hidden is not None:
            writer.commit({**record.to_dict(), "hidden": hidden})
        return record

    return behind.write(commit)


def _keep(state: BlockState, writer: ArtifactWriter) -> Kept | None:
    """What the next block reads, on disk; None where no run can go on there.

    It cannot on several devices.
    """
    if writer.journal is None or state.passed_on is None:
        return None
    last = state.index + 1 == len(state.model.skeleton.blocks)
    return writer.journal.keep([] if last else state.passed_on)


def _record(linear: str, scheme: Scheme, solved: Solved) -> ModuleRecord:
    digest = codes_sha256(solved.qtensor)
    return ModuleRecord(linear, scheme.label(), solved.loss, solved.notes, digest)


def _ledger(
    model: OpenModel, prepared: Prepared, changed: set[str], parts: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """What became of each stored tensor, and of each weight that some of them are decoded to.

    `parts`: tensors of the model that the artifact stores dense and apart.
    """
    source = model.checkpoint
    coding = source.coding
    quantized = sources(model, prepared.plan.schemes)
    apart = {name for part in parts for name in model.weights.places[part].names}
    for name in sorted(model.checkpoint.names):
        if name in quantized:
            yield name, "quantized"
        elif name in apart:
            yield name, "split"
        elif name in changed:
            yield name, "rescaled"
        else:
            yield name, "decoded" if name in coding.tensors else "copied"
    yield from ((name, "merged") for name in sorted(coding.parts - source.names.keys()))
    yield from ((name, "dropped") for name in coding.dropped)


def verify_cache(artifact: OpenModel, cache: Mapping[str, CacheScales]) -> None:
    """Compare the scales of keys and values with those in the written artifact.

    Raises:
        IntegrityError: they differ.
    """
    if artifact.cache != cache:
        raise IntegrityError(
            "the scales of the KV cache differ from those that were written",
            hint="check the disk, then run again; report it if it happens twice",
        )


def verify_weights(artifact: OpenModel, records: Sequence[ModuleRecord], report: Report) -> None:
    """Decode every quantized linear of the written artifact and compare it by its hash.

    Raises:
        IntegrityError: a weight differs from the one that later blocks were calibrated with.
    """

    def found(record: ModuleRecord) -> str:
        return codes_sha256(artifact.qtensor(record.name))

    hashes = in_order(found, records, min(VERIFIERS, cores()))
    for done, (record, digest) in enumerate(zip(records, hashes, strict=True), 1):
        if digest != record.codes_sha256:
            raise IntegrityError(
                f"`{record.name}` decodes to another weight than was written",
                why="the file on disk differs from the weight in memory",
                hint="check the disk, then run again; report it if it happens twice",
            )
        report(Progress("verify", done, len(records), record.name))
