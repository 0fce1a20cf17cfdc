"""Several named outputs."""

import copy
import pickle

import pytest
import torch
from torch import nn

from flodl import FlowBuilder
from flodl.core import BuildError, RefError

X = torch.randn(3, 4)


def two_heads() -> FlowBuilder:
    return FlowBuilder(nn.Linear(4, 8)).split({"logits": nn.Linear(8, 2), "value": nn.Linear(8, 1)})


def test_a_graph_returns_a_dict_of_its_outputs():
    model = two_heads().output("logits", "value").build(example=X)
    found = model(X)
    assert [*found] == ["logits", "value"] == [*model.output_names]
    assert torch.equal(found["logits"], model.tagged("logits"))
    assert found["value"].shape == (3, 1)


def test_an_output_may_have_another_name_than_its_tag():
    model = two_heads().output("value", scores="logits").build()
    assert model.output_names == ("value", "scores")
    assert torch.equal(model(X)["scores"], model.tagged("logits"))


def test_branches_of_a_stream_can_be_returned_without_the_stream():
    model = FlowBuilder(nn.Linear(4, 4)).fork(nn.Linear(4, 2)).tag("a").fork(nn.ReLU()).tag("b")
    assert [*model.output("a", "b").build()(X)] == ["a", "b"]


def test_a_graph_with_a_single_value_has_no_output_names():
    assert FlowBuilder(nn.Linear(4, 4)).build().output_names == ()


def test_a_parent_graph_receives_the_dict():
    heads = two_heads().output("logits", "value").label("heads").build()
    model = FlowBuilder(heads).through(lambda found: found["logits"] * found["value"]).build()
    assert model(X).shape == (3, 2)


def test_outputs_survive_copies_pickles_and_compilation():
    model = two_heads().output("logits", "value").build()
    want = model(X)["value"]
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(X)["value"], want)
    assert torch.equal(torch.compile(model, backend="eager")(X)["value"], want)
    assert 'class="' in model.svg()


def test_the_names_of_outputs_enter_the_structural_hash():
    hashes = {two_heads().output(*names).build().structural_hash for names in (("logits", "value"),) * 2}
    assert len(hashes) == 1
    assert two_heads().output("value", "logits").build().structural_hash not in hashes


def test_a_value_that_is_returned_is_not_overwritten():
    chain = FlowBuilder(nn.Linear(4, 4)).tag("before").through(nn.ReLU(inplace=True)).tag("after")
    with pytest.raises(BuildError, match="read by 'outputs_1'"):
        chain.output("before", "after").build()


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda b: b.output(), BuildError, r"output\(\) returns nothing"),
        (lambda b: b.output("logit", "value"), RefError, "this tag does not exist.*'logits'"),
        (lambda b: b.output("value", value="logits"), BuildError, "names an output twice"),
        (lambda b: b.output("value"), BuildError, "2 streams are open, and output does not return 'logits'"),
    ],
)
def test_mistakes_in_outputs_are_errors(call, error, words):
    with pytest.raises(error, match=words):
        call(two_heads())


def test_a_second_call_of_output_is_an_error():
    chain = FlowBuilder(nn.Linear(4, 4)).tag("a").through(nn.Linear(4, 2)).tag("b").output("a")
    with pytest.raises(BuildError, match=r"Name all outputs in one call: output\('a', 'b'\)"):
        chain.output("b")
    with pytest.raises(BuildError, match=r"Name all outputs in one call: output\('a', c='b'\)"):
        chain.output(c="b")


def test_outputs_may_be_processed_and_returned_again():
    chain = FlowBuilder(nn.Linear(4, 4)).tag("a").output("a").through(lambda found: found["a"]).tag("b")
    assert [*chain.output("a", "b").build()(X)] == ["a", "b"]


def test_a_list_of_names_raises_with_the_call_that_was_meant():
    with pytest.raises(BuildError, match=r"Pass the names one by one: output\('logits', 'value'\)"):
        two_heads().output(["logits", "value"])
    with pytest.raises(BuildError, match=r"Pass the names one by one: input\('ctx', 'mask'\)"):
        FlowBuilder().input(["ctx", "mask"])
