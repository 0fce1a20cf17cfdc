"""Wrong calls of the methods of builders, graphs, trends, routers and halts are errors of flodl."""

import contextlib
import inspect
import re

import pytest
import torch
from torch import nn

import flodl
from flodl import FlowBuilder, Graph, Trend, TrendGroup
from flodl.core import FlodlError


def linear():
    return nn.Linear(4, 4)


def forked():
    return FlowBuilder(linear()).split([linear(), linear()])


def graph():
    model = FlowBuilder(linear()).tag("enc").through(linear()).build(torch.zeros(2, 4))
    model(torch.zeros(2, 4))
    model.record("loss", 1.0)
    model.end_epoch()
    return model


def loop():
    return FlowBuilder().loop_body(linear())


def mapped():
    return FlowBuilder().map(linear())


def trends():
    return TrendGroup({"loss": Trend([3.0, 2.0, 1.0], name="loss")})


def public_methods(kind):
    """Return the public methods that flodl defines for a class."""
    owners = {
        name: next(one for one in kind.__mro__ if name in vars(one)) for name in dir(kind) if name[0] != "_"
    }
    return [
        name
        for name, owner in owners.items()
        if owner.__module__.startswith("flodl.") and inspect.isfunction(inspect.getattr_static(kind, name))
    ]


# `forward` and the values for loops have errors or callers of their own; `unfreeze` is an error itself.
LEFT_OUT = {"forward", "published_values", "unfreeze"}
CREATED = {
    FlowBuilder: forked,
    Graph: graph,
    type(loop()): loop,
    type(mapped()): mapped,
    Trend: lambda: Trend([3.0, 2.0, 1.0]),
    TrendGroup: trends,
}
METHODS = {
    f"{kind.__name__}.{name}": (lambda create=create, name=name: getattr(create(), name))
    for kind, create in CREATED.items()
    for name in public_methods(kind)
    if name not in LEFT_OUT
}
CLASSES = {
    one.__name__: (lambda one=one: one)
    for one in (
        FlowBuilder,
        Trend,
        TrendGroup,
        flodl.ArgmaxSelector,
        flodl.FixedSelector,
        flodl.LearnedHalt,
        flodl.SigmoidRouter,
        flodl.SoftmaxRouter,
        flodl.ThresholdHalt,
        flodl.TopKRouter,
    )
}
CALLS = METHODS | CLASSES
RIGHT = {
    "also_with": (linear(), linear()),
    "gate": (flodl.SoftmaxRouter(4, 2), [linear(), linear()]),
    "switch": (flodl.FixedSelector(0), [linear(), linear()]),
    "while_cond": (linear(), 3),
    "until_cond": (linear(), 3),
    "record": ("loss", 1.0),
    "set_training": ("enc", True),
}


def parameters(call):
    return [*inspect.signature(call).parameters.values()]


# Building a graph for each of its methods takes a second, so it is done once.
PARAMETERS = {name: parameters(call()) for name, call in CALLS.items()}
TAKES_ANY = {
    name for name, all_of in PARAMETERS.items() if any(one.kind is one.VAR_KEYWORD for one in all_of)
}


@pytest.mark.parametrize("name", [name for name in CALLS if name not in TAKES_ANY])
def test_an_unknown_keyword_is_an_error_that_names_the_method(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    method = name.rpartition(".")[2]
    with pytest.raises(FlodlError, match=rf"\b{method} has no argument 'foo_bar'\. .+") as caught:
        CALLS[name]()(foo_bar=1)
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize(
    ("name", "parameter"),
    [
        (name, one.name)
        for name, all_of in PARAMETERS.items()
        for one in all_of
        if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY) and len(one.name) > 2
        if name not in TAKES_ANY
    ],
)
def test_a_misspelled_keyword_is_an_error_with_the_right_one(name, parameter):
    wrong = parameter[:-2] + parameter[-1] + parameter[-2]
    with pytest.raises(FlodlError, match=rf"has no argument '{wrong}'\. .*'{parameter}'"):
        CALLS[name]()(**{wrong: 1})


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, all_of in PARAMETERS.items()
        if not any(one.kind is one.VAR_POSITIONAL for one in all_of)
    ],
)
def test_surplus_arguments_are_an_error_that_names_the_method(name):
    method = name.rpartition(".")[2]
    with pytest.raises(FlodlError, match=rf"\b{method} got .*int"):
        CALLS[name]()(*[1] * (len(PARAMETERS[name]) + 1))


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, all_of in PARAMETERS.items()
        if any(one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD for one in all_of)
    ],
)
def test_missing_arguments_are_an_error_that_names_the_first(name):
    method = name.rpartition(".")[2]
    first = PARAMETERS[name][0].name
    with pytest.raises(FlodlError, match=rf"\b{method} needs '{first}'"):
        CALLS[name]()()


