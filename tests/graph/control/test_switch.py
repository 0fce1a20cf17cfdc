"""Switches: one branch for the batch, or one for each sample."""

import pytest
import torch
from torch import Tensor, nn

from flodl import ArgmaxSelector, FixedSelector, FlowBuilder
from flodl.core import RouteError

from ..nodes import Broken, Double, NoHostReads, Triple

ROWS = torch.arange(1.0, 9.0).reshape(4, 2)
BRANCHES = [Double(), Triple(), nn.Identity()]
FACTORS = torch.tensor([2.0, 3.0, 1.0])


def switch(choice, *, masked: bool = False, branches=BRANCHES):
    return FlowBuilder().switch(lambda x: choice, branches, masked=masked).tag("which").build()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    "choice",
    [
        1,
        True,
        torch.tensor(1),
        torch.tensor([1]),
        torch.tensor([[1.0]]),
        torch.tensor(True),
    ],
)
def test_one_index_sends_the_whole_batch_through_one_branch(choice, masked):
    assert torch.equal(switch(choice, masked=masked)(ROWS), 3 * ROWS)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("index", [[0, 1, 2, 1], [2, 2, 2, 2], [1, 0, 0, 1], [2, 1, 0, 0]])
@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_one_index_per_sample_sends_each_through_its_branch_and_keeps_the_order(index, shape, masked):
    choice = torch.tensor(index).reshape(shape)
    assert torch.equal(switch(choice, masked=masked)(ROWS), FACTORS[index, None] * ROWS)


def test_only_the_chosen_branch_runs_and_only_on_its_samples():
    seen = []

    def note(name: str):
        return lambda x: (seen.append((name, len(x))), x)[1]

    model = switch(torch.tensor([0, 1, 0, 0]), branches=[note("a"), note("b"), note("c")])
    model(ROWS)
    assert seen == [("a", 3), ("b", 1)]
    seen.clear()
    switch(2, branches=[note("a"), note("b"), note("c")])(ROWS)
    assert seen == [("c", 4)]


def test_branches_may_change_the_shape():
    model = switch(torch.tensor([0, 1, 1, 0]), branches=[nn.Linear(2, 5), nn.Linear(2, 5)])
    assert model(ROWS).shape == (4, 5)


def test_an_argmax_selector_sends_each_sample_to_its_largest_logit():
    torch.manual_seed(0)
    selector = ArgmaxSelector(2, 3)
    index = selector.linear(ROWS).argmax(-1)
    assert torch.equal(FlowBuilder().switch(selector, BRANCHES).build()(ROWS), FACTORS[index, None] * ROWS)


def test_an_argmax_selector_takes_references():
    selector = ArgmaxSelector(2, 3)
    model = FlowBuilder().input("ctx").switch(selector, BRANCHES).using("ctx").build()
    context = torch.randn(4, 2)
    index = selector(ROWS + context)
    assert torch.equal(model(ROWS, ctx=context), FACTORS[index, None] * ROWS)


@pytest.mark.parametrize("masked", [False, True])
def test_each_branch_receives_gradients_only_from_its_samples(masked):
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    stream = ROWS.clone().requires_grad_()
    model = switch(torch.tensor([0, 1, 1, 0]), masked=masked, branches=[first, second])
    model(stream).sum().backward()
    assert first.bias.grad.tolist() == [2.0, 2.0]
    torch.testing.assert_close(first.weight.grad[0], ROWS[0] + ROWS[3])
    torch.testing.assert_close(stream.grad[1], second.weight.sum(0))


def test_a_selector_that_returns_an_index_gets_no_gradient():
    model = FlowBuilder().switch(ArgmaxSelector(2, 3), BRANCHES).build()
    assert not model(ROWS).requires_grad


