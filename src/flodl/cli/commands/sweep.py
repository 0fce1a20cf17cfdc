"""`fdl sweep`: run a command of the project with many values, and compare the results."""

from __future__ import annotations

import shlex
import signal
from dataclasses import replace
from typing import Any

import click

from flodl.cli.dispatch import find_target
from flodl.cli.execution.exit_codes import describe_signal
from flodl.cli.manifest.command_kind import Kind
from flodl.cli.manifest.loader import Manifest
from flodl.cli.manifest.model import ManifestModel
from flodl.cli.manifest.validation import decode
from flodl.cli.options import GivenPath, SuggestingChoice, output_options
from flodl.cli.project import project_of
from flodl.cli.sweep import definition as definitions
from flodl.cli.sweep.commands import RunCommands
from flodl.cli.sweep.definition import Definition, define
from flodl.cli.sweep.report import as_json, describe_values, table_text, write_table
from flodl.cli.sweep.run_record import changed_program, check_settings
from flodl.cli.sweep.runner import SweepRun
from flodl.cli.sweep.search import ENGINE_SEARCHES, SEARCHES, Search, make_search, note_of
from flodl.cli.sweep.trials import OUTPUT, Outcome, load_trials, relative, run_folder
from flodl.core import log
from flodl.core.errors import ManifestError, SetupError
from flodl.core.formats import counted, format_duration, format_metric, shell_word
from flodl.core.metric_modes import Mode, known_mode

_SETTINGS = {"ignore_unknown_options": True, "allow_interspersed_args": False}
_SAVED = 75
DEFAULT = "run"


@click.command("sweep", context_settings=_SETTINGS)
@click.option(
    "--over",
    multiple=True,
    metavar="NAME=VALUES",
    help="Values of an option: hidden=16,64 or lr=1e-4..1e-1:log. For a grid, lr=1e-4..1e-1:log:4 has four.",
)
@click.option("--presets", metavar="A,B", help="Presets to try, as one more dimension.")
@click.option(
    "--search",
    type=SuggestingChoice(SEARCHES),
    help="How values are chosen. Default: grid, or random for ranges.",
)
@click.option("--runs", type=click.IntRange(1), help="Number of runs, except for a grid. Default: 10.")
@click.option(
    "--metric", metavar="NAME", help="The metric that runs are judged by. Default: one of the evaluation."
)
@click.option(
    "--mode",
    type=click.Choice(["min", "max"]),
    help="Whether lower or higher is better. Default: by the name.",
)
@click.option("--seed", type=int, help="The seed of the search. Default: 0.")
@click.option(
    "--out", type=GivenPath(), help="The folder of the sweep. Default: runs/sweep-NAME next to the manifest."
)
@click.option(
    "--jobs", type=click.IntRange(1), default=1, show_default=True, help="Number of runs at the same time."
)
@click.option(
    "--folder-option",
    default="output",
    show_default=True,
    metavar="NAME",
    help="The option of the program that takes the folder of a run.",
)
@click.option("--retry", is_flag=True, help="Rerun the runs that failed or finished without a metric.")
@click.option(
    "--dry-run", is_flag=True, help="Show the runs and where every value comes from, without running them."
)
@click.option(
    "--json", "json_output", is_flag=True, help="End with one JSON object; progress goes to stderr."
)
@output_options
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[NAME] [WORDS]...")
@click.pass_context
def command(ctx: click.Context, /, words: tuple[str, ...], **options: Any) -> int:
    """Run a command of this project's fdl.yml with many values, each in its own folder.

    NAME is a command, as in fdl NAME; its presets and options may follow. The values come from --over and
    --presets, or from `sweep:` in the manifest. Each run gets its folder with --output.

    The same command line resumes a sweep that was stopped or killed: finished runs are kept, interrupted
    ones continue. To follow it or to compare its runs: fdl monitor FOLDER.

    grid and random need nothing else; tpe and gp are Optuna's (pip install "flodl[sweep]"). The others are
    Ray Tune searchers, which need "flodl[ray]" and the package that they wrap: hyperopt,
    bayesian-optimization==1.4.3, optuna.
    """
    manifest = project_of(ctx).require()
    definition, entry = _definition(ctx, manifest, words, options)
    folder = options["out"] or entry.folder / "runs" / "-".join(["sweep", *definition.command])
    folder = folder.absolute()
    commands = RunCommands(manifest, definition, folder, options["folder_option"].removeprefix("--"))
    definition = replace(definition, space=commands.typed_space())
    commands = replace(commands, definition=definition)
    search = make_search(
        definition["search"], definition.space, num_runs=definition["runs"], seed=definition["seed"],
        runs_origin=definition.settings["runs"].origin,
    )  # fmt: skip
    try:
        _check_values(commands, search)
    except click.NoSuchOption as error:
        own = [name for parameter in ctx.command.params for name in parameter.opts]
        if error.option_name not in own:
            raise
        hint = f"{error.option_name} is an option of fdl sweep: put it before the command."
        raise click.UsageError(hint, ctx) from None
    if note := note_of(search):
        _say(note)
    if options["dry_run"]:
        _show(commands, search, json_output=options["json_output"])
    definitions.check(folder, definition)
    _check_runs(commands)
    if options["dry_run"]:
        return 0
    definitions.save(folder, definition)
    run = SweepRun(folder, commands, search, jobs=options["jobs"], retry=options["retry"])
    run.report = lambda what, outcome: _report(run, what, outcome)
    env = ["--env", manifest.overlay] if manifest.overlay else []
    again = shlex.join(["fdl", *env, "sweep", *_own_words(ctx)])
    return _run(run, again, json_output=options["json_output"])


