"""Small models whose results are known numbers."""

import pytest
import torch
from torch import Tensor, nn

from flodl import FixedSelector, FlowBuilder, PathError, ThresholdHalt, Trend
from flodl.core import CheckpointError, InputError, ShapeError, TagError
from flodl.optim import CosineScheduler, CyclicLR, OneCycleLR, PlateauScheduler, WarmupScheduler

from .nodes import Blend, Double, Equal, Remember, Shift, Total, Triple, identity_linear

X = torch.tensor([[1.0, 2.0]])


def test_an_identity_and_also_an_identity_with_bias_give_2x_plus_1():
    model = FlowBuilder(identity_linear(2)).also(identity_linear(2, bias=1.0)).build()
    assert torch.equal(model(X), 2 * X + 1)


def test_the_mean_of_two_identities_is_the_identity():
    model = FlowBuilder().split([identity_linear(2), identity_linear(2)]).merge("mean").build()
    assert torch.equal(model(X), X)


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (lambda loop: loop.for_n(3), [8.0, 16.0]),
        (lambda loop: loop.while_cond(ThresholdHalt(10.0), 20), [8.0, 16.0]),
        (lambda loop: loop.until_cond(ThresholdHalt(10.0), 20), [8.0, 16.0]),
        (lambda loop: loop.while_cond(ThresholdHalt(0.5), 20), [1.0, 2.0]),
        (lambda loop: loop.until_cond(ThresholdHalt(0.5), 20), [2.0, 4.0]),
    ],
)
def test_a_doubling_loop_gives_known_numbers(end, expected):
    model = end(FlowBuilder().loop_body(Double())).build()
    assert model(X).tolist() == [expected]


def test_a_threshold_decides_for_the_whole_batch():
    model = FlowBuilder().loop_body(Double()).until_cond(ThresholdHalt(10.0), 20).build()
    assert model(torch.tensor([[1.0, 2.0], [8.0, 8.0]])).tolist() == [[2.0, 4.0], [16.0, 16.0]]


def test_a_bias_in_a_loop_of_three_iterations_gets_a_gradient_of_three():
    body = Shift(2)
    FlowBuilder().loop_body(body).for_n(3).build()(X).sum().backward()
    assert body.offset.grad.tolist() == [3.0, 3.0]


def test_a_loop_that_adds_a_reference_three_times_gives_4x():
    model = FlowBuilder().tag("ctx").loop_body(Blend()).for_n(3).using("ctx").build()
    assert torch.equal(model(X), 4 * X)


def test_a_carried_sum_grows_until_it_is_reset_and_detaching_keeps_it():
    model = FlowBuilder(Remember()).using("memory").tag("memory").build()
    assert model.has_state
    assert [model(X)[0, 0].item() for _ in range(3)] == [1.0, 2.0, 3.0]
    model.detach_state()
    assert model(X)[0, 0].item() == 4.0
    model.reset_state()
    assert model(X)[0, 0].item() == 1.0


def test_has_state_depends_on_the_declaration_not_on_calls():
    model = FlowBuilder(Remember()).using("memory").tag("memory").build()
    assert model.has_state
    model(X)
    model.reset_state()
    assert model.has_state
    assert not FlowBuilder(Double()).build().has_state


def test_equal_weights_over_a_doubler_and_a_tripler_give_two_and_a_half():
    model = FlowBuilder().gate(Equal(), [Double(), Triple()]).build()
    assert model(torch.tensor([[2.0, 4.0]])).tolist() == [[5.0, 10.0]]


def test_a_fixed_selector_chooses_its_branch():
    model = FlowBuilder().switch(FixedSelector(1), [Double(), Triple()]).build()
    assert torch.equal(model(X), 3 * X)


def test_two_further_inputs_are_added_and_leaving_them_out_raises():
    model = FlowBuilder().input("a", "b").through(Total()).using("a", "b").build()
    one, ten, hundred = (torch.tensor([[value]]) for value in (1.0, 10.0, 100.0))
    assert model(one, ten, hundred).item() == model(one, b=hundred, a=ten).item() == 111.0
    with pytest.raises(InputError, match="takes 3 inputs, got 1 by position"):
        model(one)


def test_map_each_doubles_every_row():
    rows = torch.arange(6.0).reshape(3, 2)
    assert torch.equal(FlowBuilder().map(Double()).each().build()(rows), 2 * rows)


def test_map_slices_keeps_the_batch_and_maps_chunks_of_the_features():
    seen = []

    def note(chunk: Tensor) -> Tensor:
        seen.append(tuple(chunk.shape))
        return chunk

    stream = torch.arange(8.0).reshape(2, 4)
    assert torch.equal(FlowBuilder().map(note).slices(2).build()(stream), stream)
    assert seen == [(1, 2)] * 4
    with pytest.raises(ShapeError, match="cannot be split into 3 equal slices"):
        FlowBuilder().map(note).slices(3).build()(stream)


def test_traces_have_one_entry_per_iteration_and_restart_with_each_call():
    def body(x: Tensor, emit) -> Tensor:
        emit("twice", 2 * x)
        emit("four_times", 4 * x)
        return 2 * x

    model = FlowBuilder().loop_body(body).for_n(3).build()
    for _ in range(2):
        model(X)
        assert [value.tolist() for value in model.traces("twice")] == [
            [[2.0, 4.0]],
            [[4.0, 8.0]],
            [[8.0, 16.0]],
        ]
        assert len(model.traces("four_times")) == 3