@pytest.mark.parametrize("wrong", [object(), 3, None, "x y", [3], 1.5, linear(), torch.zeros(2), {3: 3}, len])
@pytest.mark.parametrize(
    ("name", "position"),
    [
        (name, position)
        for name, all_of in PARAMETERS.items()
        for position, one in enumerate(all_of)
        # An example goes to the modules of the model, whose errors have the path of the node.
        if one.kind is not one.VAR_KEYWORD and one.name not in ("inputs", "example")
    ],
)
def test_a_value_of_a_wrong_type_never_ends_in_an_error_of_python(
    name, position, wrong, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    call = CALLS[name]()
    one = PARAMETERS[name][position]
    given = [*RIGHT.get(name.rpartition(".")[2], ())]
    named = {}
    if one.kind is one.KEYWORD_ONLY:
        named[one.name] = wrong
    else:
        given[position:] = [wrong, *given[position + 1 :]]
    with contextlib.suppress(FlodlError):
        call(*given, **named)


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        (lambda: forked().merge("cat", axis=1), "merge has no argument 'axis'. Did you mean 'dim'?"),
        (
            lambda: FlowBuilder().gate(flodl.SoftmaxRouter(4, 2), [linear(), linear()], topk=1),
            "gate has no argument 'topk'. Did you mean 'top_k'?",
        ),
        (
            lambda: FlowBuilder(linear()).also_with(linear()),
            "also_with needs 'main'. Write also_with(skip, main)",
        ),
        (lambda: FlowBuilder().loop_body(linear(), nn.ReLU()), "loop_body got Linear, ReLU by position, and"),
        (lambda: loop().for_n(times=3), "for_n has no argument 'times'. Did you mean 'n'?"),
        (
            lambda: Trend([1.0, 1.0]).stalled(patience=2),
            "stalled has no argument 'patience'. Write n=….",
        ),
        (lambda: graph().collect("enc", reduction="sum"), "Did you mean 'reduce'?"),
        (lambda: flodl.SoftmaxRouter(4, num_experts=2), "Did you mean 'num_choices'?"),
        (lambda: graph().unfreeze("enc"), "a graph has no method 'unfreeze'. Write model.thaw('enc')."),
    ],
)
def test_the_names_of_other_libraries_are_errors_with_the_right_ones(call, advice):
    with pytest.raises(FlodlError, match=re.escape(advice)):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: FlowBuilder().map(linear(), batched="no"), "map got batched='no'. Pass True or False."),
        (lambda: loop().while_cond(linear(), 3, masked=1), "while_cond got masked=1. Pass True or False."),
        (lambda: graph().freeze("enc", eval_mode="no"), "freeze got eval_mode='no'. Pass True or False."),
        (lambda: graph().train("no"), "train('no'): the mode is True for training"),
        (lambda: graph().target("en"), "there is no node 'en'. Did you mean 'enc'?"),
        (lambda: graph().timing_trend(["enc"]), "the name of a time is a list."),
    ],
)
def test_a_value_of_a_wrong_type_is_an_error_with_what_to_pass(call, message):
    with pytest.raises(FlodlError, match=re.escape(message)):
        call()


def test_freeze_as_a_block_is_an_error_that_names_frozen():
    model = graph()
    with pytest.raises(FlodlError, match=r"Write 'with model\.frozen\('enc'\):'"), model.freeze("enc"):
        pass


def test_an_assignment_to_a_property_is_an_error():
    model = graph()
    with pytest.raises(FlodlError, match=r"model\.label was assigned, but it is read-only\. Name it while"):
        model.label = "x"
    with pytest.raises(AttributeError, match=r"model\.tags was assigned, but it is read-only\. The tags"):
        model.tags = ()
    model.keeps_tags = False
    assert (model.label, model.keeps_tags) == (None, False)
