"""`fdl monitor`: look at a run, live or long over, or at several side by side."""

from __future__ import annotations

import contextlib
import webbrowser
from pathlib import Path

import click

from flodl.cli.options import talk_options
from flodl.core.errors import MonitorError

_FILE = click.Path(dir_okay=False, path_type=Path)
_TEXT_FILE = click.Path(dir_okay=False, allow_dash=True, path_type=Path)
_STANDARD_OUTPUT = Path("-")
# A journal beyond this is opened by its index alone: nobody waits for a look at every line.
_MOST_LOOKED_AT_BYTES = 200_000_000


@click.command("monitor")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--html", type=_FILE, help="Write the page as one file that needs no server, and exit.")
@click.option("--csv", type=_TEXT_FILE, help="Write a table with a row for each epoch (- prints), and exit.")
@click.option("--log", "log_file", type=_TEXT_FILE, help="Write a line for each epoch (- prints), and exit.")
@click.option("--json", "as_json", is_flag=True, help="Print the epochs as JSON, and exit.")
@click.option("--port", default=3000, show_default=True, help="The port; the next free one if it is taken.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen; others need a token.")
@click.option("--token", help="Ask for this token; made by itself where others can reach the page.")
@click.option("--open/--no-open", "opens", default=False, help="Open the page in a browser.")
@talk_options
def command(
    runs: tuple[Path, ...],
    html: Path | None,
    csv: Path | None,
    log_file: Path | None,
    as_json: bool,
    port: int,
    host: str,
    token: str | None,
    opens: bool,
) -> None:
    """Show the page of a run: one that is training now, one that has ended, one that was killed.

    RUNS are run folders, each with a journal.jsonl. Several are shown side by side.
    """
    if (csv or log_file) and len(runs) > 1:
        raise click.UsageError("--csv and --log take one run. Name one, or use --html to compare several.")
    _look(runs)
    if html:
        from flodl.monitor.exports import save_html

        click.echo(f"written to {save_html(html, runs)}")
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
    if not (html or csv or log_file or as_json):
        _serve(runs, port=port, host=host, token=token, opens=opens)


def _look(runs: tuple[Path, ...]) -> None:
    """Refuse what is no journal, and tell how much of a journal is damaged.

    Without a word, either would look like a run that waits, or like one that has less to show.
    """
    from flodl.monitor.journal import complete_lines, decode, journal_file, read

    for file in map(journal_file, runs):
        if next(read(file), None) is None and not _may_have_begun(file):
            raise MonitorError(
                f"{file} is not a journal: nothing in it can be read. "
                "Name the folder of a run, which has a journal.jsonl."
            )
        if file.stat().st_size > _MOST_LOOKED_AT_BYTES:
            continue
        # A line that begins and ends as it should is taken at its word: that is much faster.
        doubtful = [
            line
            for line, _ in complete_lines(file)
            if not (line.startswith(b'{"id":') and line.endswith(b"}\n"))
        ]
        damaged = sum(1 for line in doubtful if line.strip() and decode(line) is None)
        if damaged:
            lines = "1 line that is" if damaged == 1 else f"{damaged} lines that are"
            click.echo(f"{file}: skipped {lines} damaged.", err=True)


def _may_have_begun(file: Path) -> bool:
    """Say whether a file is that of a run whose first line is still to come."""
    with open(file, "rb") as opened:
        first = opened.read(64)
        return not first or (first.startswith(b'{"id":') and b"\n" not in first + opened.read(1 << 20))


def _serve(runs: tuple[Path, ...], *, port: int, host: str, token: str | None, opens: bool) -> None:
    from flodl.monitor.server import FollowedRuns, Server

    followed = FollowedRuns(runs)
    news = followed.news if len(runs) == 1 else None
    with Server(
        followed.runs, last_id=followed.last_id, news=news, host=host, port=port, token=token
    ) as server:
        taken = f" (port {port} is taken)" if port not in (0, server.port) else ""
        click.echo(f"{server.url}{taken}\nCtrl-C ends it.")
        if opens:
            webbrowser.open(server.url)
        with contextlib.suppress(KeyboardInterrupt):  # the usual way to end it
            server.wait()
