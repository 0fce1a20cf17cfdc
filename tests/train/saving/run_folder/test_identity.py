"""The run that a bundle belongs to."""

import numpy as np
import pytest

from flodl.train.saving.run_folder.identity import RunIdentity


@pytest.mark.parametrize("wrong", [np.arange(3.0), 5, ["x"], None])
def test_an_id_of_another_type_in_a_forged_bundle_is_taken_for_none(tmp_path, wrong):
    assert RunIdentity(tmp_path).compare(None, {"run": {"id": wrong}}) == []
    assert RunIdentity(tmp_path).compare(None, {"run": wrong}) == []
