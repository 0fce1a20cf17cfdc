"""Hooks that step a torch scheduler, without and with a state that is saved."""


class Stepping:
    def __init__(self, scheduler):
        self.scheduler = scheduler

    def on_step_end(self):
        self.scheduler.step()


class Saved(Stepping):
    def state_dict(self):
        return self.scheduler.state_dict()

    def load_state_dict(self, state):
        self.scheduler.load_state_dict(state)
