"""`fdl monitor`: show the dashboard of one or more runs, live or finished."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import click

from flodl.cli.given_runs import GivenRuns, find_given_runs, report_damage, report_damage_later
from flodl.cli.options import GivenPath, check_folder, output_options
from flodl.core.errors import MonitorError

_FILE = GivenPath(dir_okay=False)
_TEXT_FILE = GivenPath(dir_okay=False, allow_dash=True)
_STANDARD_OUTPUT = Path("-")


@click.command("monitor")
@click.argument("runs", nargs=-1, required=True, type=GivenPath())
@click.option("--html", type=_FILE, help="Write the page as one file that needs no server, and exit.")
@click.option(
    "--csv", type=_TEXT_FILE, help="Write a table with one row per epoch (- for standard output), and exit."
)
@click.option(
    "--log", "log_file", type=_TEXT_FILE, help="Write one line per epoch (- for standard output), and exit."
)
@click.option(
    "--ranks",
    "rank_timeline",
    type=_FILE,
    help="Write the timeline of several ranks as an .svg picture or an .html page, and exit.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the runs with their settings, best and last values and epochs as JSON, and exit.",
)
@click.option("--port", default=3000, show_default=True, help="The port, or the next free one.")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="The address to listen on; a token is required unless it is loopback.",
)
@click.option("--token", help="The token to require; generated if other machines can reach the page.")
@click.option("--open/--no-open", "open_browser", default=False, help="Open the page in a browser.")
@output_options
def command(
    runs: tuple[Path, ...],
    html: Path | None,
    csv: Path | None,
    log_file: Path | None,
    rank_timeline: Path | None,
    as_json: bool,
    port: int,
    host: str,
    token: str | None,
    open_browser: bool,
) -> None:
    """Show the dashboard of a run that is training, has finished or was killed.

    RUNS are run folders, each with a journal.jsonl, or folders of runs, such as that of a sweep. Several runs
    are compared. Nothing of the project is executed.
    """
    if as_json:  # `--json -` means standard output, as it does for a table
        runs = tuple(run for run in runs if run != _STANDARD_OUTPUT) or runs
    given = find_given_runs(runs)
    if (csv or log_file or rank_timeline) and given.is_comparison:
        raise click.UsageError(
            "--csv, --log and --ranks take one run. Pass one run, or use --html to compare several."
        )
    if not (html or csv or log_file or rank_timeline or as_json):
        _serve(given, port=port, host=host, token=token, open_browser=open_browser)
        return
    for option, path in (("--html", html), ("--csv", csv), ("--log", log_file), ("--ranks", rank_timeline)):
        if path is not None and path != _STANDARD_OUTPUT:
            check_folder(option, path)
    report_damage(given.runs)
    if html and not given.runs:
        raise MonitorError(f"no run has started yet in {given.folders[0]}. Try again when one has.")
    if html:
        from flodl.monitor.exports import save_html

        click.echo(f"written to {save_html(html, given.runs, focus=given.focus)}")
    if rank_timeline:
        from flodl.monitor.exports import save_rank_timeline

        click.echo(f"written to {save_rank_timeline(rank_timeline, given.runs[0])}")
    if csv or log_file:
        from flodl.monitor import exports

        for path, text, write in (
            (csv, exports.csv_text, exports.export_csv),
            (log_file, exports.log_text, exports.write_log),
        ):
            if path == _STANDARD_OUTPUT:
                click.echo(text(given.runs[0]), nl=False)
            elif path:
                click.echo(f"written to {write(path, given.runs[0])}")
    if as_json:
        from flodl.monitor.exports import comparison_json

        click.echo(comparison_json(given.runs, focus=given.focus))


def _serve(given: GivenRuns, *, port: int, host: str, token: str | None, open_browser: bool) -> None:
    from flodl.monitor.server import FollowedRuns, Server

    if not given.is_comparison:
        report_damage(given.runs)
    followed = FollowedRuns(given.single, folders=given.folders, focus=given.focus)
    poll = None if followed.runs.is_comparison else followed.poll
    with (
        Server(
            followed.runs, last_id=followed.last_id, poll=poll, host=host, port=port, token=token
        ) as server,
        contextlib.suppress(KeyboardInterrupt),  # the usual way to stop
    ):
        taken = f" (port {port} is in use)" if port not in (0, server.port) else ""
        click.echo(f"{server.url}{taken}\nPress Ctrl-C to stop.")
        if open_browser:
            import webbrowser

            webbrowser.open(server.url)
        if given.is_comparison:
            # The runs are summarized while the browser opens.
            threading.Thread(target=followed.runs.comparison, daemon=True).start()
            threading.Thread(target=report_damage_later, args=(given.runs,), daemon=True).start()
        server.wait()
