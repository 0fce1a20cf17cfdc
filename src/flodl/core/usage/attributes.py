"""Attributes that are fixed when an object is created: an assignment raises, and costs others nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import SequenceMatcher
from inspect import signature
from operator import attrgetter
from typing import Any, TypeVar

from ..errors import FlodlError
from ..formats import a_type, with_article
from ..paths import suggestion
from .tracebacks import hide_own_frames

C = TypeVar("C", bound=type)
# How similar a name must be to an attribute to be a misspelled one.
_SIMILAR = 0.8


def fix_attributes(
    error: type[FlodlError],
    *,
    called: str,
    instead: Mapping[str, str] | None = None,
    read: Callable[[str], str] = lambda name: "",
    stored: Collection[str] = (),
    elsewhere: Mapping[str, str] | None = None,
) -> Callable[[C], C]:
    """Return a decorator for classes: assigning an argument of their creation, or a property, raises `error`.

    `called` is the usual name of an object, `instead` has what to write for some names, `read` returns how to
    read an argument. These are descriptors of the class, so that other assignments are as fast as before. The
    properties in `stored` return the attribute of their name with an underscore, without a call of Python.

    With `elsewhere`, a misspelled name and a method raise, too, and so do the names there, which others use
    for an argument. This checks every assignment, so it is for classes that change no attribute of their own
    often.

    >>> class FixedError(FlodlError, AttributeError): ...
    >>> @fix_attributes(FixedError, called="rows")
    ... class Rows:
    ...     def __init__(self, size): ...
    >>> Rows(3).size = 4
    Traceback (most recent call last):
    flodl.core.usage.attributes.FixedError: rows.size was assigned, but a Rows keeps what it was created ...
    """

    def decorate(kind: C) -> C:
        own, an_object = [*signature(kind).parameters], with_article(kind.__name__)
        for name in dict.fromkeys((*own, *(instead or ()), *_properties(kind))):
            found, advice = vars(kind).get(name), (instead or {}).get(name, "")
            if name in own or not isinstance(found, property):
                why = f"{an_object} keeps what it was created with: the new value would be ignored."
                advice = advice or f"Create a new {kind.__name__}(…, {name}=…)."
            else:
                why = "it is read-only:"
                advice = advice or (found.__doc__ or "").partition("\n")[0]
            message = f"{called}.{name} was assigned, but {why} {advice}".rstrip()
            if isinstance(found, property):
                get = attrgetter(f"_{name}") if name in stored else found.fget
                setattr(kind, name, property(get, _refuse(error, message), doc=found.__doc__))
            elif found is None:
                absent = f"{an_object} has no attribute {name!r}. {read(name)}".rstrip()
                setattr(kind, name, _FixedAttribute(kind, name, error, message, absent))
        if elsewhere is not None:
            kind.__setattr__ = _refuse_misspelled(kind, error, called, elsewhere)  # type: ignore[assignment]
        return kind

    return decorate


def fix_properties(
    error: type[FlodlError], *, called: str, instead: Mapping[str, str] | None = None
) -> Callable[[C], C]:
    """Return a decorator for classes: an assignment to a read-only property, also an inherited one, raises.

    >>> class FixedError(FlodlError, AttributeError): ...
    >>> @fix_properties(FixedError, called="rows", instead={"size": "Write rows.resize(4)."})
    ... class Rows:
    ...     size = property(lambda self: 3)
    >>> Rows().size = 4
    Traceback (most recent call last):
    flodl.core.usage.attributes.FixedError: rows.size was assigned, but it is read-only. Write rows.resize(4).
    """

    def decorate(kind: C) -> C:
        for name in dict.fromkeys(name for base in kind.__mro__ for name in _properties(base)):
            found = getattr(kind, name)
            if isinstance(found, property) and found.fset is None:
                advice = (instead or {}).get(name) or (found.__doc__ or "").partition("\n")[0]
                message = f"{called}.{name} was assigned, but it is read-only. {advice}".rstrip()
                setattr(kind, name, property(found.fget, _refuse(error, message), doc=found.__doc__))
        return kind

    return decorate


def misspelled(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that a similar one probably means.

    >>> misspelled("clipnorm", ["accumulate", "clip_norm"]), misspelled("label", ["accumulate", "clip_norm"])
    ('clip_norm', None)
    """
    return next((one for one in known if SequenceMatcher(None, name.lower(), one).ratio() >= _SIMILAR), None)


def is_method(kind: type, name: str) -> bool:
    """Return whether a class has a method of this name, which an assignment would hide.

    >>> is_method(list, "append"), is_method(list, "size")
    (True, False)
    """
    return callable(getattr(kind, name, None))


def unknown_attribute(
    owner: object, name: str, error: type[FlodlError], *, known: Iterable[str], instead: Mapping[str, str]
) -> Exception:
    """Return the error for an attribute that an object does not have; `instead` is what to write for some.

    >>> unknown_attribute([], "apend", FlodlError, known=["append"], instead={})
    FlodlError("a list has no attribute 'apend'. Did you mean 'append'?")
    """
    message = f"{a_type(owner)} has no attribute {name!r}."
    if name.startswith("_"):
        return AttributeError(message, name=name, obj=owner)
    return error(f"{message} {instead.get(name) or suggestion(name, known, known_as='attributes')}")


class _FixedAttribute:
    """An argument that objects do not have as an attribute; a subclass may have one with this name."""

    def __init__(self, kind: type, name: str, error: type[FlodlError], message: str, absent: str) -> None:
        self._kind, self._name, self._error = kind, name, error
        self._message, self._absent = message, absent

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        if owner is None:
            return self
        try:
            return vars(owner)[self._name]
        except KeyError:
            raise self._error(self._absent) from None

    def __set__(self, owner: Any, value: Any) -> None:
        if type(owner) is self._kind:
            raise self._error(self._message)
        vars(owner)[self._name] = value


def _properties(kind: type) -> list[str]:
    return [
        name
        for name, value in vars(kind).items()
        if isinstance(value, property) and value.fset is None and not name.startswith("_")
    ]


def _refuse(error: type[FlodlError], message: str) -> Callable[[Any, Any], None]:
    def refuse(owner: Any, value: Any) -> None:
        raise error(message)

    return refuse


def _refuse_misspelled(
    kind: type, error: type[FlodlError], called: str, elsewhere: Mapping[str, str]
) -> Callable[[Any, str, Any], None]:
    def assign(owner: Any, name: str, value: Any) -> None:
        try:
            # A subclass may have attributes of its own.
            if name[0] != "_" and type(owner) is kind and is_method(kind, name):
                raise error(f"{called}.{name} was assigned, but it is a method. Call it: {called}.{name}(…).")
            if name[0] != "_" and type(owner) is kind and not hasattr(kind, name):
                similar = misspelled(name, (one for one in dir(kind) if one[0] != "_"))
                if similar or name in elsewhere:
                    advice = elsewhere.get(name) or f"Did you mean {similar!r}?"
                    raise error(
                        f"{called}.{name} was assigned, but {with_article(kind.__name__)} has no such "
                        f"attribute: this has no effect. {advice}"
                    )
            object.__setattr__(owner, name, value)
        except FlodlError as refused:
            hide_own_frames(refused)
            raise

    return assign
