"""The signature of a graph's forward names its inputs."""

import copy
import gc
import inspect
import pickle
import weakref

import pytest
import torch
from torch import nn

from flodl import FlowBuilder, Graph
from flodl.core import InputError, TagError

X = torch.randn(3, 4)


def add(x, *, ctx):
    return x + ctx


def named() -> Graph:
    return FlowBuilder(nn.Linear(4, 4), input="tokens").input("ctx").through(add).using("ctx").build()


def test_the_signature_names_the_inputs():
    assert [*inspect.signature(named().forward).parameters][:2] == ["tokens", "ctx"]
    assert named().input_names == ("tokens", "ctx")
    assert FlowBuilder(nn.Linear(4, 4)).build().input_names == ("input",)


def test_every_input_can_be_passed_by_position_or_by_name():
    model = named()
    want = model(X, X)
    assert torch.equal(model(X, ctx=X), want)
    assert torch.equal(model(ctx=X, tokens=X), want)
    single = FlowBuilder(nn.Linear(4, 4)).build()
    assert torch.equal(single(input=X), single(X))


def test_the_named_stream_can_be_referred_to():
    model = FlowBuilder(nn.Linear(4, 4), input="ctx").through(add).using("ctx").build(example={"ctx": X})
    assert torch.equal(model(X), model.linear_1(X) + X)


@pytest.mark.parametrize(
    ("args", "names", "got"),
    [
        ((), {}, "0 by position"),
        ((X,), {}, "1 by position"),
        ((), {"ctx": X}, "0 by position and ctx by name"),
        ((X,), {"context": X}, "1 by position and context by name"),
        ((X, X, X), {}, "3 by position"),
    ],
)
def test_wrong_inputs_say_how_to_call(args, names, got):
    with pytest.raises(InputError, match=rf"takes 2 inputs, got {got}\. Call it as model\(tokens, ctx=…\)"):
        named()(*args, **names)


def test_a_misspelled_input_is_named():
    with pytest.raises(InputError, match=r"'ctxt' is not an input: did you mean 'ctx'\?"):
        named()(X, ctxt=X)


@pytest.mark.parametrize("name", ["self", "lambda", "two words"])
def test_a_stream_needs_a_name_that_can_be_a_keyword_argument(name):
    with pytest.raises(TagError, match=r"the input .* (cannot be a keyword argument|is not a name)"):
        FlowBuilder(nn.Linear(4, 4), input=name)


def test_copies_and_pickles_keep_the_class():
    model = named()
    for other in (copy.deepcopy(model), copy.copy(model), pickle.loads(pickle.dumps(model))):
        assert type(other) is type(model)
        assert torch.equal(other(X, ctx=X), model(X, ctx=X))
    assert isinstance(model, Graph)
    assert repr(model).startswith("Graph(")


def test_graphs_with_the_same_inputs_share_a_class_and_are_freed_at_once():
    model = named()
    assert type(named()) is type(model)
    gc.disable()
    try:
        reference = weakref.ref(model)
        del model
        assert reference() is None
    finally:
        gc.enable()


def test_export_takes_dynamic_shapes_by_name_and_names_its_inputs():
    batch = torch.export.Dim("batch", min=2, max=64)
    shapes = {"tokens": {0: batch}, "ctx": {0: batch}}
    for args, by_name in [((X, X), {}), ((X,), {"ctx": X}), ((), {"tokens": X, "ctx": X})]:
        program = torch.export.export(named(), args, by_name, dynamic_shapes=shapes)
        assert program.graph_signature.user_inputs == ("tokens", "ctx")
    other = torch.randn(5, 4)
    assert program.module()(tokens=other, ctx=other).shape == (5, 4)


def test_the_stream_may_be_given_its_default_name():
    model = FlowBuilder(nn.Linear(4, 4), input="input").tag("out").build()
    assert model.input_names == ("input",)
    assert torch.equal(model(input=X), model(X))
    assert model.structural_hash == FlowBuilder(model.out).tag("out").build().structural_hash


def test_another_input_cannot_have_the_name_of_the_stream():
    with pytest.raises(TagError, match=r"^'input' is the default name of the stream. Use a different name"):
        FlowBuilder(nn.Linear(4, 4)).input("input")
