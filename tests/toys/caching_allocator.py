"""torch's caching allocator of CUDA memory as a model: which bytes it reserves for a sequence of allocations.

As in c10/cuda/CUDACachingAllocator.cpp of torch 2.13: one stream, no limit, nothing returned to the driver. A freed
block stays in its segment, joins free neighbours, and serves the next request that fits best. Segments have fixed
sizes, or with `growing` (expandable_segments) each pool has one, which grows at its end.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from itertools import count

MIB = 1 << 20
SMALL, SMALL_SEGMENT, LARGE_SEGMENT, OWN_SEGMENT, SEGMENT_STEP = MIB, 2 * MIB, 20 * MIB, 10 * MIB, 2 * MIB
SMALLEST = 512
NUMBERS = count()


@dataclass(slots=True, eq=False)
class Block:
    """A part of a segment, in a list with its neighbours."""

    size: int
    small: bool
    free: bool = False
    before: "Block | None" = None
    after: "Block | None" = None
    number: int = field(default_factory=lambda: next(NUMBERS))

    def put(self, following):
        """Puts a block behind this one."""
        following.before, following.after = self, self.after
        if self.after is not None:
            self.after.before = following
        self.after = following

    def join(self):
        """Takes in the block behind this one."""
        self.size += self.after.size
        self.after = self.after.after
        if self.after is not None:
            self.after.before = self


class CachingAllocator:
    """Two pools: of blocks up to 1 MiB, and of larger ones."""

    def __init__(self, *, growing):
        self.reserved = 0
        self._free = {True: [], False: []}  # (size, number, block) of each pool, ascending
        self._ends = {True: Block(0, True), False: Block(0, False)} if growing else {}

    def allocate(self, size):
        """Returns a block of at least `size` bytes."""
        size = -(-size // SMALLEST) * SMALLEST
        block = self._fitting(size) or self._reserve(size)
        block.free = False
        rest = block.size - size
        if rest >= SMALLEST if block.small else rest > SMALL:
            block.size = size
            block.put(Block(rest, block.small))
            self._keep(block.after)
        return block

    def release(self, block):
        """Frees a block."""
        if block.after is not None and block.after.free:
            self._take(block.after)
            block.join()
        if block.before is not None and block.before.free:
            block = block.before
            self._take(block)
            block.join()
        self._keep(block)

    def _fitting(self, size):
        pool = self._free[size <= SMALL]
        place = bisect_left(pool, (size,))
        return pool.pop(place)[2] if place < len(pool) else None

    def _reserve(self, size):
        small = size <= SMALL
        if self._ends:
            return self._extend(size, small)
        segment = (SMALL_SEGMENT if small else LARGE_SEGMENT if size < OWN_SEGMENT
                   else -(-size // SEGMENT_STEP) * SEGMENT_STEP)
        self.reserved += segment
        return Block(segment, small)

    def _extend(self, size, small):
        page, end = SMALL_SEGMENT if small else LARGE_SEGMENT, self._ends[small]
        if end.free:
            self._take(end)
        else:
            end.put(Block(0, small))
            end = self._ends[small] = end.after
        more = -(-(size - end.size) // page) * page
        end.size += more
        self.reserved += more
        return end

    def _keep(self, block):
        block.free = True
        insort(self._free[block.small], (block.size, block.number, block))
        if self._ends and block.after is None:
            self._ends[block.small] = block

    def _take(self, block):
        pool = self._free[block.small]
        pool.pop(bisect_left(pool, (block.size, block.number)))


def reserved_bytes(events, *, growing):
    """Returns the bytes that are reserved after `events`: (tensor, size) in order; a size of 0 frees the tensor."""
    allocator, blocks = CachingAllocator(growing=growing), {}
    for tensor, size in events:
        if tensor in blocks:
            allocator.release(blocks.pop(tensor))
        if size:
            blocks[tensor] = allocator.allocate(size)
    return allocator.reserved
