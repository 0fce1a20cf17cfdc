"""Sentences in the tensors of a slot: nothing is lost, and the boundaries are those of the format."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

from flodl.core import HFError
from flodl.hf.packing import Slot, pack, pack_values, to_rows, unpack
from flodl.hf.packing.rows import rows_of


@st.composite
def batches(draw):
    longest = draw(st.integers(1, 40))
    lengths = draw(st.lists(st.integers(1, longest), max_size=8))
    needed = max(sum(lengths), longest)
    slot = Slot(
        tokens=-(-needed // 64) * 64 + 64 * draw(st.integers(0, 2)),
        sequences=max(1, len(lengths) + draw(st.integers(0, 3))),
        longest=longest,
    )
    return [draw(st.lists(st.integers(5, 90), min_size=n, max_size=n)) for n in lengths], slot


@settings(deadline=None)
@given(batches(), st.sampled_from([list, np.array, torch.tensor]), st.integers(0, 2))
def test_every_sentence_comes_back(batch, kind, first):
    sentences, slot = batch
    packed = pack([kind(sentence) for sentence in sentences], slot, pad_id=1, first_position=first)
    ids, bounds = packed["input_ids"], packed["cu_seqlens"]
    assert ids.shape == packed["position_ids"].shape == (1, slot.tokens)
    assert [part.tolist() for part in unpack(ids, bounds, len(sentences))] == sentences
    for sentence, positions in zip(sentences, unpack(packed["position_ids"], bounds, len(sentences))):
        assert positions.tolist() == list(range(first, first + len(sentence)))
    assert (ids[0, sum(map(len, sentences)) :] == 1).all()
    assert first <= packed["position_ids"].min()
    assert packed["position_ids"].max() < first + slot.longest
    assert packed["longest"] == slot.longest


@settings(deadline=None)
@given(batches())
def test_boundaries_grow_to_the_end_in_steps_of_at_most_the_longest(batch):
    sentences, slot = batch
    bounds = pack(sentences, slot)["cu_seqlens"]
    assert bounds.dtype == torch.int32
    assert len(bounds) == slot.num_boundaries
    sizes = bounds.diff()
    assert bounds[0] == 0
    assert bounds[-1] == slot.tokens
    assert (sizes >= 0).all()
    assert (sizes <= slot.longest).all()
    assert sizes[: len(sentences)].tolist() == [len(sentence) for sentence in sentences]
    assert not sizes[len(sentences) : slot.sequences].any()


@settings(deadline=None)
@given(batches())
def test_rows_have_one_sentence_each(batch):
    sentences, slot = batch
    packed = pack(sentences, slot)
    rows = to_rows(packed["input_ids"], packed["cu_seqlens"], slot.longest, fill=-7)
    assert rows.shape == (slot.sequences, slot.longest)
    expected = [sentence + [-7] * (slot.longest - len(sentence)) for sentence in sentences]
    assert rows[: len(sentences)].tolist() == expected
    assert (rows[len(sentences) :] == -7).all()


def test_rows_keep_further_dimensions():
    packed = pack([[5, 6, 7], [8]], slot := Slot(64, 2, 32))
    values = torch.randn(1, 64, 2, 3)
    rows = to_rows(values, packed["cu_seqlens"], slot.longest)
    assert rows.shape == (2, 32, 2, 3)
    assert torch.equal(rows[0, :3], values[0, :3])
    assert torch.equal(rows[1, 0], values[0, 3])
    assert not rows[1, 1:].any()


def test_labels_and_token_types_follow_the_tokens():
    slot = Slot(64, 4, 32)
    packed = pack([[5, 6, 7], [8, 9]], slot, token_types=[[0, 0, 1], [0, 1]])
    assert packed["token_type_ids"][0, :7].tolist() == [0, 0, 1, 0, 1, 0, 0]
    labels = pack_values([[1, 2, 3], [4, 5]], slot, fill=-100, sentences=[[5, 6, 7], [8, 9]])
    assert labels[0, :7].tolist() == [1, 2, 3, 4, 5, -100, -100]


def test_no_sentence_gives_a_batch_of_padding():
    packed = pack([], Slot(64, 2, 32), pad_id=3)
    assert (packed["input_ids"] == 3).all()
    assert packed["cu_seqlens"].tolist() == [0, 0, 0, 32, 64]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Slot(100, 4, 32), "tokens is 100; expected a multiple of 32, such as 128"),
        (lambda: Slot(64, 0, 32), "sequences is 0; expected an integer of at least 1"),
        (lambda: Slot(64, 4, 65), "longest is 65, but the slot has 64 tokens"),
        (lambda: Slot(64, True, 32), "sequences is True"),
        (lambda: pack([[1]] * 5, Slot(64, 4, 32)), "has 5 sentences, but the slot has room for 4"),
        (lambda: pack([[1], [2] * 33], Slot(64, 4, 32)), "sentence 1 has 33 tokens; .* of 1 to 32 tokens"),
        (lambda: pack([[1], []], Slot(64, 4, 32)), "sentence 1 has 0 tokens; .* Remove it"),
        (lambda: pack([[1] * 30] * 3, Slot(64, 4, 32)), "90 tokens together, but the slot has room for 64"),
        (lambda: pack([[1, 2]], Slot(64, 4, 32), token_types=[[0]]), "sentence 0 has 2 tokens, but 1 token"),
        (
            lambda: pack_values([[0]], Slot(64, 4, 32), fill=-100, sentences=[[1], [2]]),
            "values for 1 sentences, but 2 sentences",
        ),
        (lambda: unpack(torch.zeros(2, 64), torch.tensor([0, 3, 64]), 1), "expected a packed tensor"),
        (lambda: to_rows(torch.zeros(1, 64), torch.tensor([0, 64]), 8), "cu_seqlens has 2 values for 64"),
    ],
)
def test_what_does_not_fit_raises(call, message):
    with pytest.raises(HFError, match=message):
        call()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_boundaries_are_searched_in_a_tensor_of_their_own(dtype) -> None:
    # In torch 2.11, Inductor cannot lower searchsorted in a slice on CUDA.
    traced = make_fx(lambda bounds: rows_of(bounds, 64, 32).place)(
        torch.tensor([0, 3, 5, 5, 37, 64], dtype=dtype)
    )
    (search,) = [node for node in traced.graph.nodes if "searchsorted" in str(node.target)]
    assert search.args[0].target in (torch.ops.aten._to_copy.default, torch.ops.aten.clone.default)


def test_each_token_has_the_place_of_its_row() -> None:
    cu_seqlens = torch.tensor([0, 3, 3, 5, 37, 64], dtype=torch.int32)
    rows = rows_of(cu_seqlens, 64, 32)
    # An empty row between two sentences; after the sentences, place 0.
    assert rows.place[:6].tolist() == [0, 1, 2, 64, 65, 0]
    assert rows.length.tolist() == [3, 0, 2]
