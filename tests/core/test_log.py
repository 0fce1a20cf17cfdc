"""Printing: five levels, two streams, arguments that are evaluated only if the line is printed."""

import logging
import os
import subprocess
import sys

import pytest

from flodl.core import Verbosity, log, set_verbosity, verbosity


@pytest.fixture(autouse=True)
def _restore_level():
    before = verbosity()
    yield
    set_verbosity(before)


LEVEL_OF = {"msg": 1, "verbose": 2, "debug": 3, "trace": 4, "error": 0}


@pytest.mark.parametrize("level", list(Verbosity))
@pytest.mark.parametrize("function", LEVEL_OF)
def test_a_line_is_printed_from_its_level_up_on_its_stream(function, level, capsys):
    set_verbosity(level)
    getattr(log, function)("value %d", 3)
    printed = capsys.readouterr()
    printed_at_level = level >= LEVEL_OF[function]
    to_stdout = function in ("msg", "verbose")
    assert printed.out == ("value 3\n" if printed_at_level and to_stdout else "")
    assert printed.err == ("value 3\n" if printed_at_level and not to_stdout else "")


def test_arguments_are_called_only_when_the_line_is_printed(capsys):
    calls = []

    def costly() -> str:
        calls.append(1)
        return "seen"

    set_verbosity("normal")
    log.debug("value %s", costly)
    log.debug(lambda: f"value {costly()}")
    assert calls == []
    set_verbosity("debug")
    log.debug("value %s", costly)
    log.debug(lambda: f"value {costly()}")
    assert capsys.readouterr().err == "value seen\nvalue seen\n"


@pytest.mark.parametrize(
    ("given", "level"),
    [
        (0, 0),
        ("0", 0),
        ("quiet", 0),
        (" Normal ", 1),
        ("VERBOSE", 2),
        (Verbosity.DEBUG, 3),
        ("trace", 4),
        (4, 4),
    ],
)
def test_a_level_is_a_number_or_a_name_in_any_case(given, level):
    set_verbosity(given)
    assert verbosity() is Verbosity(level)
    assert log.enabled(Verbosity(level))
    assert level == 4 or not log.enabled(Verbosity(level + 1))


@pytest.mark.parametrize("given", ["loud", 7, "-1", ""])
def test_an_unknown_level_is_refused_with_the_known_ones(given):
    with pytest.raises(ValueError, match="is not a verbosity level"):
        set_verbosity(given)


def test_other_handlers_can_listen(caplog):
    logger = logging.getLogger("flodl")
    logger.addHandler(caplog.handler)
    try:
        set_verbosity("verbose")
        log.verbose("heard")
    finally:
        logger.removeHandler(caplog.handler)
    assert [(record.levelname, record.message) for record in caplog.records] == [("VERBOSE", "heard")]


@pytest.mark.parametrize(
    ("value", "out", "err"),
    [
        (None, "normal\n", ""),
        ("quiet", "", ""),
        ("2", "normal\nverbose\n", ""),
        (" TRACE ", "normal\nverbose\n", "debug\ntrace\n"),
        (
            "loud",
            "normal\n",
            "FLODL_VERBOSITY: 'loud' is not a verbosity level (0 to 4, or a name). The levels here are "
            "'quiet', 'normal', 'verbose', 'debug', 'trace'. Using 'normal'.\n",
        ),
    ],
)
def test_the_environment_sets_the_level(value, out, err):
    environment = {key: text for key, text in os.environ.items() if key != "FLODL_VERBOSITY"}
    if value is not None:
        environment["FLODL_VERBOSITY"] = value
    code = (
        "from flodl.core import log\n"
        "log.msg('normal'); log.verbose('verbose'); log.debug('debug'); log.trace('trace')"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (out, err)
