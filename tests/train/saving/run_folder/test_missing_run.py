"""A folder without a run is described, with the one that may be meant."""

import pytest

from flodl.core import TrainError
from flodl.train.saving.run_folder.missing_run import why_no_run


@pytest.fixture
def runs(make, data, tmp_path):
    make(checkpoint_dir=tmp_path / "digits").fit(data, epochs=1, batch_size=20)
    return tmp_path


def test_a_misspelled_folder_is_answered_with_a_similar_one(make, runs):
    with pytest.raises(TrainError, match=r"checkpoint_dir '.*digts' does not exist. Did you mean 'digits'\?"):
        make(checkpoint_dir=runs / "digts").restore_best()
    assert not (runs / "digts").exists()


def test_the_folder_above_runs_is_answered_with_their_names(make, runs):
    with pytest.raises(TrainError, match=r"has no saves of its own, but contains a run: 'digits'. Pass"):
        make(checkpoint_dir=runs).restore_best()


def test_a_folder_with_other_files_and_an_empty_one_have_no_saves(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    assert why_no_run(folder) == "is empty."
    (folder / "notes.txt").write_text("")
    assert why_no_run(folder) == "has no saves."


@pytest.mark.parametrize("resume", ["must", True])
def test_a_required_resume_repeats_what_was_written_and_names_a_similar_folder(make, data, runs, resume):
    with pytest.raises(TrainError) as raised:
        make(checkpoint_dir=runs / "digts").fit(data, epochs=1, batch_size=20, resume=resume)
    told = str(raised.value)
    assert told.startswith(f"resume={resume!r} needs a saved run, but checkpoint_dir ")
    assert told.endswith(
        "does not exist. Did you mean 'digits'? resume='auto' starts a new run where there is none."
    )


def test_resuming_from_a_misspelled_folder_names_a_similar_one(make, data, runs):
    with pytest.raises(TrainError, match=r"or a folder with an intact bundle. Did you mean 'digits'\?"):
        make(checkpoint_dir=runs / "new").fit(data, epochs=1, batch_size=20, resume=runs / "digts")
