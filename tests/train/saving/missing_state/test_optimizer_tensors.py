"""Tensors of an optimizer that no save contains are reported at the first save."""

import pytest
import torch

WORDS = "and no save contains them"


class Own(torch.optim.Optimizer):
    """An optimizer with tensors of its own; subclasses use them."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})
        self.buffers, self.calls = {}, 0

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for each in group["params"]:
                each.add_(self.direction(each), alpha=-group["lr"])


class InDict(Own):
    def direction(self, each):
        return self.buffers.setdefault(each, torch.zeros_like(each)).mul_(0.9).add_(each.grad)


class InList(Own):
    def __init__(self, parameters):
        super().__init__(parameters)
        self.buffers = [torch.zeros_like(each) for group in self.param_groups for each in group["params"]]

    def direction(self, each):
        of = {id(one): buffer for one, buffer in zip(self.param_groups[0]["params"], self.buffers)}
        return of[id(each)].mul_(0.9).add_(each.grad)


class InAttribute(Own):
    def direction(self, each):
        self.buffers = getattr(self, "mean", torch.zeros(())) * 0.9 + each.grad.mean()
        self.mean = self.buffers
        return each.grad + self.buffers


class Remembering(Own):
    """Keeps the last gradients and their norm, which the next update computes again."""

    def direction(self, each):
        self.buffers[each] = each.grad.clone()
        self.norm = each.grad.norm()
        return self.buffers[each] / self.norm.clamp(min=1)


class InState(Own):
    def direction(self, each):
        self.buffers[each] = self.state[each].setdefault("buffer", torch.zeros_like(each))
        return self.buffers[each].mul_(0.9).add_(each.grad)


@pytest.mark.parametrize("kind", [InDict, InList, InAttribute])
def test_tensors_that_the_next_update_needs_are_reported_once(make, data, tmp_path, capsys, kind):
    make(optimizer=kind, checkpoint_dir=tmp_path).fit(data, epochs=2, batch_size=5)
    told = capsys.readouterr().err
    assert f"the optimizer {kind.__name__} keeps tensors in" in told
    assert told.count(WORDS) == 1


@pytest.mark.parametrize("kind", [Remembering, InState, torch.optim.Adam])
def test_tensors_that_are_saved_or_computed_again_are_not_reported(make, data, tmp_path, capsys, kind):
    make(optimizer=kind, checkpoint_dir=tmp_path).fit(data, epochs=2, batch_size=5)
    assert WORDS not in capsys.readouterr().err


def test_the_search_changes_no_result(make, data, tmp_path):
    def losses(**settings):
        torch.manual_seed(0)
        return make(optimizer=InDict, seed=0, **settings).fit(data, epochs=2, batch_size=5).history

    assert losses(checkpoint_dir=tmp_path) == losses()
