"""A notice is taken once, by whoever listens."""

import os
import signal

import pytest

from flodl.train import Preempted
from flodl.train.leaving import EXIT_CODE, Notice

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs signals")


def told_and_left(notice, number):
    with notice.listening():
        assert not notice
        os.kill(os.getpid(), number)
        assert notice
        notice.leave()


def test_the_first_signal_is_noted_and_leaving_has_a_code_of_its_own():
    notice = Notice()
    with pytest.raises(Preempted) as caught:
        told_and_left(notice, signal.SIGTERM)
    assert caught.value.code == EXIT_CODE == 75
    assert caught.value.signal == "SIGTERM"
    assert not notice


def test_a_signal_that_nobody_acted_on_goes_to_those_who_listened_before():
    heard = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
    try:
        with Notice().listening():
            os.kill(os.getpid(), signal.SIGUSR1)
            assert not heard
        assert heard == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_at_a_prompt_the_keyboard_gives_the_prompt_back(monkeypatch):
    monkeypatch.setattr("sys.ps1", ">>> ", raising=False)
    with pytest.raises(KeyboardInterrupt):
        told_and_left(Notice(), signal.SIGINT)


def test_a_notice_of_an_earlier_run_is_forgotten():
    notice = Notice()

    def told_and_failed():
        with notice.listening():
            os.kill(os.getpid(), signal.SIGUSR1)
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        told_and_failed()
    assert not notice


def test_a_notebook_cell_can_be_interrupted_and_run_again(make, data, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.ps1", ">>> ", raising=False)

    def on_step_end(step):
        if step == 2 and not interrupted:
            interrupted.append(True)
            os.kill(os.getpid(), signal.SIGINT)

    interrupted = []
    trainer = make(checkpoint_dir=tmp_path, hooks=[on_step_end])
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(data, epochs=2, batch_size=8)
    assert trainer.updates == 2
    result = trainer.fit(data, epochs=2, batch_size=8)
    assert result.history == make().fit(data, epochs=2, batch_size=8).history
