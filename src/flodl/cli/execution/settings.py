"""The values of a run, each with its origin, and the options that they turn into."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flodl.cli.args.click_adapter import NEGATIVE_NUMBER
from flodl.cli.args.parameter import Parameter, format_value, split_list
from flodl.cli.args.passthrough import positional_words
from flodl.cli.args.schema import Schema
from flodl.cli.manifest.document import Node, Origin, Table, dotted, leaves, plain
from flodl.cli.manifest.loader import Manifest
from flodl.core import environment

# The option of each field, in the order in which they are passed on.
_FLAGS: dict[str, dict[str, str]] = {
    "ddp": {
        "mode": "mode",
        "policy": "policy",
        "backend": "backend",
        "anchor": "anchor",
        "max_anchor": "max-anchor",
        "overhead_target": "overhead-target",
        "divergence_threshold": "divergence-threshold",
        "max_batch_diff": "max-batch-diff",
        "max_grad_norm": "max-grad-norm",
        "snapshot_timeout": "snapshot-timeout",
        "checkpoint_every": "checkpoint-every",
        "progressive": "progressive",
        "speed_hint": "speed-hint",
        "partition_ratios": "partition-ratios",
        "lr_scale_ratio": "lr-scale-ratio",
        "timeline": "timeline",
    },
    "training": {
        "epochs": "epochs",
        "batch_size": "batch-size",
        "batches_per_epoch": "batches",
        "lr": "lr",
        "seed": "seed",
    },
    "output": {"dir": "output", "monitor": "monitor"},
}


_SWITCHES = {
    **dict.fromkeys(("1", "true", "yes", "on", "t", "y"), True),
    **dict.fromkeys(("0", "false", "no", "off", "f", "n"), False),
}


@dataclass(frozen=True)
class Setting:
    """One option of a run."""

    flag: str
    value: Any
    origin: str
    path: str

    @property
    def is_text(self) -> bool:
        """Whether true and false are passed on as words, not as a flag."""
        return self.path == "ddp.progressive"

    def words(self, schema: Schema | None) -> list[str]:
        """Give the words for the command line; what is off or not set gives none."""
        flag = f"--{self.flag}"
        known = schema.options.get(self.flag) if schema else None
        if self.value is None:
            return []
        if self.value is False and not self.is_text:
            # A flag that may be on by itself has to be switched off in words.
            return [f"--no-{self.flag}"] if known is not None and known.has_negation else []
        if self.value is True and not self.is_text:
            # In words, because an option that stands bare would take what follows it for its value.
            bare = known.bare if known else None
            return [flag] if bare is None else [flag, format_value(bare)]
        text = _text(self.path, self.value)
        looks_like_option = text.startswith("-") and not NEGATIVE_NUMBER.match(text)
        return [f"{flag}={text}"] if looks_like_option else [flag, text]


def _text(path: str, value: Any) -> str:
    # Help pages show also what would be refused.
    if path == "ddp.speed_hint" and isinstance(value, dict) and {"slow_rank", "ratio"} <= value.keys():
        return f"{value['slow_rank']}:{format_value(value['ratio'])}"
    return format_value(value)


def collect_settings(enclosing: Table, preset: Table | None, *, project: Path) -> list[Setting]:
    """Give the settings of an entry: those of the preset before those around it, field by field."""
    found = []
    for section, flags in _FLAGS.items():
        for field, flag in flags.items():
            for layer in (preset, enclosing):
                node = layer.table(section).get(field) if layer else None
                if node is not None and plain(node) is not None:
                    place = _place(node).relative_to(project)
                    found.append(Setting(flag, plain(node), place, f"{section}.{field}"))
                    break
    options = preset.table("options").entries if preset else {}
    for name in sorted(options):
        origin = options[name].origin.relative_to(project)
        found.append(Setting(name.replace("_", "-"), plain(options[name]), origin, f"options.{name}"))
    return found


def _place(node: Node) -> Origin:
    return next((leaf.origin for _, leaf in leaves(node)), node.origin)


def covered(manifest: Manifest, name: str, preset: Table) -> list[str]:
    """Tell of every value of an overlay that does not count, because a preset below the overlay has one."""
    notes = []
    for section, flags in _FLAGS.items():
        for field in flags:
            above, below = manifest.document.table(section).get(field), preset.table(section).get(field)
            if above is None or below is None or plain(above) is None or plain(below) is None:
                continue
            where, place = _place(above), _place(below)
            if where.file in manifest.overlay_files and place.file not in manifest.overlay_files:
                path, preset_path = f"{section}.{field}", dotted(("commands", name))
                notes.append(
                    f"{where.relative_to(manifest.project)}: {path} is covered by {preset_path} at "
                    f"{place.relative_to(manifest.project)}. To change it, write {preset_path}.{path}."
                )
    return notes


def without_denied(
    settings: list[Setting], tail: tuple[str, ...], schema: Schema | None
) -> tuple[list[Setting], tuple[str, ...]]:
    """Switch off the flags of a manifest that the command line denies, and take these words out of it.

    To a program that has no `--no-name`, a flag is off when it is not given.
    """
    end = tail.index("--") if "--" in tail else len(tail)
    words, found = list(tail[:end]), []
    for setting in settings:
        known, denial = schema.options.get(setting.flag) if schema else None, f"--no-{setting.flag}"
        if known and known.type == "bool" and not known.has_negation and denial in words:
            last = len(words) - words[::-1].index(denial)
            said = (denial, f"--{setting.flag}")
            words = [word for place, word in enumerate(words) if place >= last or word not in said]
            setting = replace(setting, value=False, origin=denial)
        found.append(setting)
    return found, (*words, *tail[end:])


def without_overruled(settings: list[Setting], schema: Schema | None) -> list[Setting]:
    """Leave out what an environment variable overrules: the program reads that by itself."""
    return [setting for setting in settings if not variable_for(setting.flag, schema)]


def variable_for(flag: str, schema: Schema | None) -> str:
    """Give the variable that an option reads, if it is set."""
    known = schema.options.get(flag) if schema else None
    return known.env if known and known.env and environment.value_of(known.env) else ""


def given_options(tail: tuple[str, ...], schema: Schema | None) -> Iterator[tuple[str, Any]]:
    """Give the options that stand in a forwarded command line, with their values as far as they show."""
    shorts = {one.short: one for one in schema.options.values() if one.short} if schema else {}
    words = list(tail[: tail.index("--")] if "--" in tail else tail)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            flag = name[2:]
        elif name.startswith("-") and len(name) == 2 and name[1] in shorts:
            flag = shorts[name[1]].long
        else:
            continue
        known = schema.options.get(flag) if schema else None
        denied = schema.options.get(flag.removeprefix("no-")) if schema and not known else None
        if denied and denied.has_negation:
            yield denied.long, False
            continue
        follows = bool(words) and (
            not words[0].startswith("-") or NEGATIVE_NUMBER.match(words[0]) is not None
        )
        takes_value = known.takes_value and (known.bare is None or follows) if known else follows
        if equals:
            yield flag, value
        elif takes_value and words:
            yield flag, words.pop(0)
        else:
            yield flag, True if known is None or known.bare is None else known.bare


def resolved(
    settings: list[Setting], tail: tuple[str, ...], schema: Schema | None, *, with_environment: bool = True
) -> dict[str, dict[str, Any]]:
    """Give every option with its value and origin: default < manifest < environment < command line."""
    known = schema.options if schema else {}
    table: dict[str, dict[str, Any]] = {}
    given_arguments = arguments_in(tail, schema)
    for argument in schema.arguments if schema else []:
        if argument.long in given_arguments:
            found = {"value": given_arguments[argument.long], "origin": f"<{argument.long}>"}
            table[argument.long] = found
        elif argument.default is not None:
            table[argument.long] = {"value": typed(argument.default, argument), "origin": "default"}
    for flag, one in known.items():
        if one.default is not None:
            table[flag] = {"value": typed(one.default, one), "origin": "default"}
    for setting in settings:
        if setting.value is not None:
            taker = known.get(setting.flag)
            value = as_read(setting.value, taker) if taker else setting.value
            table[setting.flag] = {"value": value, "origin": setting.origin}
    for flag, one in known.items():
        if with_environment and (variable := variable_for(flag, schema)):
            table[flag] = {"value": variable_value(variable, one), "origin": f"${variable}"}
    for flag, value in given_options(tail, schema):
        one_of = known.get(flag)
        origin = f"--no-{flag}" if value is False else f"--{flag}"
        table[flag] = {"value": typed(value, one_of) if one_of else value, "origin": origin}
    return table


def arguments_in(tail: tuple[str, ...], schema: Schema | None) -> dict[str, Any]:
    """Give the positional arguments of a forwarded command line by name, as far as they show."""
    if schema is None or not schema.arguments:
        return {}
    words = positional_words(schema, tail)
    found: dict[str, Any] = {}
    for one in schema.arguments:
        if words and one.variadic:
            found[one.long] = [typed(word, replace(one, type=one.scalar)) for word in words]
            words = []
        elif words:
            found[one.long] = typed(words.pop(0), one)
    return found


def as_read(value: Any, one: Parameter) -> Any:
    """Give a value of the manifest as the program will have it: `a,b` for a list is a list.

    >>> as_read(True, Parameter("save", "option", "string", bare="runs"))
    'runs'
    """
    if value is True and one.takes_value and one.bare is not None:
        return typed(one.bare, one)
    if one.is_list and not isinstance(value, (list, dict, bool)):
        return typed(format_value(value), one)
    return typed(value, one)


def variable_value(variable: str, one: Parameter) -> Any:
    """Read a variable by the type of its option; a flag has more words there than in a manifest."""
    text = environment.value_of(variable)
    if one.type == "bool":
        return _SWITCHES.get(text.strip().lower(), text)
    return typed(text, one)


def typed(value: Any, one: Parameter) -> Any:
    """Read the text of a value by the type of its option; text that does not fit stays as it is.

    >>> typed("1e-4", Parameter("lr", "option", "float")), typed("1,2", Parameter("n", "option", "list[int]"))
    (0.0001, [1, 2])
    """
    if not isinstance(value, str):
        return value
    if one.is_list:
        return [typed(piece, replace(one, type=one.scalar)) for piece in split_list(value)]
    if one.type == "bool":
        return {"true": True, "false": False}.get(value, value)
    try:
        return {"int": int, "float": float}.get(one.type, str)(value)
    except ValueError:
        return value
