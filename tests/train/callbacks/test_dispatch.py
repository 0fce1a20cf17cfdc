"""Hooks that would never be called are rejected."""

import pytest

from flodl.core import TrainError
from flodl.train import EarlyStopping


def test_a_misspelled_method_next_to_a_hook_is_an_error_with_a_suggestion(make):
    class Mine:
        def on_start(self): ...
        def on_epoch_ends(self): ...

    with pytest.raises(
        TrainError, match=r"Mine has a method 'on_epoch_ends', .* Did you mean 'on_epoch_end'"
    ):
        make(hooks=[Mine()])


def test_an_attribute_that_begins_like_a_hook_is_not_an_error(make):
    class Mine:
        on_gpu = False

        def on_start(self): ...

    make(hooks=[Mine()])


def test_a_class_in_place_of_a_hook_is_an_error(make):
    with pytest.raises(TrainError, match=r"the class EarlyStopping, .* hooks=\[EarlyStopping\(…\)\]"):
        make(hooks=[EarlyStopping])


def test_a_class_whose_hooks_are_static_methods_is_a_hook(make, data):
    class Mine:
        @staticmethod
        def on_epoch_end(epoch):
            seen.append(epoch)

    seen = []
    make(hooks=[Mine]).fit(data, epochs=1, batch_size=8)
    assert seen == [0]
