"""The command line of each run of a sweep."""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flodl.cli.args.parameter import format_value
from flodl.cli.args.schema import Schema
from flodl.cli.execution.entry_schema import changed_schema, load_schema
from flodl.cli.execution.plan import Plan, make_plan
from flodl.cli.execution.settings import Setting
from flodl.cli.execution.values import options_in
from flodl.cli.manifest.command_kind import Kind
from flodl.cli.manifest.loader import Manifest
from flodl.cli.manifest.lookup import Target, resolve_target
from flodl.cli.manifest.option_names import option_name
from flodl.core.errors import SetupError
from flodl.core.paths import suggestion

from .definition import Definition
from .run_record import RunRecord, program_files
from .space import PRESET, Dimension
from .space_checks import typed_space, value_problems


@dataclass(frozen=True)
class RunCommands:
    """Make the plan of each run: the command with its values, and with its own folder."""

    manifest: Manifest  # of the project
    definition: Definition
    sweep: Path
    folder_option: str

    def plan(self, values: dict[str, Any], folder_name: str, *, resume: bool = False) -> Plan:
        """Return what a run starts. Raise for values that the program does not accept."""
        definition = self.definition
        target = self._target(values)
        schema = None if target.kind is Kind.RUN else load_schema(target.manifest)
        self._check_folder_option(schema)
        folder = self._path_for(self.sweep / folder_name, target.manifest.folder)
        words = Setting(self.folder_option, folder, "", f"options.{self.folder_option}").words(schema)
        if resume and (saved := _resume_words(schema, self.sweep / folder_name)):
            words += [saved[0], self._path_for(saved[1], target.manifest.folder)]
        plan = make_plan(_with_words(target, [*_option_words(values, schema), *words]), without=values)
        origins = {dimension.name: dimension.origin for dimension in definition.space}
        swept = {
            name: {**plan.table[name], "origin": f"{origins[name]} (sweep, run {folder_name})"}
            for name in values
            if name != PRESET and name in plan.table
        }
        return replace(plan, table={**plan.table, **swept})

    def typed_space(self) -> tuple[Dimension, ...]:
        """Return the space with the types of the program's options."""
        space = self.definition.space
        target = self._target({one.name: one.points()[0] for one in space if one.name == PRESET})
        schema = None if target.kind is Kind.RUN else load_schema(target.manifest)
        return typed_space(space, schema) if schema else space

    def check_space(self) -> None:
        """Raise for swept options and values that the program does not have, naming where they are written.

        An option that has a value for all runs in the words of the command cannot be swept over as well.
        """
        space = self.definition.space
        first = {one.name: one.points()[0] if one.name == PRESET else None for one in space}
        target = self._target(first)
        schema = None if target.kind is Kind.RUN else load_schema(target.manifest)
        words = tuple(word for word in target.tail if word != "--") if schema is None else target.tail
        given = {option_name(flag) for flag, _value in options_in(words, schema)}
        if self.folder_option in given:
            raise SetupError(
                f"the command has --{self.folder_option}, but each run of a sweep gets a folder of its own. "
                f"Remove it, or choose the folder of the sweep with --out in front of the command: fdl sweep "
                f"--out runs/mine …. If it is not the folder of a run, name that option with --folder-option."
            )
        for dimension in space:
            if dimension.name in given:
                raise SetupError(
                    f"{dimension.origin}: --{dimension.name} is swept over, but the command also has a value "
                    f"for it, which no run would use. Remove --{dimension.name} there, or its sweep."
                )
            if place := _fixed_at(dimension.name, target):
                raise SetupError(
                    f"{dimension.origin}: --{dimension.name} is swept over, but the command line at {place} "
                    f"passes --{dimension.name} already. Remove it there, or the sweep over it."
                )
        if schema and any(value_problems(space, schema)):
            schema = changed_schema(target.manifest, schema) or schema
            for problem in value_problems(space, schema):
                raise SetupError(problem)

    def replaced(self) -> dict[str, str]:
        """Return the value that the manifest has for each swept option, with its origin."""
        first = {one.name: one.points()[0] for one in self.definition.space if one.name == PRESET}
        table = make_plan(self._target(first)).table
        found = {one.name: table.get(one.name, {}) for one in self.definition.space}
        return {
            name: f"{format_value(entry['value'])} ({entry['origin']})"
            for name, entry in found.items()
            if entry and entry["origin"] != "default"
        }

    def record(self, values: dict[str, Any]) -> RunRecord:
        """Return what a run with these values is made with, except for its folder."""
        target = self._target(values)
        schema = None if target.kind is Kind.RUN else load_schema(target.manifest)
        table = make_plan(_with_words(target, _option_words(values, schema)), without=values).table
        settings = {name: dict(entry) for name, entry in table.items() if name != self.folder_option}
        return RunRecord(json.loads(json.dumps(settings)), program_files(target))

    def _target(self, values: dict[str, Any]) -> Target:
        if self.folder_option in values:
            raise SetupError(
                f"--{self.folder_option} is the folder of a run, which the sweep chooses, so it cannot be "
                "swept over. Remove it, or name the option for the folder with --folder-option."
            )
        presets = [str(values[PRESET])] if PRESET in values else []
        name, *inner = (*self.definition.command, *presets)
        return resolve_target(self.manifest, name, (*inner, *self.definition.tail))

    def _check_folder_option(self, schema: Schema | None) -> None:
        if schema is None or not schema.options or self.folder_option in schema.options:
            return
        hint = suggestion(self.folder_option, schema.options, known_as="options")
        raise SetupError(
            f"the program has no option --{self.folder_option} for the folder of a run. {hint} Add it to the "
            "program, or name another one with --folder-option."
        )

    def _path_for(self, path: Path, program_folder: Path) -> str:
        """Return a path as the program sees it: inside the project, relative to the folder it starts in."""
        if path.resolve().is_relative_to(self.manifest.project):
            return os.path.relpath(path.resolve(), program_folder.resolve())
        return str(path.resolve())


