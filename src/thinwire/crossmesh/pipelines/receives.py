"""When a stage posts which receive: as soon as the sender can send, and not before. Pure.

Posted later, the transfer would wait for the receiver to look; earlier, the buffer would lie empty (pytorch#188833). A
sender can act once all that its action waits for has happened, which this stage's own actions may be part of: the last
of them is what a receive is posted after. So whatever is sent finds its receive posted, and nobody waits in a circle,
also where sends block.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from thinwire.crossmesh.pipelines.edges import Edge
from thinwire.crossmesh.pipelines.schedule import FORWARD, Action, Schedule


@dataclass(frozen=True)
class Receive:
    """An edge's tensor of a micro-batch, or, not forward, its gradient."""

    edge: Edge
    forward: bool
    microbatch: int


def receives(schedule: Schedule, edges: Sequence[Edge], stage: int) -> list[list[Receive]]:
    """Entry p: what to post once p of the stage's actions are done, in the order in which it will be sent."""
    after = _after(schedule, edges, stage)
    found: list[tuple[int, int, Receive]] = []
    for edge in edges:
        if stage not in (edge.source, edge.destination):
            continue
        forward = stage == edge.destination
        sender = edge.source if forward else edge.destination
        for place, action in enumerate(schedule.stages[sender]):
            if action.kind == FORWARD if forward else action.sends_back:
                found.append((after[sender][place], place, Receive(edge, forward, action.microbatch)))
    posts: list[list[Receive]] = [[] for _ in range(len(schedule.stages[stage]) + 1)]
    for number, _, receive in sorted(found, key=lambda each: each[:2]):
        posts[number].append(receive)
    return posts


def _after(schedule: Schedule, edges: Sequence[Edge], stage: int) -> list[list[int]]:
    """For each action of each stage: how many of this stage's have ended when it begins; its own among them."""
    needs: list[list[int]] = [[] for _ in schedule.stages]
    done: list[dict[Action, int]] = [{} for _ in schedule.stages]
    moved = True
    while moved:
        moved = False
        for at, own in enumerate(schedule.stages):
            while len(needs[at]) < len(own):
                action = own[len(needs[at])]
                waits = [done[other].get(before) for other, before in _before(schedule, edges, at, action)]
                if None in waits:
                    break
                number = max([*needs[at][-1:], *(each for each in waits if each is not None), 0])
                if at == stage:
                    number = len(needs[at]) + 1
                needs[at].append(number)
                done[at][action] = number
                moved = True
    return needs


def _before(schedule: Schedule, edges: Sequence[Edge], stage: int, action: Action) -> list[tuple[int, Action]]:
    """Actions of other stages whose results this one takes."""
    if action.kind == FORWARD:
        return [(edge.source, action) for edge in edges if edge.destination == stage]
    if not action.sends_back:
        return []
    found = []
    for edge in edges:
        if edge.source == stage:
            back = [each for each in schedule.stages[edge.destination] if each.sends_back]
            found.append((edge.destination, next(each for each in back if each.microbatch == action.microbatch)))
    return found
