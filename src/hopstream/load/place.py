"""The place of a loader in training, and what is saved to go on from there.

Two numbers say where: the epoch, and how many of its batches the consumer was given. Everything else follows from the
loader's settings, so a saved state carries those only to refuse a loader that would go on with other batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hopstream.errors import StateError

STATE_FORMAT = 1
FORM = '{"format": …, "epoch": …, "next_batch": …, "loader": {…}}'
Facts = Mapping[str, str | int | bool | Mapping[str, int] | Mapping[str, str] | None]
"""What decides over a loader's batches, by the name that a message uses; JSON values only."""
KIND = "kind"
"""The fact that says what kind of loader it is."""
FINGERPRINTS: Mapping[str, str] = {
    "graph_id": "another graph",
    "seeds": "other seeds=",
    "examples": "other files=",
    "anchors": "other anchors=",
    "labels": "other labels=",
    "input_time": "other times of its seeds (input_time=)",
    "links": "other links (edge_label_index=)",
    "edge_label": "other edge_label=",
    "edge_label_time": "other times of its links (edge_label_time=)",
}
"""Facts that say nothing to a reader, and what it means that they differ."""


@dataclass(slots=True)
class Place:
    """The next batch of a loader.

    Attributes:
        epoch: The epoch under way, or the next one where ``next_batch`` is 0.
        next_batch: Batches of that epoch which the consumer was given.
        is_resuming: The place was restored, or an iteration failed at it, so the next iteration goes on from it.
    """

    epoch: int = 0
    next_batch: int = 0
    is_resuming: bool = field(default=False, repr=False)

    def begin(self) -> None:
        """Begin an iteration: where the last one was left early, with the next epoch."""
        if self.next_batch and not self.is_resuming:
            self.epoch += 1
            self.next_batch = 0
        self.is_resuming = False

    def resume(self) -> None:
        """Let the next iteration go on from here, because this one failed."""
        self.is_resuming = True

    def end_epoch(self) -> None:
        """The consumer has had all batches of the epoch."""
        self.epoch += 1
        self.next_batch = 0

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; where the next iteration would go on in that very epoch, it still does.

        Raises:
            StateError: ``epoch`` is not an integer, 0 or above.
        """
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
            raise StateError(f"epoch is {epoch!r}; epochs are 0, 1, …")
        if not (self.is_resuming and epoch == self.epoch):
            self.epoch, self.next_batch, self.is_resuming = epoch, 0, False

    def to_json(self, facts: Facts) -> dict[str, Any]:
        """A JSON value that ``from_json`` reads back, with what decides over the batches."""
        return {
            "format": STATE_FORMAT,
            "epoch": self.epoch,
            "next_batch": self.next_batch,
            "loader": {name: dict(fact) if isinstance(fact, Mapping) else fact for name, fact in facts.items()},
        }

    @classmethod
    def from_json(cls, value: object, facts: Facts, num_steps: int) -> Place:
        """Read what ``to_json`` wrote.

        Raises:
            StateError: The value is no saved state, or one of a loader that makes other batches; the message names what
                differs.
        """
        record = _fields_of(value)
        found, epoch, next_batch = record["loader"], record["epoch"], record["next_batch"]
        for name in sorted({**facts, **found}, key=lambda name: name != KIND):
            # An option that was not there when the state was saved was off.
            if facts.get(name) != found.get(name) and (name in found or facts[name] is not False):
                raise StateError(_difference(name, found.get(name), facts.get(name)))
        for name, number, most in (("epoch", epoch, None), ("next_batch", next_batch, num_steps)):
            is_number = isinstance(number, int) and not isinstance(number, bool) and number >= 0
            if not is_number or (most is not None and number > most):
                raise StateError(f"the state's {name} is {number!r}; it is 0 to {most if most is not None else '…'}")
        return cls(epoch, next_batch, is_resuming=True)


def _difference(name: str, found: object, own: object) -> str:
    """What a message says about a fact in which a state and a loader differ."""
    if name == KIND and found is not None:
        return f"the state is of a {found}; this is a {own}: load it into a loader of the kind that saved it"
    if name in FINGERPRINTS:
        return f"the state is of a loader over {FINGERPRINTS[name]}; make this one from what that one was made from"
    return f"the state is of a loader with {name} {found!r}; this loader has {own!r}"


def _fields_of(value: object) -> Mapping[str, Any]:
    """The fields of a saved state, all of them there."""
    if not isinstance(value, Mapping):
        raise StateError(f"the loader state is a {type(value).__name__}; it must be what state_dict() returned, {FORM}")
    missing = [name for name in ("format", "epoch", "next_batch", "loader") if name not in value]
    if missing:
        raise StateError(
            f"the loader state has no {' and no '.join(missing)}; it must be what state_dict() returned, {FORM}, "
            f"got {str(dict(value))[:200]}"
        )
    if value["format"] != STATE_FORMAT:
        raise StateError(f"the loader state has format {value['format']!r}; this version reads {STATE_FORMAT}")
    if not isinstance(value["loader"], Mapping):
        raise StateError(f"the loader state's loader is {str(value['loader'])[:200]!r}; it must be an object")
    return value
