"""What an error during a trial means."""

import pytest
import torch

from flodl.engine.verify.failure import StepFailed, explain_failure, step_errors
from flodl.engine.verify.refusals import ChangedDuringTrial, Refused


def test_an_error_of_the_step_is_wrapped_with_its_origin():
    error = ValueError("a bad batch")
    with pytest.raises(StepFailed, match="a bad batch") as caught, step_errors():
        raise error
    assert caught.value.error is error
    assert not caught.value.may_have_updated


def test_an_error_in_an_update_may_have_changed_parameters():
    with pytest.raises(StepFailed) as caught, step_errors(updating=True):
        raise ValueError("an optimizer that fails")
    assert caught.value.may_have_updated


def test_an_interrupt_is_not_wrapped():
    with pytest.raises(KeyboardInterrupt), step_errors():
        raise KeyboardInterrupt


def test_out_of_memory_is_the_same_reason_in_the_step_and_around_it():
    error = torch.OutOfMemoryError("CUDA out of memory")
    assert explain_failure(error, "captured") == explain_failure(StepFailed(error), "captured")
    assert explain_failure(error, "captured").no_memory


def test_only_a_change_during_the_trial_lets_it_repeat():
    assert explain_failure(ChangedDuringTrial("the learning rate changed"), "compiled").may_repeat
    assert not explain_failure(Refused("it reads an iterator"), "compiled").may_repeat
