"""`fdl monitor`: show the dashboard of one or more runs, live or finished."""

from __future__ import annotations

import contextlib
import webbrowser
from pathlib import Path

import click

from flodl.cli.options import GivenPath, output_options

_FILE = GivenPath(dir_okay=False)
_TEXT_FILE = GivenPath(dir_okay=False, allow_dash=True)
_STANDARD_OUTPUT = Path("-")
# Larger journals are opened by their index only: checking every line would take too long.
_MAX_CHECKED_BYTES = 200_000_000


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
@click.option("--json", "as_json", is_flag=True, help="Print the epochs as JSON, and exit.")
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

    RUNS are run folders, each with a journal.jsonl. Several runs are shown next to each other. Nothing of the
    project is executed.
    """
    if as_json:  # `--json -` means standard output, as it does for a table
        runs = tuple(run for run in runs if run != _STANDARD_OUTPUT) or runs
    if (csv or log_file or rank_timeline) and len(runs) > 1:
        raise click.UsageError(
            "--csv, --log and --ranks take one run. Pass one run, or use --html to compare several."
        )
    _check_journals(runs)
    if html:
        from flodl.monitor.exports import save_html

        click.echo(f"written to {save_html(html, runs)}")
    if rank_timeline:
        from flodl.monitor.exports import save_rank_timeline

        click.echo(f"written to {save_rank_timeline(rank_timeline, runs[0])}")
    if csv or log_file:
        from flodl.monitor import exports

        for path, text, write in (
            (csv, exports.csv_text, exports.export_csv),
            (log_file, exports.log_text, exports.write_log),
        ):
            if path == _STANDARD_OUTPUT:
                click.echo(text(runs[0]), nl=False)
            elif path:
                click.echo(f"written to {write(path, runs[0])}")
    if as_json:
        from flodl.monitor.journal import dumps
        from flodl.monitor.snapshot import snapshot

        click.echo(dumps({str(run): snapshot(run, max_points=2)["history"] for run in runs}))
    if not (html or csv or log_file or rank_timeline or as_json):
        _serve(runs, port=port, host=host, token=token, open_browser=open_browser)


def _check_journals(runs: tuple[Path, ...]) -> None:
    """Raise if a file is not a journal, and warn about damaged lines.

    Otherwise it would look like a run that has not started, or like a shorter one.
    """
    from flodl.monitor.journal import damaged_lines, describe_damage, journal_file, read

    for file in map(journal_file, runs):
        next(read(file), None)
        if file.stat().st_size > _MAX_CHECKED_BYTES:
            continue
        if damaged := damaged_lines(file):
            click.echo(f"{file}: skipped {describe_damage(file, damaged)}.", err=True)


def _serve(runs: tuple[Path, ...], *, port: int, host: str, token: str | None, open_browser: bool) -> None:
    from flodl.monitor.server import FollowedRuns, Server

    followed = FollowedRuns(runs)
    poll = followed.poll if len(runs) == 1 else None
    with Server(
        followed.runs, last_id=followed.last_id, poll=poll, host=host, port=port, token=token
    ) as server:
        taken = f" (port {port} is in use)" if port not in (0, server.port) else ""
        click.echo(f"{server.url}{taken}\nPress Ctrl-C to stop.")
        if open_browser:
            webbrowser.open(server.url)
        with contextlib.suppress(KeyboardInterrupt):  # the usual way to stop
            server.wait()
