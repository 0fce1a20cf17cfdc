"""`fdl monitor`: look at a run, live or long over, or at several side by side."""

from __future__ import annotations

import contextlib
import webbrowser
from pathlib import Path

import click

from flodl.cli.options import talk_options

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("monitor")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--html", type=_FILE, help="Write the page as one file that needs no server, and exit.")
@click.option("--csv", type=_FILE, help="Write a table with a row for each epoch, and exit.")
@click.option("--log", "log_file", type=_FILE, help="Write a line of text for each epoch, and exit.")
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
    if html:
        from flodl.monitor.archive import save_html

        click.echo(f"written to {save_html(html, runs)}")
    if csv or log_file:
        from flodl.monitor import exports

        if csv:
            click.echo(f"written to {exports.export_csv(csv, runs[0])}")
        if log_file:
            click.echo(f"written to {exports.write_log(log_file, runs[0])}")
    if as_json:
        from flodl.monitor.journal.lines import dumps
        from flodl.monitor.snapshot import snapshot

        click.echo(dumps({str(run): snapshot(run, most=2)["history"] for run in runs}))
    if not (html or csv or log_file or as_json):
        _serve(runs, port=port, host=host, token=token, opens=opens)


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
