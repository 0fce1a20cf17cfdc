"""Checkpoints of transformers load into the graph and are written back, every tensor byte-equal."""

import pytest
import torch

from flodl.core import HFError
from flodl.hf.assignment import assign
from flodl.hf.heads import Head

from ..reference import pair, saved
from .test_parity import CASES, CELLS, OPTIONS, name


@pytest.mark.parametrize(("family", "head", "options"), CASES, ids=name)
def test_keys_and_tensors_survive_the_round_trip(family, head, options):
    both = pair(family, head, **options)
    plan = both.plan
    assert not plan.missing
    assert not plan.unexpected
    assert not plan.dropped
    assert not plan.duplicates
    assert not plan.renamed
    source, written = saved(both.reference), both.keys.to_checkpoint(both.graph)
    assert written.keys() == source.keys()
    for key, tensor in source.items():
        assert written[key].dtype == tensor.dtype
        assert torch.equal(written[key], tensor), key


@pytest.mark.slow
@pytest.mark.parametrize(("family", "head"), CELLS)
def test_transformers_loads_what_is_written(family, head, tmp_path):
    both = pair(family, head, **OPTIONS[family][0])
    with torch.no_grad():
        for parameter in both.graph.parameters():
            parameter.add_(1.0)
    both.reference.save_pretrained(tmp_path, state_dict=both.keys.to_checkpoint(both.graph))
    loaded, report = type(both.reference).from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    written = both.keys.to_checkpoint(both.graph)
    for key, tensor in saved(loaded).items():
        assert torch.equal(tensor, written[key]), key


@pytest.mark.parametrize(("family", "head"), CELLS)
def test_a_prefix_may_be_missing_or_superfluous(family, head):
    both = pair(family, head, **OPTIONS[family][0])
    prefix, source = both.keys.prefix + ".", saved(both.reference)
    if head == "base":
        changed = {prefix + key: tensor for key, tensor in source.items()}
    else:
        changed = {key.removeprefix(prefix): tensor for key, tensor in source.items()}
    plan = both.keys.plan(both.graph, changed)
    assert not plan.missing
    assert not plan.unexpected
    for graph_name, key in plan.sources.items():
        assert torch.equal(changed[key], both.graph.state_dict()[graph_name])


@pytest.mark.parametrize(("family", "head"), CELLS)
def test_old_spellings_and_buffers_are_accepted(family, head):
    both = pair(family, head, **OPTIONS[family][0])
    keys = list(saved(both.reference))
    old = [
        key.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        for key in keys
    ]
    buffer = f"{both.keys.prefix}.embeddings.position_ids"
    plan = both.keys.plan(both.graph, [*old, buffer])
    assert not plan.missing
    assert not plan.unexpected
    assert list(plan.dropped) == [buffer]
    assert set(plan.renamed) == {key for key in old if key not in keys}
    with pytest.raises(HFError, match="two tensors for one parameter"):
        both.keys.plan(both.graph, [*keys, next(key for key in keys if "mbeddings.w" in key), "nothing"])


@pytest.mark.parametrize("family", sorted({family for family, head in CELLS if head == "mlm"}))
def test_redundant_decoder_weights_are_reported_and_may_stand_in_for_the_owner(family):
    both = pair(family, "mlm", **OPTIONS[family][0])
    keys = list(saved(both.reference))
    tied = {copy: owner for copy, owner in both.reference.all_tied_weights_keys.items() if copy not in keys}
    plan = both.keys.plan(both.graph, [*keys, *tied])
    assert plan.duplicates == tied
    for copy, owner in tied.items():
        swapped = [key for key in keys if key != owner]
        plan = both.keys.plan(both.graph, [*swapped, copy])
        assert not plan.missing
        assert copy in plan.sources.values()


@pytest.mark.slow
@pytest.mark.parametrize(("family", "head"), CELLS)
def test_the_weights_of_another_head_are_dropped_with_a_reason(family, head):
    both = pair(family, head, **OPTIONS[family][0])
    other = pair(family, "base" if head != "base" else "tokcls", **OPTIONS[family][0])
    plan = both.keys.plan(both.graph, saved(other.reference))
    encoder = {name for name in plan.missing if name.startswith(("embeddings.", "encoder."))}
    assert not encoder
    assert not plan.unexpected
    assert all("head" in reason for reason in plan.dropped.values())


@pytest.mark.parametrize("family", sorted({family for family, _ in CELLS}))
def test_an_unknown_key_is_unexpected(family):
    both = pair(family, "base", **OPTIONS[family][0])
    plan = both.keys.plan(both.graph, [*saved(both.reference), "encoder.layer.9.mystery.weight"])
    assert plan.unexpected == ("encoder.layer.9.mystery.weight",)


def test_a_graph_on_the_meta_device_can_be_filled():
    both = pair("bert", "mlm")
    with torch.device("meta"):
        empty = both.family.build(both.config, Head.MASKED_LM)
    tensors = saved(both.reference)
    plan = both.keys.plan(empty, tensors)
    assign(empty, {name: tensors[key] for name, key in plan.sources.items()})
    assert all(not tensor.is_meta for tensor in empty.state_dict().values())
    assert (
        empty.get_submodule("lm_head.decoder_1").weight
        is empty.get_submodule("embeddings.tokens.word").weight
    )