def _definition(
    ctx: click.Context, manifest: Manifest, words: tuple[str, ...], options: dict[str, Any]
) -> tuple[Definition, Manifest]:
    """Return what to sweep, and the manifest of the program."""
    decode(ManifestModel, manifest.document)
    presets = [name.strip() for name in (options["presets"] or "").split(",") if name.strip()]
    given = {name: options[name] for name in ("search", "runs", "metric", "mode", "seed")}
    if words and not words[0].startswith("-"):
        target, _append = find_target(ctx, manifest, words[0], words[1:])
        entry, path, tail, kind = target.manifest, target.command_path, target.tail, target.kind
    elif manifest.document.value("entry"):
        entry, path, tail, kind = manifest, (), words, Kind.PATH
    else:
        known = ", ".join(sorted(manifest.commands.entries)) or "none"
        raise ManifestError(
            f"name a command to sweep: {manifest.path} has no `entry:`. Its commands: {known}."
        )
    decode(ManifestModel, entry.document)
    found = define(entry, command=path, tail=tail, over=options["over"], presets=presets, given=given)
    if found.has_presets and kind is not Kind.PATH:
        raise SetupError(
            f"`{' '.join(path)}` is a preset or a script already, so presets cannot be swept on top of it. "
            f"Leave out `{path[-1]}`: --presets refers to the presets of {_owner(path, entry)}."
        )
    if not path and not found.has_presets:
        if DEFAULT not in manifest.commands.entries:
            known = ", ".join(sorted(manifest.commands.entries)) or "none"
            raise ManifestError(f"name a command to sweep. The commands of {manifest.path}: {known}.")
        found = replace(found, command=(DEFAULT,))
    return found, entry


def _owner(path: tuple[str, ...], entry: Manifest) -> str:
    """Return which command has the presets: the one before a preset, or the program of the manifest."""
    return f"`{' '.join(path[:-1])}`" if path[:-1] else f"the program in {entry.path}"


def _check_values(commands: RunCommands, search: Search) -> None:
    """Raise for values that the program does not accept, before anything starts."""
    commands.check_space()
    is_engine = commands.definition["search"] in ENGINE_SEARCHES
    for number in range(1 if is_engine else search.num_runs):
        commands.plan(search.propose(number, [], "min"), f"{number + 1:03d}")


def _check_runs(commands: RunCommands) -> None:
    """Raise if runs in the folder were made with other settings; warn if their program has changed.

    A run that has failed without recording anything has no results that could be mixed with others.
    """
    kept = [
        (trial, trial.record, commands.record(trial.values))
        for trial in load_trials(commands.sweep)
        if trial.record is not None
        and not (trial.state == "failed" and run_folder(commands.sweep, trial) is None)
    ]
    check_settings(commands.sweep, [(trial.folder_name, old, now) for trial, old, now in kept])
    results = [(trial.folder_name, old, now) for trial, old, now in kept if trial.state != "failed"]
    if warning := changed_program(results):
        _say(f"warning: {warning}")


def _show(commands: RunCommands, search: Search, *, json_output: bool) -> None:
    definition = commands.definition
    is_engine = definition["search"] in ENGINE_SEARCHES
    numbers = range(0 if is_engine else search.num_runs)
    proposed = {f"{number + 1:03d}": search.propose(number, [], "min") for number in numbers}
    plans = {name: commands.plan(values, name) for name, values in proposed.items()}
    if json_output:
        import json

        facts = {"folder": str(commands.sweep), "num_runs": search.num_runs, **definition.to_json()}
        runs = [
            {"run": name, "values": proposed[name], "command": plan.command} for name, plan in plans.items()
        ]
        click.echo(json.dumps({**facts, "planned": runs}, indent=2))
        return
    instead = {name: f", instead of {value}" for name, value in commands.replaced().items()}
    rows = [
        (f"{dimension.name}: {dimension}", dimension.origin + instead.get(dimension.name, ""))
        for dimension in definition.space
    ]
    settings = {**definition.settings, "runs": replace(definition.settings["runs"], value=search.num_runs)}
    rows += [
        (f"{name}: {setting.value}", setting.origin)
        for name, setting in settings.items()
        if setting.value is not None
    ]
    column = max(len(text) for text, _ in rows) + 2
    click.echo(f"# in {relative(commands.sweep)}")
    click.echo("\n".join(f"{text:<{column}}# {origin}" for text, origin in rows))
    for name, plan in plans.items():
        click.echo(f"{name}  {shlex.join(plan.command)}")
    if is_engine:
        click.echo("The values of each run are chosen when it starts, from the results so far.")