@pytest.mark.parametrize("gradient", ["straight_through", "gumbel"])
def test_a_selector_that_learns_still_chooses_one_branch(gradient):
    torch.manual_seed(0)
    selector = ArgmaxSelector(2, 3, gradient=gradient)
    model = FlowBuilder().switch(selector, BRANCHES).build()
    output = model(ROWS)
    factors = (output / ROWS).detach()
    assert all(torch.isclose(row[0], FACTORS).any() and torch.isclose(row[0], row[1]) for row in factors)
    output.square().sum().backward()
    assert selector.linear.weight.grad.abs().sum() > 0


def test_a_gumbel_selector_samples_in_training_and_takes_the_argmax_in_evaluation():
    torch.manual_seed(0)
    selector = ArgmaxSelector(2, 3, gradient="gumbel")
    nn.init.zeros_(selector.linear.weight)
    model = FlowBuilder().switch(selector, BRANCHES).build()
    rows = torch.ones(200, 2)
    assert len(model(rows)[:, 0].round().unique()) > 1
    assert len(model.eval()(rows)[:, 0].round().unique()) == 1


def test_an_empty_batch_passes_through_the_first_branch():
    model = FlowBuilder().switch(ArgmaxSelector(2, 2), [nn.Linear(2, 5), nn.Linear(2, 5)]).build()
    assert model(torch.zeros(0, 2)).shape == (0, 5)


def test_a_stream_of_several_tensors_can_be_switched_as_a_whole():
    pair = (
        FlowBuilder(lambda x: (x, x)).switch(FixedSelector(1), [lambda p: p[0], lambda p: p[1] * 2]).build()
    )
    assert torch.equal(pair(ROWS), 2 * ROWS)


@pytest.mark.parametrize("choice", [torch.tensor([0, 3, 1, 1]), torch.tensor([0, -1, 1, 1])])
def test_a_masked_switch_returns_nan_for_an_index_out_of_range(choice):
    output = switch(choice, masked=True)(ROWS)
    assert output[1].isnan().all()
    assert not output[[0, 2, 3]].isnan().any()
    whole = switch(choice, masked=True)(ROWS.long())
    assert (whole[1] == torch.iinfo(torch.int64).min).all()


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (3, "at 'which': the selector returned branch 3 of 3. Return an index from 0 to 2."),
        (-1, "at 'which': the selector returned branch -1 of 3. Return an index from 0 to 2."),
        (torch.tensor(5), "at 'which': the selector returned branch 5 of 3. Return an index from 0 to 2."),
        (
            torch.tensor([0, 1, 7, 0]),
            "at 'which': the selector returned branch 7 of 3. Return an index from 0 to 2.",
        ),
        (
            torch.tensor(0.5),
            "at 'which.selector': the selector returned 0.5. Return an integer, for example with argmax.",
        ),
        (
            torch.tensor(float("nan")),
            "at 'which.selector': the selector returned nan. Return an integer, for example with argmax.",
        ),
        (
            torch.tensor(float("inf")),
            "at 'which.selector': the selector returned inf. Return an integer, for example with argmax.",
        ),
        (
            torch.tensor([0.0, 1.5, 0, 0]),
            "at 'which.selector': the selector returned 1.5. Return an integer, for example with argmax.",
        ),
        (
            torch.tensor([1, 2]),
            "at 'which.selector': the selector returned shape (2,) for a batch of 4. "
            "Return one index, or one index per sample.",
        ),
        (
            torch.tensor(1j),
            "at 'which.selector': the selector returned torch.complex64. Return an integer index.",
        ),
        (
            "left",
            "at 'which.selector': the selector returned a str. Return an index: an integer, or an integer "
            "tensor with one value or one value per sample.",
        ),
    ],
)
def test_an_invalid_index_is_rejected(choice, message):
    with pytest.raises(RouteError) as caught:
        switch(choice)(ROWS)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("branches", "words"),
    [
        (
            [Double(), nn.Linear(2, 3), Double()],
            "at 'which.branch_1': the branch returned (ROWS, 3) torch.float32",
        ),
        (
            [Double(), lambda x: x.double(), Double()],
            "at 'which.branch_1': the branch returned (ROWS, 2) torch.float64",
        ),
        ([Double(), lambda x: [x], Double()], "at 'which.branch_1': the branch returned a list"),
    ],
)
@pytest.mark.parametrize("masked", [False, True])
def test_mixed_branches_must_return_the_same_shape(branches, words, masked):
    with pytest.raises(RouteError) as caught:
        switch(torch.tensor([0, 1, 1, 0]), branches=branches, masked=masked)(ROWS)
    assert words.replace("ROWS", "4" if masked else "2") in str(caught.value)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("branch", [lambda x: x[:1], lambda x: x.repeat(2, 1), lambda x: x.sum()])
