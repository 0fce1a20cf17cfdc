"""Cleaning up after an error of a device."""

import pytest
import torch

from flodl.engine.device.failure import unless_device_failed


def test_an_error_of_the_cleanup_is_raised_if_the_device_works():
    with pytest.raises(torch.AcceleratorError, match="second"), unless_device_failed(ValueError("first")):
        raise torch.AcceleratorError("second")


def test_other_errors_of_the_cleanup_are_raised():
    with pytest.raises(ValueError, match="second"), unless_device_failed(torch.AcceleratorError("first")):
        raise ValueError("second")
