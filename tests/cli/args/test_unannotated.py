"""An attribute of a dataclass that looks like a field but is not one is an error, when `Args` is created."""

import re
from dataclasses import dataclass, field, make_dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import pytest

from flodl.cli import Args, option
from flodl.core.errors import ArgsError


class Colour(Enum):
    RED = 1


@dataclass
class Inner:
    lr: float = 0.1


@dataclass
class Wrong:
    momentum = 0.9
    lr: float = 0.1


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        (1e-3, "x: float = 0.001"),
        (3, "x: int = 3"),
        (True, "x: bool = True"),
        ("a", "x: str = 'a'"),
        (None, "x: str | None = None"),
        (Colour.RED, "x: Colour = Colour.RED"),
        ([1, 2], "x: list[int] = option([1, 2])"),
        ((1, 2), "x: tuple[int, ...] = (1, 2)"),
        ({"a": 1.0}, "x: dict[str, float] = option({'a': 1.0})"),
        (Inner(), "x: Inner = option(Inner(lr=0.1))"),
    ],
)
def test_a_value_without_annotation_is_an_error_with_what_to_write(value, advice):
    cls = make_dataclass("S", [("epochs", int, 3)], namespace={"x": value})
    expected = (
        f"at 'S.x': it has no type annotation, so it is not an option. Write '{advice}', or 'x: ClassVar["
    )
    with pytest.raises(ArgsError, match=re.escape(expected)):
        Args(cls)


def test_a_path_without_annotation_is_an_error():
    cls = make_dataclass("S", [("epochs", int, 3)], namespace={"data": Path("a")})
    with pytest.raises(ArgsError, match=r"at 'S\.data': it has no type annotation.* Write 'data: Path = "):
        Args(cls)


def test_a_nested_value_without_annotation_is_an_error_with_its_whole_name():
    cls = make_dataclass("S", [("optimizer", Wrong, field(default_factory=Wrong))])
    with pytest.raises(ArgsError, match=r"at 'S\.optimizer\.momentum': it has no type annotation"):
        Args(cls)


def test_a_value_without_annotation_in_a_base_is_an_error():
    @dataclass
    class S(Wrong):
        epochs: int = 1

    with pytest.raises(ArgsError, match=r"at 'S\.momentum': it has no type annotation"):
        Args(S)


def test_a_new_default_without_annotation_is_an_error():
    @dataclass
    class S(Inner):
        lr = 0.5

    with pytest.raises(
        ArgsError, match=r"at 'S\.lr': .* so the default is not changed\. Write 'lr: float = 0\.5'\."
    ):
        Args(S)


def test_a_field_of_a_class_without_decorator_is_an_error():
    class S(Inner):
        epochs: int = 3

    with pytest.raises(
        ArgsError,
        match=r"at 'S\.epochs': S is not decorated with @dataclass, .* those of Inner\. Decorate it",
    ):
        Args(S)


def test_what_is_not_a_field_needs_no_annotation():
    class Base:
        kind = "base"
        title: str

    @dataclass
    class Plain(Base):
        """A docstring."""

        NAMES = ("a", "b")
        _hidden = 3
        note: ClassVar[str] = "x"
        kind = "plain"
        title = "Plain"
        pattern = re.compile("a")
        epochs: int = 3
        lr: float = option(0.1)
        derived: int = field(default=0, init=False)

        class Inner:
            pass

        def method(self):
            pass

        @staticmethod
        def static():
            pass

        @classmethod
        def create(cls):
            pass

        @property
        def double(self):
            return 2 * self.epochs

        @cached_property
        def triple(self):
            return 3 * self.epochs

    @dataclass(slots=True, kw_only=True)
    class Derived(Plain):
        note = "y"
        more: int = 1

    class Undecorated(Derived):
        def method(self):
            return 1

    assert [*Args(Plain).schema()["options"]] == ["epochs", "lr"]
    assert [*Args(Derived).schema()["options"]] == ["epochs", "lr", "more"]
    assert [*Args(Undecorated).schema()["options"]] == ["epochs", "lr", "more"]
