"""The settings of a manifest, each with its origin, and the options that they become."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flodl.cli.args.click_adapter import NEGATIVE_NUMBER
from flodl.cli.args.parameter import Parameter, format_value
from flodl.cli.args.schema import Schema
from flodl.cli.manifest.document import Leaf, Node, Origin, Table, leaves, plain
from flodl.cli.manifest.merge import merge_all
from flodl.cli.manifest.option_names import FLAGS, option_name
from flodl.cli.manifest.render import as_written, flow

from .values import arguments_in, convert, convert_setting, options_in, variable_for, variable_value

_DECIMAL = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\Z")


@dataclass(frozen=True)
class Setting:
    """One option that a manifest sets."""

    flag: str
    value: Any
    origin: str
    path: str
    written: str | tuple[str | None, ...] | None = None  # the text of a number, as in the manifest

    @property
    def is_text(self) -> bool:
        """Whether true and false are passed as words instead of as a flag."""
        return self.path == "ddp.progressive"

    def value_for(self, option: Parameter | None) -> Any:
        """Return the value, with numbers as they were written if the option takes text: 1.10 is not 1.1.

        >>> setting = Setting("name", 1.1, "fdl.yml:3", "options.name", "1.10")
        >>> [setting.value_for(Parameter("name", "option", kind)) for kind in ("string", "float")]
        ['1.10', 1.1]
        """
        written = self.written_for(option)
        if isinstance(written, tuple):
            return [item if text is None else text for item, text in zip(self.value, written)]
        return self.value if written is None else written

    def written_for(self, option: Parameter | None) -> str | tuple[str | None, ...] | None:
        """Return the text of each number that is passed as it was written, or None."""
        if option is not None and option.scalar in ("int", "float", "bool"):
            return None
        # Of an unknown option, only what any program reads as the same number: not 0x1F and not .inf.
        written = self.written if isinstance(self.written, tuple) else (self.written,)
        texts = tuple(text if text and (option or _DECIMAL.match(text)) else None for text in written)
        return texts if isinstance(self.written, tuple) else texts[0]

    def shown(self, schema: Schema | None) -> str:
        """Return the value as YAML, with the text of each number that is passed as it was written."""
        option = schema.options.get(self.flag) if schema else None
        return flow(as_written(self.value, self.written_for(option)))

    def words(self, schema: Schema | None) -> list[str]:
        """Return the words for the command line. A setting that is off or null has none."""
        flag = f"--{self.flag}"
        option = schema.options.get(self.flag) if schema else None
        if self.value is None:
            return []
        if self.value is False and not self.is_text:
            # A flag that is on by default has to be switched off explicitly.
            return [f"--no-{self.flag}"] if option is not None and option.has_negation else []
        if self.value is True and not self.is_text:
            # The value is written out, because a bare option would take the next word as its value.
            bare = option.bare if option else None
            return [flag] if bare is None else [flag, format_value(bare)]
        text = _format(self.path, self.value_for(option))
        looks_like_option = text.startswith("-") and not NEGATIVE_NUMBER.match(text)
        return [f"{flag}={text}"] if looks_like_option else [flag, text]


def _format(path: str, value: Any) -> str:
    # Help pages also show values that would be rejected, so the map may be incomplete.
    if path == "ddp.speed_hint" and isinstance(value, dict) and {"slow_rank", "ratio"} <= value.keys():
        return f"{value['slow_rank']}:{format_value(value['ratio'])}"
    return format_value(value)


def collect_settings(
    enclosing: Table, preset: Table | None, schema: Schema | None, *, project: Path
) -> list[Setting]:
    """Return the settings for an entry. Each value of the preset overrides the enclosing manifest.

    A map is the value of a dict option of the schema, or contains nested options: `optimizer: {lr: 0.1}` is
    `--optimizer.lr 0.1`.
    """
    settings = []
    for section, flags in FLAGS.items():
        for key, flag in flags.items():
            for layer in (preset, enclosing):
                node = layer.table(section).get(key) if layer else None
                if node is not None and plain(node) is not None:
                    origin = first_origin(node).relative_to(project)
                    settings.append(Setting(flag, plain(node), origin, f"{section}.{key}"))
                    break
    for section, table in (("training", _nested_training(enclosing, preset)), ("options", _options(preset))):
        # With both spellings of a name, the last one is that of the upper file.
        found = {_flag(path): (path, node) for path, node in _option_nodes(table, schema, ())}
        for path, node in sorted(found.values()):
            origin = first_origin(node).relative_to(project)
            written = node.written if isinstance(node, Leaf) else None
            name = ".".join(path)
            settings.append(Setting(_flag(path), plain(node), origin, f"{section}.{name}", written))
    last = {setting.flag: at for at, setting in enumerate(settings) if setting.value is not None}
    return [setting for at, setting in enumerate(settings) if last.get(setting.flag, at) == at]


def options_set_by(table: Table, schema: Schema | None) -> Iterator[tuple[str, tuple[str, ...], Node]]:
    """Yield every option that a manifest or a preset itself sets, with its path there and its value."""
    for section, flags in FLAGS.items():
        for key, node in table.table(section).entries.items():
            if key in flags:
                yield flags[key], (section, key), node
    for section, inner in (("training", _maps_in(table.table("training"))), ("options", _options(table))):
        for path, node in _option_nodes(inner, schema, ()):
            yield _flag(path), (section, *path), node


def _nested_training(enclosing: Table, preset: Table | None) -> Table:
    """Return the maps in `training:`, whose values the preset overrides one by one."""
    layers = [layer.table("training") for layer in (enclosing, preset) if layer is not None]
    return _maps_in(merge_all(layers, path=("training",)))


def _maps_in(table: Table) -> Table:
    return Table({key: node for key, node in table.entries.items() if isinstance(node, Table)}, table.origin)


def _options(preset: Table | None) -> Table:
    return preset.table("options") if preset is not None else Table({}, Origin(Path(), 0))


def _option_nodes(
    table: Table, schema: Schema | None, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Node]]:
    options = schema.options if schema else {}
    for key, node in table.entries.items():
        inner = (*path, key)
        option = options.get(_flag(inner))
        if isinstance(node, Table) and node.entries and (option is None or not option.is_dict):
            yield from _option_nodes(node, schema, inner)
        else:
            yield inner, node


def _flag(path: tuple[str, ...]) -> str:
    return option_name(".".join(path))


def first_origin(node: Node) -> Origin:
    """Return the origin of the first value in a map, or that of a value."""
    return next((leaf.origin for _, leaf in leaves(node)), node.origin)


def apply_negations(
    settings: list[Setting], tail: tuple[str, ...], schema: Schema | None
) -> tuple[list[Setting], tuple[str, ...]]:
    """Switch off the flags that `--no-name` on the command line negates, and remove those words.

    A program without `--no-name` treats a missing flag as off.
    """
    end = tail.index("--") if "--" in tail else len(tail)
    words, found = list(tail[:end]), []
    for setting in settings:
        option, negation = schema.options.get(setting.flag) if schema else None, f"--no-{setting.flag}"
        if option and option.type == "bool" and not option.has_negation and negation in words:
            last = len(words) - words[::-1].index(negation)
            removed = (negation, f"--{setting.flag}")
            words = [word for index, word in enumerate(words) if index >= last or word not in removed]
            setting = replace(setting, value=False, origin=negation)
        found.append(setting)
    return found, (*words, *tail[end:])


def without_replaced_lists(
    settings: list[Setting], tail: tuple[str, ...], schema: Schema | None
) -> list[Setting]:
    """Drop lists that the command line sets: a program would append its items to those of the manifest."""
    options = schema.options if schema else {}
    replaced = {
        flag for flag, _ in options_in(tail, schema) if flag in options and options[flag].is_repeatable
    }
    return [setting for setting in settings if setting.flag not in replaced]


def without_variables(settings: list[Setting], schema: Schema | None) -> list[Setting]:
    """Drop settings that an environment variable overrides. The program reads the variable itself."""
    return [setting for setting in settings if not variable_for(setting.flag, schema)]


def resolve_values(
    settings: list[Setting], tail: tuple[str, ...], schema: Schema | None, *, with_environment: bool = True
) -> dict[str, dict[str, Any]]:
    """Return every option with its value and origin: default < manifest < environment < command line."""
    options = schema.options if schema else {}
    table: dict[str, dict[str, Any]] = {}
    arguments = arguments_in(tail, schema)
    for argument in schema.arguments if schema else []:
        name = argument.long
        if name in arguments:
            table[name] = {"value": arguments[name], "origin": f"<{name}>"}
        elif argument.default is not None:
            table[name] = {"value": convert(argument.default, argument), "origin": "default"}
    for flag, option in options.items():
        if option.default is not None:
            table[flag] = {"value": convert(option.default, option), "origin": "default"}
    for setting in settings:
        if setting.value is not None:
            known = options.get(setting.flag)
            value = convert_setting(setting.value_for(known), known) if known else setting.value
            table[setting.flag] = {"value": value, "origin": setting.origin}
            if not known and (text := setting.shown(None)) != flow(value):
                table[setting.flag]["written"] = text
    for flag, option in options.items():
        if with_environment and (variable := variable_for(flag, schema)):
            table[flag] = {"value": variable_value(variable, option), "origin": f"${variable}"}
    seen: set[str] = set()
    for flag, text in options_in(tail, schema):
        known = options.get(flag)
        value = convert(text, known) if known else text
        if known and flag in seen and known.is_list and isinstance(value, list):
            value = [*table[flag]["value"], *value]  # a list option may be repeated
        if known and flag in seen and known.is_dict and isinstance(value, dict):
            value = {**table[flag]["value"], **value}
        seen.add(flag)
        table[flag] = {"value": value, "origin": f"--no-{flag}" if text is False else f"--{flag}"}
    return table
