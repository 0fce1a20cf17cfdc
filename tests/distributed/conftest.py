"""A world of simulated ranks that obey a coordinator, and check every command."""

import json

import pytest

from flodl.distributed.coordination import (
    Arrived,
    Coordinator,
    CoordinatorSettings,
    Failed,
    Joined,
    Leaving,
    Lost,
    Reduced,
    Tick,
    from_journal,
    to_journal,
)
from flodl.distributed.coverage import Epochs


class Rank:
    """What a real rank would know: its weights are one number, to which every position adds its own."""

    def __init__(self):
        self.generation = 0
        self.version = None
        self.work = None
        self.progress = 0.0


class World:
    """Ranks with numbers as weights. `batch_ms` has the speed of each; it may be changed at any time."""

    def __init__(self, coordinator, settings, batch_ms=None):
        self.coordinator, self.settings = coordinator, settings
        self.batch_ms = batch_ms or {}
        self.now = 0.0
        self.ranks, self.zombies = {}, []
        self.generation, self.members = 0, ()
        self.reduce, self.contributed = None, {}
        self.consensus = {}
        self.saved = None
        self.commands, self.journal = [], [to_journal(coordinator)]

    def send(self, event):
        self.journal.append(to_journal(event, self.now))
        commands = self.coordinator.handle(self.now, event)
        for command in commands:
            self.commands.append(command)
            getattr(self, f"on_{type(command).__name__.lower()}")(command)
        return commands

    def reasons(self, kind):
        return [each.reason for each in self.commands if isinstance(each, kind)]

    def last(self, kind):
        return [each for each in self.commands if isinstance(each, kind)][-1]

    # Commands.

    def on_rebuild(self, command):
        assert command.generation > self.generation, "generations are numbered upwards"
        self.generation, self.members = command.generation, command.members
        for rank in command.members:
            if rank in self.ranks:
                self.ranks[rank].generation = command.generation

    def on_plan(self, command):
        assert command.generation == self.generation
        for plan, lease, position in zip(command.plans, command.leases, command.positions):
            assert lease.rank in self.members
            assert position[0] >= self.coordinator.committed - 1e-9
            rank = self.ranks.get(lease.rank)
            if rank is None:
                continue
            assert rank.work is None, "a rank trains one plan at a time"
            rank.work = (plan, lease, command.generation)

    def on_reduce(self, command):
        assert command.generation == self.generation, "everyone acts on the published generation"
        assert set(command.members) <= set(self.members)
        assert self.reduce is None or command.generation > self.reduce.generation
        assert command.bases[command.members.index(command.donor)] == command.window
        if command.window == 0 and 0 not in self.consensus:
            self.consensus[0] = 0.0
            self.ranks[command.donor].version = 0
        for rank, weight, base in zip(command.members, command.weights, command.bases):
            found = self.ranks.get(rank)
            if found is None:
                continue
            assert weight == 0 or found.version == base, "the base of a contribution is what the rank holds"
            if command.attempt == 0 and weight:
                self.contributed[rank], found.progress = found.progress, 0.0
        self.reduce = command

    def on_commit(self, command):
        found, self.reduce = self.reduce, None
        assert command.members == found.members
        total = sum(found.weights)
        sums = [self.contributed.get(rank, 0.0) * w for rank, w in zip(found.members, found.weights) if w]
        mean = sum(sums) / total if total else 0.0
        self.consensus[command.version] = self.consensus[command.window] + found.scale * mean
        assert command.batches == total, "the weight of a window is the work that is committed"
        for rank in found.members:
            if rank in self.ranks:
                self.ranks[rank].version = command.version

    def on_savepoint(self, command):
        if command.writer in self.ranks:
            assert self.ranks[command.writer].version == command.version, "the writer holds the consensus"
            self.save()

    def on_evict(self, command):
        self.kill(command.rank)

    def on_refuse(self, command):
        if command.rank in self.ranks:
            self.ranks[command.rank].progress = 0.0

    def on_release(self, command):
        del self.ranks[command.rank]

    def on_finished(self, command):
        assert self.coordinator.run.epochs.is_finished

    def on_stop(self, command):
        pass

    # What ranks do.

    def join(self, *ranks):
        for rank in ranks:
            self.ranks[rank] = Rank()
            self.send(Joined(rank))

    def arrive(self, rank, *, steps=None, loss=1.0, compute_ms=None):
        found = self.ranks[rank]
        (plan, lease, generation), found.work = found.work, None
        steps = lease.batches if steps is None else steps
        took_ms = compute_ms if compute_ms is not None else steps * self.batch_ms.get(rank, 10.0)
        found.progress += steps
        self.now += 0.001
        return self.send(Arrived(rank, generation, plan, steps, took_ms, loss=loss))

    def kill(self, rank):
        """End a process without a word; a zombie of it may report later."""
        found = self.ranks.pop(rank, None)
        if found is not None and found.work is not None:
            self.zombies.append((rank, found.work))

    def lose(self, rank, reason="its process ended with code 1"):
        self.kill(rank)
        self.send(Lost(rank, reason))

    def wake(self, rank_work):
        rank, (plan, lease, generation) = rank_work
        return self.send(Arrived(rank, generation, plan, lease.batches, 10.0))

    def complete(self, *, reduce_ms=1.0, divergence=0.01):
        """All members of the reduction report that it is done."""
        found = self.reduce
        live = tuple(rank for rank in found.members if rank in self.ranks)
        self.now += reduce_ms
        return self.send(Reduced(live, found.window, found.generation, reduce_ms, divergence))

    def fail(self, reason="connection closed by peer"):
        """All living members of the reduction report that it failed."""
        found = self.reduce
        for rank in found.members:
            if rank in self.ranks:
                self.send(Failed(rank, found.window, found.generation, reason))

    def tick(self, now=None, alive=()):
        wake_ms = self.coordinator.wake_ms if now is None else now
        self.now = max(self.now, wake_ms) if wake_ms < float("inf") else self.now + 1.0
        return self.send(Tick(tuple(alive)))

    def leave(self, rank):
        return self.send(Leaving(rank))

    def window(self, **kwargs):
        """Everyone arrives, and the reduction completes."""
        for rank in sorted(self.ranks):
            if self.ranks[rank].work is not None:
                self.arrive(rank)
        return self.complete(**kwargs)

    def restart_supervisor(self):
        before = self.coordinator.state()
        self.coordinator = from_journal(self.journal, self.settings)
        assert self.coordinator.state() == before
        return self.coordinator.outstanding()

    def restart_everything(self):
        """Continue from the last save point with new ranks."""
        self.coordinator = Coordinator.resume(self.saved, self.settings)
        self.ranks, self.zombies, self.reduce = {}, [], None
        self.generation = self.saved["membership"]["generation"]
        self.journal = [to_journal(self.coordinator)]

    def save(self):
        self.saved = json.loads(json.dumps(self.coordinator.state()))

    def lose_the_silent(self):
        """The supervisor notices every process that ended."""
        for rank in list(self.coordinator.run.seats):
            if rank not in self.ranks:
                self.lose(rank)

    def finish(self, most=500):
        """Let the remaining ranks do what is left."""
        for _ in range(most):
            if self.coordinator.status in ("finished", "stopped"):
                return
            self.lose_the_silent()
            if self.reduce is not None:
                self.complete()
                continue
            at_work = [rank for rank in sorted(self.ranks) if self.ranks[rank].work is not None]
            if at_work:
                self.arrive(at_work[0])
            else:
                self.tick()
        raise AssertionError(f"not finished: {self.coordinator.state()}")


@pytest.fixture(scope="session")
def make_world():
    def make(*ranks, num_samples=1000, batch_size=4, num_epochs=1, overlap=False, batch_ms=None, **settings):
        settings.setdefault("start_ranks", max(1, len(ranks)))
        found = CoordinatorSettings(**settings)
        epochs = Epochs(
            num_samples=num_samples, batch_size=batch_size, num_epochs=num_epochs, overlap=overlap
        )
        world = World(Coordinator(epochs, found), found, batch_ms)
        world.join(*ranks)
        return world

    return make
