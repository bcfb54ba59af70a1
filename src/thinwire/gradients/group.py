"""A group's gradients in one message: compensate, encode, send; receive, add up in the order of ranks, average.

    all_reduce   dense values are summed on the way (none, float16, bfloat16, randomk)
    all_gather   everybody's payload to everybody: (n - 1) c bytes a rank
    two_step     a slice to its owner, who adds up, encodes again and tells all: 2 (n - 1) / n c bytes

A payload ends with one byte that says whether all its values were finite. All ranks see all of these, so that they
agree on what became of the step.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from thinwire.codecs import Codec, Parts, TopK, seed_from
from thinwire.gradients.algorithms import ALL_GATHER, ALL_REDUCE, DENSE, NONE, TWO_STEP, Algorithm
from thinwire.gradients.layout import parts_of, slices_of
from thinwire.gradients.memory import OWED, Memory, State, by_name, flat_of, memory_for
from thinwire.links import Door, Transfer

FINE, NOT_FINITE = 0, 1


class Group:
    """One group of a plan, on one rank."""

    def __init__(
        self,
        number: int,
        names: Sequence[str],
        sizes: Sequence[int],
        algorithm: Algorithm,
        primitive: str,
        door: Door,
        *,
        device: torch.device,
        seed: int = 0,
        momentum: float = 0.9,
        state: Mapping[str, Mapping[str, Tensor]] | None = None,
    ) -> None:
        self.number, self.names, self.sizes = number, list(names), list(sizes)
        self.algorithm, self.primitive, self.device = algorithm, primitive, device
        self._door, self._seed = door, seed
        self._channel = f"gradients.{number}"
        self._summed: Transfer[Tensor]
        self._met: Transfer[list[Tensor]]
        self._averages: Transfer[list[Tensor]]
        self._step, self.scale = 0, 1.0
        self._ratio = 0.0
        self.use_ratio(algorithm.ratio)
        # two_step: what the second encoding of our own slice lost. Where groups have changed since it was saved, what
        # lies in somebody else's slice now is remembered as if our first encoding had lost it: the mean is the same.
        self._owed: Tensor | None = None
        self._owed_next: Tensor | None = None
        if algorithm.codec is not None and not algorithm.memory and algorithm.spec not in DENSE:
            state = {}  # a codec without feedback makes good for nothing
        elsewhere = flat_of((state or {}).get(OWED, {}), names, sizes, device)
        if primitive == TWO_STEP and OWED in (state or {}):
            self._owed = elsewhere[self._own_slice()].clone()
            elsewhere[self._own_slice()] = 0.0
        self._memory: Memory = memory_for(algorithm.memory, names, sizes, state or {}, momentum, device, elsewhere)

    def use_ratio(self, ratio: float) -> None:
        """DGC's warm-up sends more at first."""
        if ratio == self._ratio:
            return
        self._ratio = ratio
        codec = self.algorithm.codec
        cuts = slices_of(self.sizes, self._door.world_size) if self.primitive == TWO_STEP else [self.sizes]
        self._lengths = [sum(cut) for cut in cuts]
        if codec is None or self.algorithm.spec in DENSE:
            self._codecs: list[Parts] = []  # summed as they are
            return
        codec = TopK(ratio) if isinstance(codec, TopK) else codec
        self._codecs = [Parts(parts_of(cut, codec)) for cut in cuts]
        # A byte more for each: whether it was finite.
        self._nbytes = [codec.nbytes((size,)) + 1 for codec, size in zip(self._codecs, self._lengths, strict=True)]

    def post(self, gradient: Tensor, step: int, scale: float = 1.0) -> None:
        """Send this rank's flat gradient. `scale` is a loss scaler's; what is remembered is without it."""
        self._step, self.scale = step, scale
        n = self._door.world_size
        if not self._codecs:
            self._summed = self._door.all_reduce(self._dense(gradient), channel=self._channel)
            return
        payload = self.encode(gradient)
        if self.primitive == ALL_REDUCE:
            values = payload[:-1].view(torch.float32)
            if payload[-1] == NOT_FINITE:
                values.fill_(torch.nan)  # which goes through every sum
            self._summed = self._door.all_reduce(values, channel=self._channel)
        elif self.primitive == ALL_GATHER:
            self._met = self._door.all_gather(payload, [payload.nbytes] * n, channel=self._channel)
        else:
            mine = self._nbytes[self._door.rank]
            self._met = self._door.all_to_all(payload.split(self._nbytes), [mine] * n, channel=self._channel)
            self._met.then(self._pass_on)

    def encode(self, gradient: Tensor) -> Tensor:
        """The payload, of what is remembered too."""
        own = gradient.float() if self.scale == 1.0 else gradient.float() / self.scale
        return self._encoded(self._memory.compensate(own))

    def wait(self) -> None:
        """Until all of it is here."""
        if self.primitive == ALL_REDUCE:
            self._summed.wait()
            return
        self._met.wait()
        if self.primitive == TWO_STEP:
            self._averages.wait()

    def finish(self, out: Tensor) -> bool:
        """Everybody's mean, the same bits on every rank. False where somebody's gradient was not finite."""
        if not self._codecs:
            mean = self._summed.wait()
            if mean is not out:
                out.copy_(mean)
            return _is_finite(out)
        total = out if out.dtype == torch.float32 else torch.empty_like(out, dtype=torch.float32)
        fine = self._meet(total)
        if fine:
            total.mul_(self.scale / self._door.world_size)
        if total is not out:
            out.copy_(total)
        return fine

    def keep(self, number: int) -> None:
        """Nobody took what was sent for this parameter: what is remembered and owed of it stays. Before `commit`."""
        begin = sum(self.sizes[:number])
        part = slice(begin, begin + self.sizes[number])
        self._memory.keep(part)
        if self._owed_next is not None:
            own = self._own_slice()
            low, high = max(part.start, own.start), min(part.stop, own.stop)
            if low < high:
                here = slice(low - own.start, high - own.start)
                self._owed_next[here] = 0.0 if self._owed is None else self._owed[here]

    def commit(self) -> None:
        """The step counts: what it left is remembered."""
        self._memory.commit()
        if self._owed_next is not None:
            self._owed, self._owed_next = self._owed_next, None

    def time_codec(self, gradient: Tensor, total: Tensor, clock: Callable[[], float]) -> list[float]:
        """Seconds to encode, to add a payload, to decode one, without sending anything."""
        n = self._door.world_size
        if not self._codecs:
            gradient = gradient.clone()  # it is divided in place
            begin = clock()
            dense = self._dense(gradient)
            encoded = clock()
            if dense is not gradient:
                total.copy_(dense)
            _is_finite(gradient)
            return [encoded - begin, 0.0, clock() - encoded]
        marks = [clock()]
        payload = self.encode(gradient)
        self._memory.commit()
        marks.append(clock())
        self.add_up(self._codecs[0], [payload] * n, total)
        total.mul_(self.scale / n)
        marks.append(clock())
        self._codecs[0].decode(payload[:-1], total.shape, seed=self._seed_of(self._door.rank), out=total)
        total.mul_(self.scale)
        marks.append(clock())
        encode_s, add_s, decode_s = (end - begin for begin, end in pairwise(marks))
        return [encode_s, add_s / n, decode_s]

    @property
    def transfer_s(self) -> float:
        """In flight, the last time."""
        first = self._summed.seconds if self.primitive == ALL_REDUCE else self._met.seconds
        return first + (self._averages.seconds if self.primitive == TWO_STEP else 0.0)

    @property
    def is_lossy(self) -> bool:
        """Beyond rounding to two bytes."""
        return bool(self._codecs)

    @property
    def sent_bytes(self) -> float:
        """Of this rank in a step, flags left out."""
        n = self._door.world_size
        payload = sum(self._nbytes) if self._codecs else sum(self.sizes) * (4 if self.algorithm.spec == NONE else 2)
        return payload * ((n - 1) if self.primitive == ALL_GATHER else 2 * (n - 1) / n)

    def state(self) -> State:
        kept = self._memory.tensors()
        if self._owed is not None:
            whole = self._owed.new_zeros(sum(self.sizes))
            whole[self._own_slice()] = self._owed
            kept = kept | {OWED: whole}
        return by_name(kept, self.names, self.sizes)

    def _own_slice(self) -> slice:
        begin = sum(self._lengths[: self._door.rank])
        return slice(begin, begin + self._lengths[self._door.rank])

    def _dense(self, gradient: Tensor) -> Tensor:
        """In place: no copy is made of what goes out as it is."""
        if self._memory.tensors():  # a debt, which is without the loss scale
            gradient.copy_(self._memory.compensate(gradient.float() / self.scale) * self.scale)
        gradient.mul_(1 / self._door.world_size)
        return gradient if self.algorithm.spec == NONE else gradient.to(getattr(torch, self.algorithm.spec))

    def _encoded(self, wanted: Tensor) -> Tensor:
        payload = torch.empty(sum(self._nbytes), dtype=torch.uint8, device=wanted.device)
        slices = list(zip(self._codecs, wanted.split(self._lengths), payload.split(self._nbytes), strict=True))
        seed = self._seed_of(self._door.rank)
        try:
            for codec, values, data in slices:
                codec.encode(values, seed=seed, out=data[:-1])
                data[-1] = FINE
        except ValueError:  # a value is not finite, or beyond what the codec holds
            for _, _, data in slices:
                data.fill_(0)[-1] = NOT_FINITE
            return payload
        self._memory.sent(
            lambda kept: [
                codec.add(data[:-1], part, seed=seed)
                for (codec, _, data), part in zip(slices, kept.split(self._lengths), strict=True)
            ]
        )
        return payload

    def _meet(self, total: Tensor) -> bool:
        if self.primitive == ALL_REDUCE:
            values = self._summed.wait()
            fine = bool(torch.isfinite(values).all())
            if fine:
                self._codecs[0].decode(values.view(torch.uint8), total.shape, seed=self._seed_of(0), out=total)
            return fine
        payloads = self._met.wait()
        if self.primitive == ALL_GATHER:
            return self.add_up(self._codecs[0], payloads, total)
        slices = zip(self._codecs, self._averages.wait(), total.split(self._lengths), strict=True)
        seed = self._seed_of(self._door.world_size)
        fine = True
        for codec, data, part in slices:
            fine = fine and int(data[-1]) == FINE
            if fine:
                codec.decode(data[:-1], part.shape, seed=seed, out=part)
        return fine

    def add_up(self, codec: Codec, payloads: Sequence[Tensor], total: Tensor) -> bool:
        """In the order of ranks, so that replicas stay equal bit for bit."""
        if any(int(data[-1]) != FINE for data in payloads):
            return False
        total.zero_()
        for rank, data in enumerate(payloads):
            codec.add(data[:-1], total, seed=self._seed_of(rank))
        return True

    def _pass_on(self, payloads: list[Tensor]) -> None:
        """two_step: our own slice of everybody's, added up, encoded again, to all. On the thread that saw them come."""
        rank, n = self._door.rank, self._door.world_size
        codec, data = self._codecs[rank], torch.empty_like(payloads[0])
        total = torch.empty(self._lengths[rank], dtype=torch.float32, device=data.device)
        data.fill_(0)[-1] = NOT_FINITE
        self._owed_next = None
        if self.add_up(codec, payloads, total):
            if self._owed is not None:
                total += self._owed
            seed = self._seed_of(n)
            try:
                codec.encode(total, seed=seed, out=data[:-1])
                data[-1] = FINE
            except ValueError:  # the sum is beyond what the codec holds
                pass
            else:
                if self.algorithm.memory:
                    self._owed_next = codec.add(data[:-1], total.neg_(), seed=seed).neg_()
        self._averages = self._door.all_to_all([data] * n, self._nbytes, channel=f"{self._channel}.second")

    def _seed_of(self, rank: int) -> int:
        """All ranks' alike where payloads are summed on the way: they must have picked the same values."""
        return seed_from(self._seed, self._step, self.number, 0 if self.primitive == ALL_REDUCE else rank)


def _is_finite(x: Tensor) -> bool:
    """A sum is one quick pass, and says so unless values are so large that it overflows."""
    return bool(x.sum().isfinite()) or bool(x.isfinite().all())
