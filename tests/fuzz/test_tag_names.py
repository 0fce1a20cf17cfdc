"""Random tags and labels: the module is found under its name, or the name is rejected where it is given."""

import copy
import keyword
import string

import torch
from torch import fx, nn

from flodl import FlowBuilder, Graph
from flodl.core import TagError

X = torch.ones(1, 2)
TAKEN = sorted({*dir(nn.Module()), *dir(Graph), *dir(fx.GraphModule({}, fx.Graph())), *keyword.kwlist})


def test_a_name_is_either_rejected_or_addresses_its_module(fuzz):
    def check(rng):
        letters = string.ascii_letters + string.digits + "_-. é"
        name = rng.choice([rng.choice(TAKEN), "".join(rng.choices(letters, k=rng.randint(0, 6)))])
        module = nn.Linear(2, 2)
        try:
            if rng.random() < 0.5:
                model = FlowBuilder(module).tag(name).through(nn.Linear(2, 2)).build()
            else:
                module = FlowBuilder(module).label(name).build()
                model = FlowBuilder(module).through(nn.Linear(2, 2)).build()
        except TagError:
            return
        assert name not in TAKEN
        assert model.get_submodule(name) is module
        assert getattr(model, name) is module
        twin = copy.deepcopy(model)
        assert torch.equal(twin(X), model(X))
        model.freeze(name)
        assert model.is_frozen(name)

    fuzz(check)
