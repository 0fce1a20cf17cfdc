"""Everything that can make two runs differ, collected without being asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from torch.utils.data import DataLoader

from flodl.checkpoint import Policy
from flodl.core.plain import plain
from flodl.data import Loader, describe_data
from flodl.monitor.run_settings.code import code_version
from flodl.monitor.run_settings.machine import hardware, torch_flags, versions
from flodl.monitor.run_settings.model import describe_buffers, describe_model, hash_of_weights
from flodl.monitor.run_settings.modes import describe_modes
from flodl.monitor.run_settings.optimizer import describe_optimizer

from ..callbacks.dispatch import Hooks
from ..evaluation.evaluator import Evaluator
from ..session import Session
from .between import State, merged, still_ignored
from .hooks import MAX_DEPTH, loaded_hooks, restored_hooks
from .observed import changed_observed, observe, without_others, without_states
from .settings import config_of

# The evaluation data of a custom loop, which passes it later, or not in every epoch.
UNKNOWN = object()
_OBSERVED = ("step_fn", "step", "metrics", "outputs", "torch_hooks", "optimizer_attributes")


class Recorder:
    """Collect the record of a start; `config` are the settings of the user."""

    def __init__(
        self, evaluator: Evaluator, hooks: Hooks, *, keep: Policy | None, config: Mapping[str, Any]
    ) -> None:
        self.config = config
        self._evaluator, self._hooks, self._keep = evaluator, hooks, keep
        # What the run is made of, before it trained; the same after it trained; the data before it was read.
        self._observed: dict[str, Any] | None = None
        self._at_end: dict[str, Any] | None = None
        self._data: dict[str, Any] = {}
        self._data_at_end: dict[str, Any] = {}
        # The loader and the evaluation data of the current run; the first weights.
        self._read: tuple[Loader | None, Any] | None = None
        self._weights: Any = None
        # Buffers as the program sets them.
        self._buffers: Any = None
        # What the last run of the trainer left, and what the program has changed between runs.
        self._left: State | None = None
        self._updates_at_end = 0
        self._set_between: dict[str, Any] = {}
        # The settings of the optimizer of another run, from which this one has started.
        self._settings_loaded: dict[str, Any] | None = None
        # Whether the weights were changed before the current run.
        self.has_other_weights = False

    def observe(self, session: Session) -> list[str]:
        """Take what the run is made of, before it trains; return what changed since it last trained.

        What changed while it trained, such as a list that the step function fills, is a state of the run.
        """
        found = observe(session, self._evaluator)
        if self._buffers is None:
            self._buffers = _known(lambda: describe_buffers(session.model))
        before, ended = self._observed, self._at_end
        self._observed = found if before is None or ended is None else without_states(before, ended, found)
        if before is None or ended is None:
            return []
        if self._observed != before:
            masked = observe(session, self._evaluator, with_others=False)
            before = without_others(before, found, masked)
        return changed_observed(self._observed, before)

    def observe_settings(self, session: Session) -> list[str]:
        """Return which settings the program has changed since the last run, and keep them for the record."""
        left, self.has_other_weights = self._left, False
        if left is None:
            return []
        now = _state(session)
        if now is None:
            return []
        if session.updates != self._updates_at_end:
            # The trainer itself has trained or loaded them, for example by a step outside of a run.
            now = replace(now, weights=left.weights)
        self.has_other_weights = left.has_other_weights(now)
        self._set_between = merged(self._set_between, left.overlay(now, session))
        return left.changed(now)

    def observe_end(self, session: Session) -> None:
        """Take the same after training."""
        if self._observed is not None:
            self._at_end = observe(session, self._evaluator)
            self._left, self._updates_at_end = _state(session), session.updates
        if self._read is not None:
            self._data_at_end, self._read = _described(*self._read), None

    def expect_weights(self, session: Session) -> None:
        """Take the current weights as those that the last run left: the trainer has loaded them."""
        now = _state(session)
        if self._left is not None and now is not None:
            self._left = replace(self._left, weights=now.weights)

    def observe_data(
        self, loader: Loader | None, eval_data: Any
    ) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Take a description of the data before it is read, since a dataset may keep what it reads.

        Return it with that of the last run of the same trainer, which is empty at first.
        """
        found, before, ended = _described(loader, eval_data), self._data, self._data_at_end
        self._data = {
            name: without_states(before[name], ended[name], one) if name in before and name in ended else one
            for name, one in found.items()
        }
        self._read = loader, eval_data
        return self._data, before

    def compared(self, session: Session) -> dict[str, Any]:
        """Return the parts of the record that are compared on resume."""
        if self._observed is None:
            self.observe(session)
        parts = {
            **self._settings(),
            "model": {**self._parts_of_model(), "buffers": self._buffers},
            **self._data,
            "versions": versions(),
            "hardware": _known(lambda: hardware(session.device)),
            "torch": torch_flags(),
        }
        return dict(plain(parts, depth=MAX_DEPTH))

    def settle_hooks(self, saved: Mapping[str, Any]) -> None:
        """Take settings of hooks from the saved record where loading their states has restored them."""
        hooks, before, loaded = self._hooks, saved.get("hooks") or [], loaded_hooks(self._hooks)
        restored = restored_hooks(self.hook_settings(), before, loaded)
        for index, (settings, created) in enumerate(zip(restored, hooks.created_settings)):
            if created:
                hooks.created_settings[index] = {name: settings.pop(name) for name in created}
        hooks.settings = [
            settings["class"] if isinstance(own, str) and isinstance(settings, dict) else settings
            for own, settings in zip(hooks.settings, restored)
        ]

    def hook_settings(self) -> list[Any]:
        """Return the settings of hooks, with schedulers that `on_start` has created, as plain data."""
        return [plain(one, depth=MAX_DEPTH) for one in self._hooks.all_settings()]

    def _settings(self) -> dict[str, Any]:
        observed = self._observed or {}
        return {
            "keep": None if self._keep is None else str(self._keep),
            "hooks": self._hooks.all_settings(),
            **{name: observed.get(name) for name in _OBSERVED},
        }

    def _parts_of_model(self) -> dict[str, Any]:
        observed = self._observed or {}
        return {name: observed.get(name) for name in ("modules", "classes")}

    def record(self, session: Session, *, epochs: int, eval_loader: Loader | None) -> dict[str, Any]:
        """Return JSON data with the same keys for every run and, for equal runs, the same values.

        Only a resumed run may have `ignored_optimizer_settings` and `ignored_settings`.
        """
        loader, start, evaluator = session.loader, session.start, self._evaluator
        if self._observed is None:
            self.observe(session)
        data = {"data": loader, "eval_data": eval_loader}
        described = {name: _known(partial(_description, one)) for name, one in data.items()}
        at_first = merged(self._at_first_start(session), self._set_between)
        record = {
            "epochs": epochs,
            "limit": start.limit,
            **config_of(session),
            **at_first,
            "model": {**(at_first["model"] or {}), **self._parts_of_model()},
            **self._settings(),
            **{name: _joined(described.get(name), self._data.get(name)) for name in data},
            "config": dict(self.config),
            "code": _known(lambda: code_version(evaluator.step_fn)),
            "versions": versions(),
            "hardware": _known(lambda: hardware(session.device)),
            "torch": torch_flags(),
        }
        if ignored := still_ignored(start.ignored, self._set_between.get("optimizer_settings")):
            record["ignored_optimizer_settings"] = ignored
        if start.ignored_elsewhere:
            record["ignored_settings"] = start.ignored_elsewhere
        return dict(plain(record, depth=MAX_DEPTH))

    def _at_first_start(self, session: Session) -> dict[str, Any]:
        """Return what applies since the first start of a run, whatever this program sets."""
        start = session.start
        earlier = start.earlier_record
        if "optimizer_settings" in earlier:
            return {name: earlier.get(name) for name in ("optimizer_settings", "model", "started_from")}
        is_first = start.source is None
        if self._settings_loaded is None and not is_first:
            # A run that starts from another has its rates.
            self._settings_loaded = describe_optimizer(session.optimizer, None, session.model)
        settings = self._settings_loaded
        if settings is None:
            settings = describe_optimizer(session.optimizer, start.optimizer, session.model)
        knows_weights = not session.updates or not is_first
        if knows_weights:
            self._weights = _known(lambda: hash_of_weights(session.model))
        return {
            "optimizer_settings": settings,
            "model": {
                **describe_model(session.model),
                **describe_modes(session.model),
                "weights_at_start": self._weights,
                "buffers": self._buffers if start.buffers is None else start.buffers,
            },
            "started_from": start.source,
        }


def _description(loader: Loader | None) -> Any:
    return None if loader is None else loader.description


def _described(loader: Loader | None, eval_data: Any) -> dict[str, Any]:
    found = {"data": _known(partial(_contents, loader))}
    return found if eval_data is UNKNOWN else {**found, "eval_data": _known(partial(_contents, eval_data))}


def _contents(data: Any) -> Any:
    """Return what is read; a DataLoader has its own `drop_last`."""
    if data is None or isinstance(data, DataLoader):
        return None if data is None else describe_data(data)
    if isinstance(data, Loader):
        return {"drop_last": data.drop_last, **data.contents}
    return {"drop_last": False, **describe_data(data)}


def _joined(described: Any, before: Any) -> Any:
    """Return the description of a loader, with that of its data before it was read."""
    if isinstance(described, dict) and isinstance(before, dict):
        return {**described, **before}
    return described


def _state(session: Session) -> State | None:
    """Return what applies now; None if that cannot be read."""
    try:
        return State.of(session)
    except Exception:  # from a module of the user
        return None


def _known(read: Callable[[], Any]) -> Any:
    """Return what a function returns, or why it failed: a run must not fail because of its record."""
    try:
        return read()
    except Exception as error:
        return f"unknown ({type(error).__name__})"
