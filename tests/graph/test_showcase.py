"""The showcase: one model with every builder method, built, trained, saved and drawn."""

import ast
import importlib.util
import inspect
from pathlib import Path

import pytest
import torch
from torch.nn.functional import mse_loss

from flodl import FlowBuilder
from flodl.graph.build import LoopBuilder, MapBuilder

EXAMPLE = Path(__file__).parents[2] / "examples" / "showcase.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("showcase", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def model(example):
    torch.manual_seed(0)
    return example.build()


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, 2, generator=generator), torch.randn(2, 8, generator=generator)


def test_it_uses_every_method_of_the_builder():
    called = {node.func.attr for node in ast.walk(ast.parse(EXAMPLE.read_text())) if _is_method_call(node)}
    public = [
        name
        for builder in (FlowBuilder, LoopBuilder, MapBuilder)
        for name, _ in inspect.getmembers(builder, inspect.isfunction)
        if not name.startswith("_")
    ]
    assert set(public) <= called


def _is_method_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)


def test_it_has_many_parameters_with_distinct_names(model):
    assert len(list(model.parameters())) > 44
    assert len(model.state_dict()) == len(
        {id(tensor) for tensor in model.state_dict(keep_vars=True).values()}
    )


def test_the_memory_makes_the_second_call_differ_and_a_reset_restores_the_first(model, batch):
    model.eval()
    first, second = model(*batch), model(*batch)
    assert first.shape == (2, 2)
    assert not torch.equal(first, second)
    model.reset_state()
    assert torch.equal(model(*batch), first)


def test_gradients_reach_every_part_that_ran(model, batch):
    model(batch[0], ctx=batch[1]).square().sum().backward()
    idle = {name for name, parameter in model.named_parameters() if parameter.grad is None}
    # Branch 1 of the switch was not chosen, and nothing downstream reads the side branch.
    assert {name.split(".")[0] for name in idle} == {"switch_1", "spectral"}
    assert (
        sum(parameter.grad.abs().sum() > 0 for parameter in model.parameters() if parameter.grad is not None)
        > 30
    )


def test_three_steps_keep_the_loss_finite_and_a_checkpoint_undoes_a_fourth(model, batch, tmp_path):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step() -> float:
        optimizer.zero_grad()
        loss = mse_loss(model(*batch), torch.ones(2, 2))
        loss.backward()
        optimizer.step()
        model.end_step()
        return loss.item()

    losses = [step() for _ in range(3)]
    assert all(torch.isfinite(torch.tensor(losses)))
    saved = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.save_checkpoint(tmp_path / "showcase.fdl")
    step()
    assert not torch.equal(model.state_dict()["output.weight"], saved["output.weight"])
    report = model.load_checkpoint(tmp_path / "showcase.fdl")
    assert report.is_complete
    assert report.same_function
    assert all(torch.equal(tensor, saved[name]) for name, tensor in model.state_dict().items())


def test_tags_and_traces_can_be_read_by_path(model, batch):
    model(*batch)
    assert model.tagged("output").shape == (2, 2)
    assert model.tagged("spectral").shape == model.tagged("spectrum.waves").shape == (2, 4)
    assert model.tagged("halves").shape == (4, 4)
    assert len(model.traces("settled.halt")) == 7
    assert model.path_kind("refine") == "subgraph"
    assert model.subgraph("deep") is model.switch_1.branch_1


def test_the_heads_can_be_frozen_by_pattern(model):
    model.freeze("final_heads_*")
    assert model.is_frozen("final_heads_0")
    assert not model.is_frozen("output")


def test_it_runs_without_gradients_and_for_any_batch(model):
    model.eval()
    with torch.no_grad():
        assert model(torch.zeros(5, 2), ctx=torch.zeros(5, 8)).shape == (5, 2)


def test_its_picture_shows_tags_and_parts(model, batch):
    text = model.dot()
    assert text.startswith("digraph")
    for word in ("input", "spectral", "refined", "memory", "final_heads_0"):
        assert word in text
    profile = model.profile(*batch)
    assert profile.total_s > 0


def test_two_builds_compute_the_same_function(example, model):
    assert example.build().structural_hash == model.structural_hash
    assert example.build().weights_hash == model.weights_hash


def test_the_training_demo_prints_its_epochs(example, capsys):
    example.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("epoch")] == ["1", "2", "3", "4", "5"]
    assert "improving: True" in lines
