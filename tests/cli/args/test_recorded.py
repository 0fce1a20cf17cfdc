"""`Args.from_dict` accepts what the fields of the dataclass accept, and says what else it was given."""

from dataclasses import asdict, dataclass, field

import pytest

from flodl.cli import Args
from flodl.core import ArgsError


@dataclass
class Optimizer:
    lr: float = 0.1
    decay: float | None = 0.5


@dataclass
class Settings:
    epochs: int = 3
    limit: int | None = 5
    name: str = "a"
    flag: bool = False
    tags: list[str] = field(default_factory=list)
    size: tuple[int, int] = (1, 2)
    weights: dict[str, str] = field(default_factory=dict)
    optimizer: Optimizer = field(default_factory=Optimizer)
    ema: Optimizer | None = field(default_factory=Optimizer)


@dataclass
class Data:
    path: str


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (
            {"epochs": None},
            "epochs is None: the field is not optional. Pass one value of type int, leave it out",
        ),
        ({"flag": None}, "flag is None: the field is not optional"),
        ({"tags": None}, "tags is None: the field is not optional. Pass a list of values of type string"),
        ({"optimizer": {"lr": None}}, "optimizer.lr is None: the field is not optional"),
        ({"ema": {"lr": None}}, "ema.lr is None: the field is not optional"),
        ({"optimizer": None}, "optimizer is None, but the field is not optional"),
        ({"optimizer": 3}, "optimizer is 3, but it has settings of its own. Pass a dict of them"),
        ({"tags": ["a", None]}, r"tags is \['a', None\]: an item is None"),
        ({"weights": {"a": None}}, r"weights is \{'a': None\}: an item is None"),
        ({"name": ["a"]}, r"name is \['a'\]: expected one value of type string"),
        ({"name": {"a": 1}}, "name is .*: expected one value of type string"),
        ({"flag": "no"}, "flag is 'no': expected True or False"),
        ({"weights": 3}, "weights is 3: expected a dict of values of type string"),
        ({"optimiser": {}, "epoch": 1}, "there is no setting 'epoch'. Did you mean 'epochs'"),
        (None, r"the values are None, not a map. Pass a dict of values by name"),
        ([1], r"the values are \[1\], not a map"),
        (Optimizer(), r"dataclasses.asdict\(settings\)"),
    ],
)
def test_a_value_that_a_field_cannot_have_is_an_error(values, text):
    with pytest.raises(ArgsError, match=text):
        Args(Settings).from_dict(values)


def test_none_for_a_field_without_a_default_is_an_error():
    with pytest.raises(ArgsError, match="Pass one value of type string, or annotate it as T"):
        Args(Data).from_dict({"path": None})


def test_none_is_a_value_of_an_optional_field():
    found = Args(Settings).from_dict({"limit": None, "ema": None, "optimizer": {"decay": None}})
    assert found == Settings(limit=None, ema=None, optimizer=Optimizer(decay=None))
    assert Args(Settings).from_dict(asdict(found)) == found
