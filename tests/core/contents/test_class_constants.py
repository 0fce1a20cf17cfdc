"""Values of a class that methods read, and code behind caches, enums and descriptors, are described."""

import enum
import functools

import pytest
import torch
from torch import nn

from flodl.core.contents import Contents
from flodl.core.contents.class_constants import describe_constants
from flodl.monitor.run_settings.modules import describe_classes
from flodl.monitor.run_settings.step_function import read_in


def make_net(value):
    class Net(nn.Module):
        scale = value
        kind, total, own, only_read_by_a_step = 1, 2, 3, value
        table = {"a": lambda x: x * value}  # noqa: RUF012
        log = []  # noqa: RUF012

        def __init__(self, changes=False):
            super().__init__()
            self.own = 4

        def forward(self, x):
            type(self).total += 1
            self.log.append(1)
            return self.table["a"](x) * self.scale * type(self).kind * self.own

        def times(self, k, x):
            return k * x

        many = functools.partialmethod(times, value)

        @functools.cached_property
        def cached(self):
            return self.scale

    return Net


def describe(value, names=()):
    (found,) = describe_classes(nn.Sequential(make_net(value)()), {}, names).values()
    return found


def test_values_that_methods_read_through_self_are_described_and_states_are_not():
    found = describe(2.0)["self"]
    assert {name: found[name] for name in ("scale", "kind")} == {"scale": 2.0, "kind": 1}
    assert set(found) == {"scale", "kind", "table"}
    assert describe(2.0) == describe(2.0)
    assert describe(3.0)["self"]["table"] != found["table"]


def test_values_that_a_step_function_reads_of_the_model_are_described():
    def step(model, x, y):
        return model.many(x) * model.only_read_by_a_step + model.own

    found = describe(2.0, read_in(step))["self"]
    assert found["only_read_by_a_step"] == 2.0
    assert found["many"]["arguments"] == [2.0]
    assert "own" not in found


def test_reading_a_cached_property_does_not_change_the_description():
    net = make_net(2.0)()
    before = describe_classes(net, {}), Contents().of(net)
    assert net.cached == 2.0
    assert (describe_classes(net, {}), Contents().of(net)) == before


def with_a_member(value):
    E = enum.Enum("E", {"S": value}, module=__name__)
    return lambda x: x * E.S.value


def with_the_whole_enum(value):
    E = enum.Enum("E", {"S": value}, module=__name__)
    return lambda x: x * E["S"].value


def with_a_cache(value):
    @functools.lru_cache
    def cached():
        return value

    return lambda x: x * cached()


def with_a_cached_method(value):
    class Scale:
        @functools.cache  # noqa: B019
        def __call__(self):
            return value

    scale = Scale()
    return lambda x: x * scale()


def with_a_cached_property(value):
    class Scale:
        @functools.cached_property
        def size(self):
            return value

    scale = Scale()
    return lambda x: x * scale.size


def with_a_partial_method(value):
    class Scale:
        def times(self, k, x):
            return k * x

        many = functools.partialmethod(times, value)

    scale = Scale()
    return lambda x: scale.many(x)


def with_functions_in_a_class(value):
    class Scale:
        acts = {"a": lambda x: x * value}  # noqa: RUF012

        def __call__(self, x):
            return self.acts["a"](x)

    scale = Scale()
    return lambda x: scale(x)


def with_a_generic_function(value):
    @functools.singledispatch
    def scaled(x):
        return x

    @scaled.register
    def _(x: torch.Tensor):
        return x * value

    return lambda x: scaled(x)


def with_a_generic_method(value):
    class Scale:
        @functools.singledispatchmethod
        def scaled(self, x):
            return x

        @scaled.register
        def _(self, x: torch.Tensor):
            return x * value

    scale = Scale()
    return lambda x: scale.scaled(x)


@pytest.mark.parametrize(
    "make",
    [
        with_a_member,
        with_the_whole_enum,
        with_a_cache,
        with_a_cached_method,
        with_a_cached_property,
        with_a_partial_method,
        with_functions_in_a_class,
        with_a_generic_function,
        with_a_generic_method,
    ],
)
def test_functions_with_other_values_have_other_descriptions(make):
    one, same, other = (Contents().of(make(value)) for value in (2.0, 2.0, 3.0))
    assert one == same != other


def test_a_member_of_an_enum_is_described_with_its_value():
    kind = enum.Enum("E", {"S": 2.0}, module=__name__)
    assert Contents().of(kind.S) == "E.S = 2.0"
    assert Contents().of(kind)["S"] == 2.0


def test_a_state_of_the_class_is_left_out():
    class Counted:
        number, size = 0, 1

        def __init__(self):
            Counted.number += 1
            type(self).size += 1

        def __call__(self):
            return self.number + self.size

    assert describe_constants(Counted, Contents()) == {}
