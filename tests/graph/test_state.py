"""Carried state is reset, detached, moved, copied and pickled, wherever the graph is."""

import copy
import pickle

import pytest
import torch
from torch import nn

from flodl import FlowBuilder, SoftmaxRouter, TrainStep
from flodl.core import StateError

from .nodes import Counter, Double, Remember, Shift, Triple

X = torch.ones(2, 3)


def carrying():
    """A graph that adds its previous output, with a weight so that there is autograd history."""
    return FlowBuilder(Remember()).using("memory").through(Shift(3, 1.0)).tag("memory").build()


def keep(state):
    """A condition, router or selector that runs a stateful module before it decides."""

    class Decide(nn.Module):
        def __init__(self, answer) -> None:
            super().__init__()
            self.state, self.answer = state, answer

        def forward(self, x):
            self.state(x)
            return self.answer(x)

    return Decide


PLACES = {
    "alone": lambda inner: FlowBuilder(inner),
    "nested": lambda inner: FlowBuilder(FlowBuilder(inner).label("deep").build()),
    "in a module": lambda inner: FlowBuilder(nn.Sequential(Double(), inner)),
    "branch of split": lambda inner: FlowBuilder().split([inner, Double()]).merge("add"),
    "fork": lambda inner: FlowBuilder().fork(inner).tag("side"),
    "loop body": lambda inner: FlowBuilder().loop_body(inner).for_n(1),
    "condition": lambda inner: FlowBuilder().loop_body(Double()).while_cond(keep(inner)(lambda x: False), 1),
    "expert": lambda inner: FlowBuilder().gate(SoftmaxRouter(3, 2), [Double(), inner]),
    "router": lambda inner: FlowBuilder().gate(keep(inner)(lambda x: torch.ones(2, 2)), [Double(), Triple()]),
    "branch": lambda inner: FlowBuilder().switch(lambda x: 1, [Double(), inner]),
    "selector": lambda inner: FlowBuilder().switch(keep(inner)(lambda x: 0), [Double(), Triple()]),
    "map body": lambda inner: FlowBuilder().map(inner, batched=True).each(),
}


@pytest.fixture(params=PLACES.values(), ids=PLACES.keys())
def place(request):
    return request.param


def test_resetting_reaches_carried_values_everywhere(place):
    inner = carrying()
    model = place(inner).build()
    assert model.has_state
    output, memory = model(X), inner.tagged("memory")
    model(X)
    assert not torch.equal(inner.tagged("memory"), memory)
    model.reset_state()
    assert torch.equal(model(X), output)
    assert torch.equal(inner.tagged("memory"), memory)


def test_detaching_reaches_carried_values_everywhere_and_keeps_them(place):
    inner = carrying()
    model = place(inner).build()
    model(X)
    kept = inner.tagged("memory").clone()
    assert inner.tagged("memory").requires_grad
    model.detach_state()
    assert not inner.tagged("memory").requires_grad
    assert not inner._memory.carried[0].requires_grad
    assert torch.equal(inner._memory.carried[0], kept)


def test_modules_with_reset_and_detach_methods_are_called_everywhere(place):
    counter = Counter()
    model = place(counter).build()
    model.reset_state()
    model.detach_state()
    model.end_step()
    assert counter.calls == ["reset_state", "detach_state", "detach_state"]


def test_a_submodule_with_the_name_of_such_a_method_is_not_called():
    node = nn.Sequential(nn.Identity())
    node.reset_state, node.detach_state = nn.Linear(2, 2), nn.Linear(2, 2)
    model = FlowBuilder(node).build()
    model.reset_state()
    model.detach_state()


def test_reset_and_detach_take_a_path():
    left = FlowBuilder(Remember()).using("memory").tag("memory").label("left").build()
    right = FlowBuilder(Remember()).using("memory").tag("memory").label("right").build()
    model = FlowBuilder().split([left, right]).merge("add").build()
    model(X), model(X)
    model.reset_state("left")
    model(X)
    assert model.tagged("left.memory")[0, 0] == 1
    assert model.tagged("right.memory")[0, 0] == 3


def test_a_graph_in_a_loop_carries_state_from_iteration_to_iteration():
    inner = FlowBuilder(Remember()).using("memory").tag("memory").build()
    model = FlowBuilder().loop_body(inner).for_n(3).build()
    assert model(X)[0, 0] == 4
    model.reset_state()
    assert model(X)[0, 0] == 4


def test_carried_values_move_with_the_graph(place):
    inner = carrying()
    model = place(inner).build()
    model(X)
    model.double()
    assert inner._memory.carried[0].dtype == torch.float64
    model.to("meta")
    assert inner._memory.carried[0].is_meta
    assert inner.tagged("memory") is None


def test_a_moved_graph_continues_from_its_state():
    single, twice = carrying(), carrying()
    twice(X)
    twice.double()
    single(X)
    torch.testing.assert_close(twice(X.double()), single(X).double())


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_after_a_forward_continues_independently(clone):
    model = carrying()
    model(X)
    twin = clone(model)
    assert torch.equal(twin(X), model(X))
    model.reset_state()
    assert torch.equal(twin(X), twin.tagged("memory"))
    assert not torch.equal(twin(X), model(X))
    assert twin.has_state