def _option_words(values: dict[str, Any], schema: Schema | None) -> list[str]:
    """Return the words for the values of a run."""
    options = {name: value for name, value in values.items() if name != PRESET}
    return [
        word
        for name, value in options.items()
        for word in Setting(name, value, "", f"options.{name}").words(schema)
    ]


def _fixed_at(name: str, target: Target) -> str:
    """Return where the manifest passes an option in the text of a command line, or an empty string.

    Of a script, only the last command counts, because the values of a run are appended to it.
    """
    table = target.spec if target.kind is Kind.RUN else target.manifest.document
    for key in ("run", "append") if target.kind is Kind.RUN else ("entry",):
        lexer = shlex.shlex(str(table.value(key) or ""), posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        try:
            words = list(lexer)
        except ValueError:  # an open quote, which the shell itself will report
            continue
        operators = [at for at, word in enumerate(words) if word and set(word) <= set(";&|()")]
        last = words[operators[-1] + 1 :] if operators else words
        if any(word.partition("=")[0] == f"--{name}" for word in last):
            return str(table.entries[key].origin.relative_to(target.manifest.project))
    return ""


def _with_words(target: Target, words: list[str]) -> Target:
    """Return a target with more words at the end, which a script needs after `--`."""
    dashes = ("--",) if target.kind is Kind.RUN and words and "--" not in target.tail else ()
    return replace(target, tail=(*target.tail, *dashes, *words))


def _resume_words(schema: Schema | None, folder: Path) -> tuple[str, Path] | None:
    """Return `--resume` and the saved run below a folder, for a program with such an option.

    A program whose folder is the run itself needs no option: a Trainer resumes what it finds there.
    """
    option = schema.options.get("resume") if schema is not None else None
    if option is None or option.type not in ("path", "string") or (folder / "bundles").is_dir():
        return None
    saved = [path.parent for path in folder.glob("*/bundles") if any(path.iterdir())]
    return ("--resume", max(saved, key=lambda path: path.stat().st_mtime)) if saved else None
