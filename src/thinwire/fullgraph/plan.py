"""What a run of full-graph training obeys: the method, its codec, and what each epoch is for. Pure."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from thinwire.codecs import Codec, Identity, Mixed, Uniform

METHODS = ("exact", "pipe", "sylvie", "adaqp")
# Bounded staleness, where nothing is said.
SYNC_EVERY = 10
# adaqp: the bits of the first period, and of a row that is not sent otherwise.
FIRST_BITS = 8
RULES = ("trade", "hide", "random")
WEIGHTS = ("squares", "published", "gradient")
ONLY = ("", "quantize", "overlap")


@dataclass(frozen=True)
class Plan:
    """`exact`: float32, synchronous. `pipe`: float32, one epoch stale (PipeGCN). `sylvie`: few bits, stale or not.

    `adaqp`: bits chosen for each message, synchronous.
    """

    method: str = "exact"
    bits: int = 1  # sylvie: of a message's values
    staleness: int = 1  # sylvie: 0 synchronous (Sylvie-S), 1 pipelined (Sylvie-A)
    # epsilon_s: every so many-th epoch is synchronous, for adaqp: sends all rows; 0 never. sylvie, adaqp 10, pipe 0.
    sync_every: int | None = None
    seed: int = 0
    bits_choice: tuple[int, ...] = (0, 1, 2, 4, 8, 16, 32)  # adaqp: 0 is not sent
    assign: str = "trade"  # adaqp: variance against time; "hide": time is free while it hides; "random"
    assign_every: int = 50  # adaqp: epochs
    balance: float = 0.5  # adaqp: the paper's lambda, 1 for variance alone
    weigh: str = "squares"  # adaqp: of aggregation weights; "published": as in its code; "gradient": for any model
    only: str = ""  # adaqp: "quantize" without overlap, "overlap" in float32

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"method is {self.method!r}; give one of {', '.join(METHODS)}")
        if self.staleness not in (0, 1):
            raise ValueError(f"staleness is {self.staleness}; give 0 (synchronous) or 1 (one epoch stale)")
        if self.sync_every is None:
            object.__setattr__(self, "sync_every", 0 if self.method in ("exact", "pipe") else SYNC_EVERY)
        assert self.sync_every is not None
        if self.sync_every < 0:
            raise ValueError(f"sync_every is {self.sync_every}; give 0 (never) or more")
        object.__setattr__(self, "bits_choice", tuple(sorted(set(self.bits_choice))))
        if self.method == "adaqp":
            self._check_bits()
        self.codec()

    def _check_bits(self) -> None:
        _expect("assign", self.assign, RULES)
        _expect("weigh", self.weigh, WEIGHTS)
        _expect("only", self.only, ONLY)
        Mixed(self.bits_choice)
        if not any(self.bits_choice):
            raise ValueError(f"bits_choice is {list(self.bits_choice)}; give some of 1, 2, 4, 8, 16 and 32")
        if 0 in self.bits_choice and self.sync_every == 0:
            raise ValueError(
                "bits_choice has 0 (not sent) and sync_every is 0: such a row would never be sent again; leave 0 out, "
                "or give sync_every"
            )
        if self.assign_every < 1:
            raise ValueError(f"assign_every is {self.assign_every}; give 1 or more epochs")
        if not 0 <= self.balance <= 1:
            raise ValueError(f"balance is {self.balance}; give 0 (time alone) to 1 (variance alone)")

    def codec(self) -> Codec:
        """Of all messages, as long as nothing else was assigned."""
        if self.method == "sylvie":
            return Uniform(self.bits)
        return Uniform(FIRST_BITS) if self.adapts else Identity()

    @property
    def adapts(self) -> bool:
        return self.method == "adaqp" and self.only != "overlap"

    @property
    def overlaps(self) -> bool:
        """Whether computation goes on while rows travel."""
        return not (self.method == "adaqp" and self.only == "quantize")

    @property
    def may_be_stale(self) -> bool:
        return self.method == "pipe" or (self.method == "sylvie" and self.staleness == 1)

    @property
    def keeps_rows(self) -> bool:
        """Whether an epoch may need rows that an earlier one received."""
        return self.may_be_stale or (self.adapts and 0 in self.bits_choice)

    def is_stale(self, epoch: int) -> bool:
        """Sylvie's bounded staleness adaptor. The first epoch is synchronous, so that no halo starts from zeros."""
        return self.may_be_stale and epoch > 0 and not self._is_turn(epoch)

    def refreshes(self, epoch: int) -> bool:
        """Whether rows at 0 bits are sent for once; the first epoch after a choice of bits is one of those."""
        return self.adapts and (self._is_turn(epoch) or epoch % self.assign_every == 0)

    def refreshed_share(self, epoch: int) -> float:
        """Of the epochs of a period from this one on."""
        return sum(self.refreshes(epoch + age) for age in range(self.assign_every)) / self.assign_every

    def assigns(self, epoch: int) -> bool:
        """Whether bits are chosen anew after this epoch."""
        return self.adapts and self._to_assign(epoch) == 0

    @property
    def looks(self) -> bool:
        """Whether there is something to choose by."""
        return self.adapts and self.assign != "random" and len(self.bits_choice) > 1

    def traces(self, epoch: int) -> bool:
        """Whether rows are looked at: in the last epoch of a period, which knows best what the next ones are like."""
        return self.looks and self.assigns(epoch)

    def remembers(self, epoch: int) -> bool:
        """Whether rows are kept, to see at the period's end how far they move in the mean age of one not sent."""
        return self.looks and 0 in self.bits_choice and 0 < self.mean_age == self._to_assign(epoch)

    @property
    def mean_age(self) -> int:
        """Of a row that is not sent; 0 where all are always."""
        return max(1, self.refresh_every // 2) if self.refresh_every > 1 else 0

    @property
    def refresh_every(self) -> int:
        """Epochs from one that sends all rows to the next."""
        return min(self.sync_every or 0, self.assign_every)

    @staticmethod
    def parse_bits(text: str) -> tuple[int, ...]:
        """From "2,4,8"."""
        try:
            return tuple(int(word) for word in text.split(","))
        except ValueError:
            raise ValueError(f"{text!r} are no bits; give some of 0, 1, 2, 4, 8, 16 and 32, like 2,4,8") from None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def _is_turn(self, epoch: int) -> bool:
        return bool(self.sync_every) and (epoch + 1) % (self.sync_every or 1) == 0

    def _to_assign(self, epoch: int) -> int:
        """Epochs between this one and the last of its period."""
        return self.assign_every - 1 - epoch % self.assign_every


def _expect(name: str, given: str, known: Sequence[str]) -> None:
    if given not in known:
        raise ValueError(f"{name} is {given!r}; give one of {', '.join(repr(each) for each in known)}")