def _report(run: SweepRun, what: str, outcome: Outcome) -> None:
    """Print what happens to a run, and keep table.csv up to date."""
    trial = outcome.trial
    head = f"run {trial.folder_name}/{run.search.num_runs:03d}  {describe_values(trial.values)}"
    if what in ("starts", "starts again", "resumes"):
        if what != "starts" or log.enabled(log.Verbosity.VERBOSE):
            _say(f"{head}  {what}")
        return
    metric, _mode, _reason = run.metric
    result = outcome.result(metric)
    parts = [head] + ([f"{metric}={format_metric(result)}"] if result is not None else [])
    parts += [format_duration(outcome.elapsed_s)] if outcome.elapsed_s is not None else []
    if what == "failed":
        output = relative(run.folder / trial.folder_name / OUTPUT)
        how = describe_signal(trial.signal) if trial.signal else f"failed with exit code {trial.exit_code}:"
        parts.append(f"{how} {'See' if trial.signal else 'see'} {output}")
    elif what != "finished":
        parts.append(what)
    _say("  ".join(parts))
    write_table(run.folder, run.outcomes())


def _run(run: SweepRun, again: str, *, json_output: bool) -> int:
    done = [trial for trial in load_trials(run.folder) if trial.state == "finished"]
    progress = f", {len(done)} of them done" if done else ""
    _say(
        f"sweep of {counted(run.search.num_runs, 'run')}{progress}. "
        f"Follow it: fdl monitor {shell_word(relative(run.folder))}"
    )
    stopped_by = run.run()
    outcomes = run.outcomes()
    metric, mode, reason = run.metric
    write_table(run.folder, outcomes)
    if json_output:
        from flodl.monitor.journal import dumps

        assumed = {"mode_is_assumed": True} if run.mode_is_assumed else {}
        click.echo(dumps(as_json(run.folder, outcomes, metric, mode) | assumed))
    else:
        click.echo(table_text(outcomes, metric, mode))
    if metric and not json_output and any(outcome.result(metric) is not None for outcome in outcomes):
        _say(_judgement(run, metric, mode, reason))
    elif any(outcome.trial.state == "finished" for outcome in outcomes) and not metric:
        _say(
            "No run has recorded a metric. Let the program write its journal to the folder that it is given: "
            "Trainer(…, checkpoint_dir=FOLDER) or Monitor(epochs, FOLDER)."
        )
    if stopped_by:
        _say(f"Stopped. To resume: {again}")
        return 130 if stopped_by == signal.SIGINT else _SAVED
    failed = [outcome for outcome in outcomes if outcome.trial.state == "failed"]
    if failed:
        _say(f"{counted(len(failed), 'run')} failed. To run them again, add --retry.")
    return 1 if failed else 0


def _judgement(run: SweepRun, metric: str, mode: Mode, reason: str) -> str:
    """Return the sentence that says how the runs were judged, and who chose that."""
    better = f"{'lower' if mode == 'min' else 'higher'} is better"
    if run.mode_is_assumed:
        chosen = "as asked" if reason == "--metric" else reason
        return (
            f"judged by {metric}, {chosen}. Its name does not say which values are better, so {better} was "
            "assumed: pass --mode min or --mode max."
        )
    asked = run.commands.definition.settings
    if asked["mode"].value is None or asked["metric"].value is not None:
        return f"judged by {metric} ({better}), {'as asked' if reason == '--metric' else reason}."
    origin = asked["mode"].origin
    chosen = "as the first metric" if known_mode(metric) is None else "by its name"
    return f"judged by {metric} ({better}, {'as asked' if origin == '--mode' else origin}), chosen {chosen}."


def _own_words(ctx: click.Context) -> list[str]:
    """Return the options and words that were given to this command, for a message."""
    words: list[str] = []
    for parameter in ctx.command.params:
        if ctx.get_parameter_source(parameter.name or "") is not click.core.ParameterSource.COMMANDLINE:
            continue
        if not isinstance(parameter, click.Option) or parameter.name in ("json_output", "retry"):
            continue
        value = ctx.params.get(parameter.name or "")
        if parameter.is_flag:
            words.append(parameter.opts[0])
        else:
            for item in value if isinstance(value, tuple) else (value,):
                words += [parameter.opts[0], str(item)]
    return [*words, *ctx.params["words"]]


def _say(text: str) -> None:
    if log.enabled(log.Verbosity.NORMAL):
        click.echo(text, err=True)
