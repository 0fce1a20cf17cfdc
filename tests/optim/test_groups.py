import inspect

import pytest
import torch
from torch import nn

from flodl.core import PathError
from flodl.optim import StepDecay, apply, groups


def _model():
    return nn.ModuleDict(
        {
            "encoder": nn.ModuleDict({"scan": nn.Linear(2, 2), "norm": nn.LayerNorm(2)}),
            "head": nn.Linear(2, 2),
        }
    )


def _names(model, group):
    names = {parameter: name for name, parameter in model.named_parameters()}
    return [names[parameter] for parameter in group["params"]]


def test_every_parameter_is_in_exactly_one_group_and_the_rest_comes_first():
    model = _model()
    found = groups(
        model, {"**.bias": {"weight_decay": 0.0}, "encoder.**": {"lr": 1e-4}}, lr=1e-3, weight_decay=0.1
    )
    assert [_names(model, group) for group in found] == [
        ["head.weight"],
        ["encoder.scan.bias", "encoder.norm.bias", "head.bias"],
        ["encoder.scan.weight", "encoder.norm.weight"],
    ]
    options = [{key: value for key, value in group.items() if key != "params"} for group in found]
    assert options == [
        {"lr": 1e-3, "weight_decay": 0.1},
        {"lr": 1e-3, "weight_decay": 0.0},
        {"lr": 1e-4, "weight_decay": 0.1},
    ]


def test_the_first_matching_pattern_wins():
    model = _model()
    found = groups(model, {"encoder.**": {"lr": 1.0}, "**.bias": {"lr": 2.0}})
    assert _names(model, found[2]) == ["head.bias"]


def test_without_a_rest_there_is_no_group_for_it():
    assert len(groups(_model(), {"**": {"lr": 1.0}})) == 1


def test_without_patterns_there_is_one_group_of_all():
    model = _model()
    (only,) = groups(model, {}, lr=0.1)
    assert len(only["params"]) == len(list(model.parameters()))


def test_frozen_parameters_are_kept_so_that_they_can_be_thawed():
    model = _model()
    model["encoder"].requires_grad_(False)
    assert sum(len(group["params"]) for group in groups(model, {"encoder.**": {"lr": 1.0}})) == 6


def test_a_shared_parameter_is_found_by_any_of_its_names():
    model = _model()
    model["head"].weight = model["encoder"]["scan"].weight
    rest, tied = groups(model, {"head.weight": {"lr": 1.0}})
    assert tied["params"][0] is model["encoder"]["scan"].weight
    assert len(rest["params"]) == 4


def test_the_groups_feed_an_optimizer_and_a_schedule_keeps_their_ratio():
    optimizer = torch.optim.AdamW(groups(_model(), {"encoder.**": {"lr": 1e-4}}, lr=1e-3))
    apply(StepDecay(0.5, 10, 0.1), optimizer)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.5, 0.05])


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (
            "encodr.scan.bias",
            r"the pattern 'encodr\.scan\.bias' matches no parameter\. Did you mean 'encoder\.scan",
        ),
        (
            "encoder",
            r"the pattern 'encoder' matches no parameter\. To take everything below it, write 'enc",
        ),
        ("zz", r"the pattern 'zz' matches no parameter\. The parameters here are 'encoder\.scan\.weight', "),
    ],
)
def test_a_pattern_that_matches_nothing_is_rejected_with_the_nearest_names(pattern, message):
    with pytest.raises(PathError, match=message):
        groups(_model(), {pattern: {"lr": 1.0}})


def test_a_pattern_whose_parameters_are_taken_is_rejected():
    message = r"every parameter that 'head\.bias' matches already belongs to '\*\*\.bias'\. The first"
    with pytest.raises(PathError, match=message):
        groups(_model(), {"**.bias": {"lr": 1.0}, "head.bias": {"lr": 2.0}})


@pytest.mark.parametrize("options", [1e-4, {"params": []}])
def test_options_that_are_not_options_are_rejected(options):
    with pytest.raises(
        PathError, match=r"the options for '\*\*' are .* Pass a dictionary of optimizer options"
    ):
        groups(_model(), {"**": options})


@pytest.mark.parametrize(
    ("name", "meant"),
    [("learning_rate", "lr"), ("weight_deacy", "weight_decay"), ("wd", "weight_decay"), ("beta", "betas")],
)
def test_an_option_that_is_nearly_one_of_an_optimizer_is_rejected_with_a_suggestion(name, meant):
    with pytest.raises(PathError, match=rf"'head.\*\*' contain {name!r}, .* Did you mean {meant!r}\?"):
        groups(_model(), {"head.**": {name: 1e-3}}, lr=0.1)
    with pytest.raises(PathError, match=rf"the defaults contain {name!r}"):
        groups(_model(), {"head.**": {"lr": 1e-3}}, **{name: 0.1})


def test_options_of_every_torch_optimizer_and_names_of_your_own_are_accepted():
    for kind in vars(torch.optim).values():
        if (
            isinstance(kind, type)
            and issubclass(kind, torch.optim.Optimizer)
            and kind is not torch.optim.Optimizer
        ):
            parameters = inspect.signature(kind).parameters
            options = dict.fromkeys((name for name in parameters if name not in ("params", "kwargs")), 0.1)
            assert groups(_model(), {"head.**": options})[1].items() >= options.items()
    groups(
        _model(), {"head.**": {"lr_scale": 2.0, "name": "head", "layer": 3, "warmup": 1, "initial_lr": 0.1}}
    )


@pytest.mark.parametrize("model", [None, "model", [torch.ones(1)], torch.nn.Linear(1, 1).parameters()])
def test_groups_of_something_else_than_a_model_names_what_it_got(model):
    with pytest.raises(PathError, match=rf"the model is an? {type(model).__name__}, .*Pass the model itself"):
        groups(model, {"bias": {"lr": 0.1}})


@pytest.mark.parametrize("options", [None, ["bias"], "bias", 3])
def test_options_that_are_not_a_map_are_an_error(options):
    with pytest.raises(PathError, match=r"the options are .*Pass a dictionary of patterns"):
        groups(torch.nn.Linear(1, 1), options)


def test_a_model_without_options_is_an_error_with_an_example():
    with pytest.raises(PathError, match=r"groups needs 'options'. Write groups\(model, "):
        groups(torch.nn.Linear(1, 1), lr=0.1)