def test_mixed_branches_return_one_row_per_sample(branch, masked):
    with pytest.raises(RouteError, match=r"at 'which.branch_[012]': the branch returned"):
        switch(torch.tensor([0, 1, 1, 0]), branches=[Double(), branch, Double()], masked=masked)(ROWS)


@pytest.mark.parametrize("gradient", ["straight_through", "gumbel"])
def test_branches_of_a_learning_selector_return_one_row_per_sample(gradient):
    branches = [lambda x: x[:1], lambda x: 2 * x[:1]]
    model = FlowBuilder().switch(ArgmaxSelector(2, 2, gradient=gradient), branches).build()
    with pytest.raises(RouteError, match=r"returned shape \(1, 2\) for 4 samples"):
        model(ROWS)


def test_branches_that_are_masked_for_the_whole_batch_return_one_shape():
    branches = [Double(), lambda x: x[:1]]
    model = FlowBuilder().switch(lambda x: torch.tensor(0), branches, masked=True).build()
    with pytest.raises(RouteError, match="Mixed branches must return one shape"):
        model(ROWS)


def test_weighted_branches_must_return_the_same_shape():
    selector = ArgmaxSelector(2, 2, gradient="straight_through")
    with pytest.raises(RouteError, match=r"at 'switch_1.branch_1': the branch returned"):
        FlowBuilder().switch(selector, [Double(), nn.Linear(2, 3)]).build()(ROWS)


def test_one_index_per_sample_needs_a_tensor_stream():
    model = FlowBuilder(lambda x: (x, x)).switch(lambda p: torch.tensor([0, 1, 0, 1]), BRANCHES).build()
    with pytest.raises(RouteError, match="one index per sample needs a tensor stream, not a tuple"):
        model(ROWS)


def test_errors_inside_name_the_part():
    for parts, path in (
        ((Broken(), BRANCHES), "selector"),
        ((FixedSelector(1), [Double(), Broken()]), "branch_1"),
    ):
        with pytest.raises(ValueError, match="broken") as caught:
            FlowBuilder().switch(*parts).build()(ROWS)
        assert caught.value.__notes__ == [f"flodl: at 'switch_1.{path}', Broken(), given {tuple(ROWS.shape)}"]


def test_selectors_check_their_arguments():
    for index in (-1, "1", 1.0):
        with pytest.raises(RouteError, match=f"FixedSelector got index {index!r}. Pass an integer; branches"):
            FixedSelector(index)
    with pytest.raises(
        RouteError, match=r"ArgmaxSelector got in_features='8'. Pass the width of the stream."
    ):
        ArgmaxSelector("8", 2)
    with pytest.raises(RouteError, match=r"gradient='soft'. Use None, 'straight_through' or 'gumbel'"):
        ArgmaxSelector(2, 2, gradient="soft")


def test_a_masked_switch_never_reads_a_value_on_the_host():
    def by_size(x: Tensor) -> Tensor:
        return (x.amax(1) > 4).long()

    masked = FlowBuilder().switch(by_size, [Double(), Triple()], masked=True).build()
    with NoHostReads():
        masked(ROWS)


def test_mixed_branches_return_one_dtype():
    with pytest.raises(RouteError, match=r"float64, another branch .*Mixed branches must return one dtype\."):
        switch(torch.tensor([0, 1, 1, 0]), branches=[Double(), lambda x: x.double()])(ROWS)