def test_labels_follow_their_rules():
    def part(label: str, width: int = 2):
        return FlowBuilder(nn.Linear(2, width)).through(nn.Linear(width, 2)).label(label).build()

    with pytest.raises(TagError, match="duplicate child label 'twin'"):
        FlowBuilder(part("twin")).through(part("twin")).build()
    with pytest.raises(TagError, match=r"'a.b' has a dot"):
        FlowBuilder().label("a.b")
    with pytest.raises(TagError, match="'enc' of a subgraph is also a tag on another node"):
        FlowBuilder(nn.Linear(2, 2)).tag("enc").through(part("enc")).tag("other").build()
    FlowBuilder(part("enc")).tag("enc").build()
    assert part("one").structural_hash == part("two").structural_hash
    assert part("one").structural_hash != part("one", width=3).structural_hash


def test_freezing_a_part_leaves_the_whole_unfrozen():
    read = FlowBuilder(nn.Linear(2, 2)).label("read").build()
    letter = FlowBuilder(read).through(nn.Linear(2, 2)).label("letter").build()
    model = FlowBuilder(letter).build()
    model.freeze("letter.read")
    assert model.is_frozen("letter.read")
    assert not model.is_frozen("letter")


@pytest.mark.parametrize("call", ["freeze", "thaw", "is_frozen", "parameters_at", "set_training"])
def test_an_unknown_path_raises_everywhere(call):
    model = FlowBuilder(nn.Linear(2, 2)).tag("head").build()
    arguments = ("nowhere", True) if call == "set_training" else ("nowhere",)
    with pytest.raises(PathError, match="'nowhere' is neither a subgraph nor a tag"):
        getattr(model, call)(*arguments)


def test_a_flush_of_the_parent_closes_the_metrics_of_the_child():
    model = FlowBuilder(FlowBuilder(Double()).label("enc").build()).build()
    model.record("enc.loss", 0.5)
    model.record("enc.loss", 0.3)
    model.flush()
    assert model.trend("enc.loss").values == pytest.approx([0.4])
    model.flush()
    assert len(model.trend("enc.loss").values) == 1


def test_a_flush_of_named_metrics_leaves_the_others_pending():
    model = FlowBuilder(FlowBuilder(Double()).label("enc").build()).build()
    model.record("loss", 1.0)
    model.record("enc.loss", 2.0)
    model.flush("loss")
    assert model.trend("loss").values == [1.0]
    assert model.trend("enc.loss").values == []
    model.flush()
    assert model.trend("enc.loss").values == [2.0]


def test_trends_answer_with_known_slopes_and_variances():
    assert Trend([10, 8, 6, 4, 2]).slope() == pytest.approx(-2.0)
    rising_then_falling = Trend([1, 5, 10, 8, 6])
    assert rising_then_falling.slope(0) > 0 > rising_then_falling.slope(3)
    flat = Trend([5, 5.01, 4.99, 5, 5.01])
    assert flat.converged(5, 1e-3)
    assert not flat.converged(5, 1e-5)


def test_schedules_give_known_rates():
    plateau = PlateauScheduler(0.1, patience=3, factor=0.5)
    seen = []
    for metric in (1.0, 1.1, 1.2, 1.3):
        plateau.observe(metric)
        seen.append(plateau.lr())
    assert seen == pytest.approx([0.1, 0.1, 0.1, 0.05])
    one_cycle = OneCycleLR(0.01, 100)
    assert [one_cycle.lr(step) for step in (0, 30, 100)] == pytest.approx([0.0004, 0.01, 0.0004])
    cyclic = CyclicLR(0.001, 0.01, 10)
    assert [cyclic.lr(step) for step in (0, 5, 10, 15, 20)] == pytest.approx(
        [0.001, 0.0055, 0.01, 0.0055, 0.001]
    )
    assert WarmupScheduler(CosineScheduler(0.1, 0.001, 90), 0.1, 10).lr(9) == pytest.approx(0.1)


def test_a_checkpoint_of_a_different_architecture_is_rejected_and_has_a_different_hash(
    tmp_path,
):
    small = FlowBuilder(nn.Linear(2, 2)).build()
    small.save_checkpoint(tmp_path / "small.fdl")
    with pytest.raises(CheckpointError, match=r"lacks 'linear_2.weight'"):
        FlowBuilder(nn.Linear(2, 2)).through(nn.Linear(2, 2)).build().load_checkpoint(tmp_path / "small.fdl")
    assert FlowBuilder(nn.Linear(2, 2)).build().load_checkpoint(tmp_path / "small.fdl").same_function
    changed = FlowBuilder(nn.Linear(2, 2)).through(nn.ReLU()).build()
    assert changed.load_checkpoint(tmp_path / "small.fdl").same_function is False


def test_a_model_in_double_precision_loads_a_file_in_single_precision(tmp_path):
    single = FlowBuilder(nn.Linear(2, 2)).build()
    single.save_checkpoint(tmp_path / "model.fdl")
    twice = FlowBuilder(nn.Linear(2, 2)).build().double()
    twice.load_checkpoint(tmp_path / "model.fdl")
    assert twice.linear_1.weight.dtype == torch.float64
    assert torch.equal(twice.linear_1.weight, single.linear_1.weight.double())
