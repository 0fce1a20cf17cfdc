"""Tries a faster tier on real batches: run eagerly, rerun on the candidate, compare, restore everything."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from flodl.observe import Book

from ..batch.signature import Signature, opaque_part
from ..batch.tree import static_copy, tensors_of
from ..capture.conditions import can_record
from ..capture.recording import rehearse
from ..capture.runner import Runner
from ..compile.memory_format import LayoutChoice
from ..errors import HostSync, NotCapturable
from ..guards.recompile import GuardFailed
from ..optimizer.prepare import Readiness
from ..program.outcome import Outcome
from ..program.program import StepBody
from ..program.runner import EagerRunner, Micro, Phase
from ..settings import Tier
from ..state.snapshot import Snapshot
from .candidate import CandidateBuilder
from .distances import Values, WindowOutputs
from .failure import StepFailed, step_errors
from .gradients import Gradients, copy_gradients
from .refusals import ChangedDuringTrial, Refused, WaitsForDevice
from .reruns import rerun, set_gradients
from .verdict import Verdict

# Windows in a row that cannot be compared (not finite, or a different shape) before a trial is given up.
MAX_SKIPPED = 50


class Trial:
    """One candidate under test; training itself continues eagerly.

    Everything that the candidate changes is restored. An update is rerun only if it is part of a recording,
    which requires one of torch's own optimizers: where others keep their state is unknown.
    """

    def __init__(
        self,
        tier: Tier,
        body: StepBody,
        readiness: Readiness,
        *,
        tune: str | None = None,
        layout: LayoutChoice | None = None,
    ) -> None:
        self.tier = tier
        self._body = body
        self._eager = EagerRunner(body)
        # Whether the candidate includes the update.
        self._updates = body.device.type == "cuda" and readiness.capturable and body.reduction is None
        self._builder = CandidateBuilder(
            tier, body, readiness, updates=self._updates, tune=tune, layout=layout
        )
        self._window: list[Micro] = []
        self._batches: list[Any] = []
        self._before: Snapshot | None = None
        # Eager's gradients from before the update, if the candidate does not include it.
        self._gradients: Gradients = []
        # The named values of the last micro-batch, from the real run.
        self._values: Values = {}
        self._skipped = 0
        self._shapes: list[Signature] = []
        # The part of the last batch that can only be compared by identity.
        self._opaque: Any = None
        self._records_metrics = False
        # Where the eager step waits for the device, if that does not rule out the tier.
        self._sync = ""
        self._verdict = Verdict(tier, body, updates=self._updates, builder=self._builder)

    @property
    def cost_s(self) -> float:
        """The seconds spent on making the candidate."""
        return self._builder.cost_s

    @property
    def summary(self) -> str:
        """How close the candidate is to eager, and how it was made."""
        folded = f"; the compiler removed a host sync: {self._sync}" if self._sync else ""
        return f"{self._verdict.summary}{self._builder.summary}{folded}"

    def watch(self, micro: Micro) -> Outcome:
        """Run a micro-batch eagerly, and keep it for the comparison."""
        try:
            outcome = self.run_and_keep(micro)
            self._values = outcome.values
            return outcome
        except BaseException:
            # An incomplete window cannot be compared.
            self._before = None
            raise

    def run_and_keep(self, micro: Micro) -> Outcome:
        """Run a micro-batch eagerly, on CUDA as a rehearsal of the recording; raise if that cannot work."""
        if micro.opens:
            if changed := self._builder.what_changed():
                raise ChangedDuringTrial(
                    f"{changed} while the {self.tier} step was being compared with eager"
                )
            self._builder.make_room()
            self._window, self._batches = [], []
            if self._changes_carried(micro):
                self._before = None
                self._count_skipped("started without carried values or changed their shape")
                return self._run_eagerly(micro)
            self._before = Snapshot(self._body, micro.batch, self._body.side_effects.written)
            self._refuse_iterators(self._before)
        elif self._before is None or self._changes_carried(micro):
            self._before = None
            return self._run_eagerly(micro)
        if any(leaf.grad_fn is not None for leaf in tensors_of(micro.batch)):
            raise Refused(
                f"the step cannot be {self.tier}: its batch was computed with gradients, which would flow "
                "back once for every comparison and never from a recording; compute it in the step function, "
                "or detach it"
            )
        # Before the window ends, the caller may write the next batch into the same tensors.
        kept = micro if micro.phase is Phase.ONLY else replace(micro, batch=static_copy(micro.batch))
        self._window.append(kept)
        self._batches.append(micro.batch)
        records = self._num_records()
        outcome = self._run(micro)
        self._records_metrics |= self._num_records() != records
        return outcome

    def _num_records(self) -> int:
        """Return how often metrics were recorded in books that the step reaches."""
        return (
            0
            if self._before is None
            else sum(book.num_records for book in self._before.reachable.of_class(Book))
        )

    def _run(self, micro: Micro) -> Outcome:
        if self._builder.candidate is not None or self._sync or not can_record(self._body.device):
            return self._run_eagerly(micro)
        if any(leaf.dim() == 0 and leaf.device.type == "cpu" for leaf in tensors_of(micro.batch)):
            raise Refused(
                f"the step cannot be {self.tier}: the batch holds one number on the CPU, which a recording "
                "would keep unchanged; pass a tensor on the device, or a plain number"
            )
        return self._rehearse(micro)

    def _rehearse(self, micro: Micro) -> Outcome:
        """Run a micro-batch eagerly under the rules of a recording; undo it if it breaks them."""
        # At the start of a window, its snapshot is that of this moment.
        before = self._before if micro.opens and self._before else Snapshot(self._body, micro.batch)
        accumulated = None if micro.opens else copy_gradients(self._body)
        try:
            outcome = rehearse(lambda: self._eager.run_without_update(micro))
            if micro.closes and self._updates and not self._body.updater.starts_parameters():
                rehearse(lambda: self._body.update(micro.correction))
                return outcome
        except (NotCapturable, torch.OutOfMemoryError) as error:
            before.restore()
            if accumulated is not None:
                set_gradients(self._body, accumulated)
            if isinstance(error, torch.OutOfMemoryError):
                raise StepFailed(error) from error
            if not isinstance(error, HostSync):
                raise Refused(f"the step cannot be {self.tier}: {error}") from error
            if self.tier != "compiled":
                raise WaitsForDevice(f"the step cannot be {self.tier}: {error}") from error
            # The compiler may fold what is read into a constant: see whether the compiled step waits too.
            self._sync, self._builder.is_waiting = str(error), True
            return self._run_eagerly(micro)
        if micro.closes:
            self._close(micro)
        return outcome

    def _run_eagerly(self, micro: Micro) -> Outcome:
        with step_errors():
            outcome = self._eager.run_without_update(micro)
        if micro.closes:
            self._close(micro)
        return outcome

    def _close(self, micro: Micro) -> None:
        if self._body.updater.starts_parameters():
            # A parameter gets its first update; the optimizer state that this creates cannot be undone.
            self._before = None
        elif not self._updates:
            try:
                self._gradients = copy_gradients(self._body)
            except torch.OutOfMemoryError:
                # The window is fine, but there is no memory to compare it.
                self._before = None
        with step_errors(updating=True):
            self._body.update(micro.correction, samples=micro.window_samples)

    def end_window(self) -> Runner | None:
        """Compare a window that has ended; return the candidate once enough windows have passed."""
        before, window = self._before, self._window
        self._before, self._window = None, []
        if before is None or not window[-1].closes:
            # A window that was flushed before it was full cannot be compared.
            return None
        after = Snapshot(self._body, self._batches, self._body.side_effects.written)
        if self._should_skip(before, after, [micro.signature for micro in window], window):
            return None
        grads = copy_gradients(self._body) if self._updates else self._gradients
        if self._body.device.type == "cuda":
            self._refuse_what_breaks_recordings(before, after)
        before.reachable.drop_unchanged(after.reachable)
        is_new = self._builder.candidate is None
        try:
            # Before the state is restored: a number that the program computes in each step, and that a
            # recording would keep, then differs from eager's.
            self._builder.record_again(window)
            before.restore()
            candidate = self._builder.prepare(window, before)
            values = self._rerun(candidate, window, before, is_new=is_new)
            candidate.show_grads()
            real = WindowOutputs(grads, self._values)
            difference = self._verdict.judge(candidate, after, real, values, before, window)
        except (GuardFailed, NotCapturable) as error:
            if isinstance(error, GuardFailed) and not is_new:
                # A guarded value has changed since the last window.
                raise ChangedDuringTrial(f"{error} while the {self.tier} step was being compared") from error
            raise Refused(f"the step cannot be {self.tier}: {error}") from error
        finally:
            after.restore()
        if difference is not None:
            raise Refused(f"the {self.tier} step differs from eager: {difference}")
        if not self._verdict.is_accepted:
            return None
        if not all(map(candidate.fits, window)):
            self._record_again(candidate, window, before, after)
        candidate.show_grads()
        return candidate

    def _record_again(
        self, candidate: Runner, window: list[Micro], before: Snapshot, after: Snapshot
    ) -> None:
        """Make recordings again that were dropped for comparisons, and the gradients that they write."""
        try:
            before.restore()
            self._builder.prepare(window, before)
            rerun(candidate, window, updates=self._updates)
        except (GuardFailed, NotCapturable) as error:
            raise Refused(f"the step cannot be {self.tier}: {error}") from error
        finally:
            after.restore()

    def _rerun(self, candidate: Runner, window: list[Micro], before: Snapshot, *, is_new: bool) -> Values:
        """Run a window on the candidate; if a guard of new code fails, compile it once more."""
        try:
            return rerun(candidate, window, updates=self._updates)
        except GuardFailed:
            if not is_new:
                raise
        self._builder.recompile(window, before)
        return rerun(candidate, window, updates=self._updates)

    def _should_skip(
        self, before: Snapshot, after: Snapshot, shapes: list[Signature], window: list[Micro]
    ) -> bool:
        """Return whether a window cannot be compared; raise if there were too many of them in a row."""
        why = "were not finite" if bool(self._body.bad) else ""
        if any(micro.ragged for micro in window) or (self._shapes and shapes != self._shapes):
            why = "had a different shape"
            if self._body.undo.carried is not None:
                why += ", or started from other carried values"
            self._refuse_opaque_parts(window[0])
        if written := before.reachable.written_uncopied(after.reachable):
            # From now on they are copied before each window.
            self._body.side_effects.written += written
            why = "wrote to large tensors that earlier ones did not write to"
        if not why:
            self._skipped, self._shapes = 0, shapes
            self._opaque = opaque_part(window[0].batch)
            return False
        self._count_skipped(why)
        return True

    def _count_skipped(self, why: str) -> None:
        self._skipped += 1
        if self._skipped > MAX_SKIPPED:
            raise Refused(f"the step cannot be {self.tier}: {self._skipped} updates in a row {why}")

    def _changes_carried(self, micro: Micro) -> bool:
        """Return whether a recording cannot feed back what graphs carry out of a micro-batch."""
        carried = self._body.undo.carried
        if carried is None or not can_record(self._body.device):
            return False
        return not carried.is_kept(micro.carried)

    def _refuse_iterators(self, before: Snapshot) -> None:
        if before.reachable.iterators:
            kind = type(before.reachable.iterators[0]).__name__
            raise Refused(
                f"the step cannot be {self.tier}: it reaches an iterator ({kind}), which cannot be read "
                "a second time for the comparison; read it before the step and pass the value"
            )

    def _refuse_opaque_parts(self, micro: Micro) -> None:
        """Refuse batches that differ only because each contains a new object of an unknown class."""
        part, known = opaque_part(micro.batch), self._opaque
        self._opaque = part
        if part is None or known is None or part is known:
            return
        kind = "nested tensor" if isinstance(part, torch.Tensor) else f"object of class {type(part).__name__}"
        raise Refused(
            f"the step cannot be {self.tier}: each batch contains a new {kind}, whose contents cannot be "
            "compared; pass its tensors in a tuple, list, dict or dataclass"
        )

    def _refuse_what_breaks_recordings(self, before: Snapshot, after: Snapshot) -> None:
        """Refuse a step that replaces tensors a recording would keep reading, or writes into its batch."""
        replaced = before.first_replaced(after)
        if replaced is not None:
            raise Refused(
                f"the step cannot be {self.tier}: it replaces {replaced} with a new tensor, which a "
                "recording would not read; write into it with copy_()"
            )
        # Between the micro-batches of a window, the caller may have filled the same tensors again.
        batch = {id(leaf) for leaf in tensors_of(self._batches[0])} if len(self._batches) == 1 else set()
        if any(id(tensor) in batch for tensor in before.reachable.written(after.reachable)):
            raise Refused(
                f"the step cannot be {self.tier}: it writes into its batch or leaves a gradient there, and a "
                "recording works on a copy; clone what the step changes, and return the result as a value"
            )
        if self._records_metrics:
            raise Refused(
                f"the step cannot be {self.tier}: its step function records metrics of a graph (record, "
                "collect), which a recording would not repeat; return them as named values, or record after "
                "the step"
            )
        before.prepare_recording(after, self._body)