def test_a_copy_has_the_carried_value_without_its_history():
    model = carrying()
    model(X)
    assert not copy.deepcopy(model)._memory.carried[0].requires_grad


def test_state_is_not_part_of_the_state_dict():
    model = carrying()
    before = list(model.state_dict())
    model(X)
    assert list(model.state_dict()) == before == ["memory.offset"]


def test_nested_values_can_be_carried():
    def count(x, memory=None):
        seen = 0 if memory is None else memory["seen"] + 1
        return {"value": x, "seen": seen}

    model = FlowBuilder(count).using("memory").tag("memory").through(lambda d: d["value"] + d["seen"]).build()
    assert [model(X)[0, 0].item() for _ in range(3)] == [1.0, 2.0, 3.0]
    model.detach_state()
    model.double()
    assert model(X)[0, 0].item() == 4.0


def test_state_is_carried_even_if_tags_are_not_kept():
    model = carrying()
    model.keeps_tags = False
    first, second = model(X), model(X)
    assert not torch.equal(first, second)
    assert model._memory.values is None


def trained_twice(model, after, *, retain_graph=False):
    for _ in range(2):
        loss = model(X).sum() + model(X).sum()
        try:
            loss.backward(retain_graph=retain_graph)
        except RuntimeError as error:
            return str(error)
        after()
    return ""


def test_state_whose_history_a_backward_has_used_is_noted_once_before_the_next_one_fails(capsys):
    model = FlowBuilder(nn.Linear(3, 3)).also(carrying()).through(torch.tanh).build()
    assert "a second time" in trained_twice(model, lambda: None)
    model(X)
    shown = capsys.readouterr().err
    assert shown.count("the carried value 'memory' has the autograd history of a call whose backward") == 1
    assert "Call detach_state() after each backward, or end_step()" in shown


@pytest.mark.parametrize("method", ["detach_state", "reset_state", "end_step"])
def test_state_that_is_detached_or_reset_after_a_backward_is_not_noted(method, capsys):
    model = FlowBuilder(nn.Linear(3, 3)).also(carrying()).through(torch.tanh).build()
    assert trained_twice(model, getattr(model, method)) == ""
    assert trained_twice(copy.deepcopy(model), lambda: None) != ""
    assert capsys.readouterr().err.count("note:") == 1  # about the copy


def test_state_without_a_backward_is_not_noted(capsys):
    model = carrying()
    for _ in range(3):
        model(X)
    assert capsys.readouterr().err == ""


class Recurrent(nn.Module):
    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x, *, hidden):
        return self.layer(x, hidden)


def recurrent(kind: type[nn.RNNBase], *, batch_first: bool = True):
    """A graph that carries the hidden state of a layer, which is [layers, batch, size]."""
    return (
        FlowBuilder(Recurrent(kind(4, 8, batch_first=batch_first)))
        .using(hidden="h")
        .tag("pair")
        .through(lambda pair: pair[1])
        .tag("h")
        .through(lambda h, *, pair: pair[0])
        .using("pair")
        .build()
    )


@pytest.mark.parametrize("is_nested", [False, True], ids=["alone", "nested"])
@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM, nn.RNN])
def test_hidden_state_of_another_batch_size_is_an_error_that_names_reset_state(kind, is_nested):
    model = recurrent(kind)
    if is_nested:
        model = FlowBuilder(model).build()
    model(torch.ones(7, 5, 4))
    with pytest.raises(StateError) as raised:
        model(torch.ones(6, 5, 4))
    message = str(raised.value)
    assert message.startswith("at 'graph_1.pair': " if is_nested else "at 'pair': ")
    assert "the carried value 'h' comes from a batch of 7, this call has 6 (Expected hidden" in message
    assert message.endswith("Call reset_state() where a sequence ends, or keep the batch size.")
    assert isinstance(raised.value.__cause__, RuntimeError)
    model.reset_state()
    assert model(torch.ones(6, 5, 4)).shape == (6, 5, 8)


def test_hidden_state_of_another_batch_size_is_explained_if_time_comes_first():
    model = recurrent(nn.GRU, batch_first=False)
    model(torch.ones(5, 7, 4))
    with pytest.raises(StateError, match=r"'h' has shape \[1, 7, 8\].* Call reset_state\(\)"):
        model(torch.ones(5, 6, 4))


def test_hidden_state_of_another_batch_size_is_explained_in_a_train_step():
    model = recurrent(nn.GRU)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = TrainStep(model, optimizer, lambda model, x: model(x).mean(), tier="eager")
    step(torch.ones(7, 5, 4))
    with pytest.raises(StateError, match=r"comes from a batch of 7, this call has 6"):
        step(torch.ones(6, 5, 4))


def test_other_errors_of_a_graph_with_hidden_state_are_unchanged():
    model = recurrent(nn.GRU)
    model(torch.ones(7, 5, 4))
    with pytest.raises(RuntimeError, match=r"must be equal to input_size"):
        model(torch.ones(6, 5, 3))
