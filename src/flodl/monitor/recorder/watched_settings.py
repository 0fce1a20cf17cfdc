"""The settings of watched objects, each once, under the same paths as in the record of a trainer."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from flodl.core import log
from flodl.core.contents.schedulers import is_scheduler
from flodl.core.plain import plain

from ..journal import Journal
from ..snapshot.starts import starts_of

# What a scheduler may change; a run that continues keeps the values of its first start.
_SCHEDULED = ("lr", "momentum", "betas")
_MAX_DEPTH = 24


def earlier_settings(journal: Journal, *, rank: int) -> dict[str, Any]:
    """Return the settings that the starts in a journal have recorded, by path."""
    if not journal.last_id:
        return {}
    starts = starts_of(journal.reader(), rank)
    return {str(item.get("path")): item.get("value") for start in starts for item in start.config}


def is_optimizer(thing: Any) -> bool:
    """Return whether an object is an optimizer of torch, or has its interface."""
    return isinstance(getattr(thing, "param_groups", None), list) and hasattr(thing, "zero_grad")


def is_schedule(thing: Any) -> bool:
    """Return whether an object is a torch LR scheduler, or the return value of `flodl.optim.apply`."""
    module = sys.modules.get("flodl.optim.schedule_bridge")
    return is_scheduler(thing) or (module is not None and isinstance(thing, module.ScheduleBridge))


class WatchedSettings:
    """Describe each watched object once; `earlier` are the settings of earlier starts by path.

    The second model, optimizer, schedule or step gets a number in its paths: `optimizer_settings (2).lr`.
    """

    def __init__(self, earlier: Mapping[str, Any]) -> None:
        self._earlier = earlier
        self._seen: dict[str, list[Callable[[], Any]]] = {}
        self._recorded, self._left_out = weakref.WeakSet[Any](), weakref.WeakSet[Any]()
        # Whether code and versions, and the device, were described.
        self._knows_program = self._knows_device = False

    def of(self, thing: Any) -> dict[str, Any]:
        """Return the settings of an object that was not described before; {} if they cannot be read."""
        try:
            if thing in self._recorded or thing in self._left_out:
                return {}
            found: dict[str, Any] = plain(self._describe(thing), depth=_MAX_DEPTH)
        except Exception as error:  # a record must not end a run
            log.debug("the settings of a %s cannot be recorded: %s", type(thing).__name__, error)
            return {}
        return found

    def leave_out(self, thing: Any) -> None:
        """Note that someone else records the settings of an object."""
        for part in (thing, *_parts_of(thing)):
            self._left_out.add(part)

    def _describe(self, thing: Any) -> dict[str, Any]:
        if "torch" not in sys.modules:
            return {}
        from ..run_settings import of_objects

        parts = _parts_of(thing)
        found: dict[str, Any] = {}
        model = None
        if parts:
            model, optimizer, step_fn = parts
            found |= self._named("model", model, of_objects.of_model(model, optimizer, step_fn))
            found |= self._of_optimizer(optimizer, model)
            found |= self._named("step", thing, of_objects.of_step(thing, model, optimizer, step_fn))
            bridge = thing.schedule
            schedule = {"schedule": None} if bridge is None else of_objects.of_schedule(bridge)
            found |= self._named("step", thing, schedule)
            self._recorded.update((model, optimizer, *(() if bridge is None else (bridge,))))
        elif is_optimizer(thing):
            found |= self._of_optimizer(thing, next(self._alive("model"), None))
        elif is_schedule(thing):
            if thing.optimizer not in self._left_out:
                found |= self._of_optimizer(thing.optimizer, next(self._alive("model"), None))
                self._recorded.add(thing.optimizer)
            found |= self._named("schedule", thing, of_objects.of_schedule(thing))
        elif isinstance(thing, sys.modules["torch"].nn.Module):
            model = thing
            found |= self._named("model", model, of_objects.of_model(model))
        self._recorded.add(thing)
        if not self._knows_program or parts:
            self._knows_program = True
            found |= of_objects.of_program(parts[2] if parts else None)
        if model is not None and not self._knows_device:
            self._knows_device = True
            found |= of_objects.of_device(model)
        return _with_first_values(found, self._earlier)

    def _of_optimizer(self, optimizer: Any, model: Any) -> dict[str, Any]:
        from ..run_settings import of_objects

        return self._named("optimizer", optimizer, of_objects.of_optimizer(optimizer, model))

    def _named(self, kind: str, thing: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return settings; an object that is not the first of its kind adds its number to their names."""
        seen = self._seen.setdefault(kind, [])
        number = next((at for at, known in enumerate(seen, start=1) if known() is thing), 0)
        if not number:
            seen.append(weakref.ref(thing))
            number = len(seen)
        return {name if number == 1 else f"{name} ({number})": item for name, item in settings.items()}

    def _alive(self, kind: str) -> Iterator[Any]:
        return (thing for known in self._seen.get(kind, ()) if (thing := known()) is not None)


def _parts_of(thing: Any) -> tuple[Any, ...]:
    """Return the model, the optimizer and the function of a `TrainStep`; () for other objects."""
    if "flodl.engine" not in sys.modules:
        return ()
    from flodl.engine import parts_of

    return parts_of(thing) or ()


def _with_first_values(found: Mapping[str, Any], earlier: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings in which the values that a schedule sets are those of the first start.

    >>> groups = {"optimizer_settings": {"lr": 0.05, "initial_lr": 0.1}}
    >>> _with_first_values(groups, {"optimizer_settings.lr": 0.1, "optimizer_settings.initial_lr": 0.1})
    {'optimizer_settings': {'lr': 0.1, 'initial_lr': 0.1}}
    """
    schedules = {name: item for name, item in found.items() if name.partition(" ")[0] == "schedule" and item}
    is_same = bool(schedules) and all(earlier.get(name) == item for name, item in schedules.items())

    def settled(path: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        rate = settings.get("initial_lr")
        is_scheduled = is_same if rate is None else earlier.get(f"{path}.initial_lr") == rate
        return {
            name: settled(f"{path}.{name}", item)
            if isinstance(item, dict)
            else earlier.get(f"{path}.{name}", item)
            if is_scheduled and name in _SCHEDULED
            else item
            for name, item in settings.items()
        }

    return {
        name: settled(name, item)
        if name.startswith("optimizer_settings") and isinstance(item, dict)
        else item
        for name, item in found.items()
    }
