"""The settings of each start of a run that were used: a resumed run may ignore some of its program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from flodl.core.ignored_settings import Ignored, is_same_setting, joined, read_changes

from .starts import Start

# By the name of the setting: the values of this program in whose place those of the saved run applied; with
# where a `Trainer` recorded those.
_IGNORED = {"ignored_optimizer_settings": ("optimizer_settings",), "ignored_settings": ("hooks", "seed")}

Setting = dict[str, Any]


class Used(NamedTuple):
    """The settings of a start that were used, and by path the values of others that it ignored."""

    config: list[Setting]
    ignored: dict[str, Any]


def used_settings(starts: Iterable[Start]) -> list[Used]:
    """Return the settings of each start; one that was set without effect has its earlier value.

    A resumed run continues with the optimizer settings that were saved. If its program was started with
    another `lr`, which it passes to the optimizer, then this `lr` had no effect.
    """
    found: list[Used] = []
    before: dict[str, Setting] = {}
    for start in starts:
        used = _used(start.config, before)
        before = {str(item.get("path")): item for item in used.config} or before
        found.append(used)
    return found


def _used(config: list[Setting], before: Mapping[str, Setting]) -> Used:
    values = [(str(item.get("path")), item.get("value")) for item in config]
    known = [(path.partition(".")[0], path.rpartition(".")[2], value) for path, value in values]
    listed = [(name, value) for part, name, value in known if part in _IGNORED]
    ignored = joined(*({name: value} for name, value in listed if isinstance(value, list)))
    if not ignored:
        return Used(config, {})
    parts = {name: _IGNORED[part] for part, name, _ in known if part in _IGNORED}
    saved = joined(*({name: [value]} for part, name, value in known if part in parts.get(name, ())))
    earlier_values = {path: item.get("value") for path, item in before.items()}
    known_ignored = Ignored(now=ignored, saved=saved, read=read_changes(dict(values), earlier_values))
    used, options = Used([], {}), set[str]()
    for item in config:
        path, value = str(item.get("path")), item.get("value")
        if path.partition(".")[0] in _IGNORED:
            continue
        earlier = before.get(path, {})
        name = (
            known_ignored.ignored_as(path, value, earlier.get("value")) if _is_of_user(item, path) else None
        )
        if not name:
            used.config.append(item)
            continue
        # A run that starts from another one has the saved value, if there is only one.
        applied = {**item, "value": saved[name][0]} if len(saved.get(name, ())) == 1 else item
        used.config.append(earlier or applied)
        if not is_same_setting(used.config[-1].get("value"), value):
            used.ignored[path] = value
            options.add(name)
    used.ignored.update([*_without_option(config, ignored, used.ignored, options=options)])
    return used


def _without_option(
    config: list[Setting],
    ignored: Mapping[str, list[Any]],
    listed: Mapping[str, Any],
    *,
    options: set[str],
) -> Iterator[tuple[str, Any]]:
    """Yield the path and the value of what is ignored and is not an option of the program.

    The program gives it to its optimizer or a hook only. `options` are the names that options stand for.
    """
    paths = [str(item.get("path")) for item in config]
    of_user = [item.get("value") for item, path in zip(config, paths) if _is_of_user(item, path)]
    for path in paths:
        part, name = path.partition(".")[0], path.rpartition(".")[2]
        own = ignored.get(name)
        if part not in _IGNORED or not own:
            continue
        value = own[0] if len(own) == 1 else own
        if part == "ignored_optimizer_settings" and name not in options and not _share(own, of_user):
            yield f"optimizer_settings.{name}", value
        # An option is listed already if the setting of the hook was read from it; the seed has its own.
        elif part == "ignored_settings" and name != "seed" and not _share(own, listed.values()):
            yield f"hooks.{name}", value


def _share(values: Iterable[Any], others: Iterable[Any]) -> bool:
    known = [*others]
    return any(is_same_setting(value, other) for value in values for other in known)


def _is_of_user(item: Mapping[str, Any], path: str) -> bool:
    """Return whether someone has set a value, on the command line or in `config`; the rest is recorded."""
    return bool(item.get("origin")) or path.startswith("config.") or "." not in path
