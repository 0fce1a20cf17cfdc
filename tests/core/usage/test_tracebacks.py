"""Tracebacks show the frames of the user; the inside of flodl is shown for bugs and for debugging."""

import traceback
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from flodl import FlodlError, set_verbosity
from flodl.core.usage.calls import DataCallError, explain_calls
from flodl.core.usage.tracebacks import hide_own_frames
from flodl.engine.settings import StepSettings


def functions_of(error):
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


def inside(text, **values):
    """Return a function `run` of a file of flodl."""
    import flodl.core.usage.tracebacks as own

    namespace = {"hide_own_frames": hide_own_frames, "FlodlError": FlodlError, **values}
    exec(compile(text, own.__file__, "exec"), namespace)
    return namespace["run"]


def boundary(body, **values):
    """Return a public function of flodl that calls a private one with this body."""
    return inside(
        f"""
def run():
    try:
        inner()
    except BaseException as error:
        hide_own_frames(error)
        raise

def inner():
    {body}
""",
        **values,
    )


def of_user(error):
    raise error


def caught(function, *arguments):
    try:
        function(*arguments)
    except BaseException as error:
        return error
    raise AssertionError


def test_an_error_of_the_user_keeps_only_the_frames_of_the_user():
    raised = ValueError("bad label")
    raised.add_note("in sample 3")
    error = caught(boundary("of_user(raised)", of_user=of_user, raised=raised))
    assert error is raised
    assert functions_of(error) == ["caught", "of_user"]
    assert error.__notes__ == ["in sample 3"]


def test_an_flodl_error_ends_at_the_line_of_the_user():
    error = caught(boundary("raise FlodlError('no data')"))
    assert functions_of(error) == ["caught"]


def test_a_bug_in_flodl_keeps_all_frames():
    error = caught(boundary("{}['missing']"))
    assert functions_of(error) == ["caught", "run", "inner"]


def test_torch_called_by_flodl_is_a_bug_but_out_of_memory_is_not():
    error = caught(boundary("torch.nn.functional.linear(1, 2)", torch=torch))
    assert functions_of(error) == ["caught", "run", "inner"]
    full = torch.OutOfMemoryError("CUDA out of memory")
    assert functions_of(caught(boundary("raise full", full=full))) == ["caught"]


def test_frames_of_torch_below_those_of_the_user_stay():
    error = caught(boundary("of_user()", of_user=lambda: nn.Linear(2, 1)(torch.ones(1, 3))))
    assert functions_of(error) == ["caught", "<lambda>", "_wrapped_call_impl", "_call_impl", "forward"]


def test_a_module_of_torch_is_code_of_the_user():
    error = caught(boundary("model(x)", model=nn.Linear(2, 1), x=torch.ones(1, 3)))
    assert functions_of(error) == ["caught", "_wrapped_call_impl", "_call_impl", "forward"]


def test_the_cause_and_the_context_stay_and_are_shortened_too():
    body = "\n    ".join(
        ["try:", "    of_user(first)", "except ValueError as error:", "    raise FlodlError('no') from error"]
    )
    first = ValueError("first")
    error = caught(boundary(body, of_user=of_user, first=first))
    assert functions_of(error) == ["caught"]
    assert error.__cause__ is first
    assert error.__context__ is first
    assert functions_of(first) == ["of_user"]


def test_cyclic_exception_chains_terminate():
    one, other = ValueError("one"), ValueError("other")
    one.__context__, other.__context__ = other, one
    assert caught(boundary("of_user(one)", of_user=of_user, one=one)) is one


def test_an_error_whose_class_is_frozen_is_shortened():
    @dataclass(frozen=True)
    class Frozen(Exception):
        code: int

    error = caught(boundary("of_user(one)", of_user=of_user, one=Frozen(3)))
    assert functions_of(error) == ["caught", "of_user"]


def test_all_frames_are_kept_for_debugging():
    set_verbosity("debug")
    try:
        error = caught(boundary("raise FlodlError('no data')"))
    finally:
        set_verbosity("normal")
    assert functions_of(error) == ["caught", "run", "inner"]


def test_explained_calls_have_no_frames_of_flodl():
    @explain_calls(DataCallError)
    def read(path):
        raise TypeError("not a path")

    assert functions_of(caught(read, 1)) == ["caught", "read"]
    assert functions_of(caught(lambda: read(pth=1))) == ["caught", "<lambda>"]


def test_pytest_reads_a_shortened_traceback():
    with pytest.raises(FlodlError, match="no data") as found:
        boundary("raise FlodlError('no data')")()
    assert [entry.name for entry in found.traceback] == ["test_pytest_reads_a_shortened_traceback"]
    assert found.value.__traceback__.tb_frame.f_locals["found"] is found


def test_the_methods_of_a_dataclass_of_flodl_are_frames_of_flodl():
    assert functions_of(caught(lambda: StepSettings(accumulate=0))) == [
        "caught",
        "<lambda>",
        "__init__",
        "__post_init__",
    ]
    error = caught(boundary("settings(accumulate=0)", settings=StepSettings))
    assert functions_of(error) == ["caught"]
