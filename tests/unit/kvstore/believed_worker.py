"""What the kvstore should believe of a worker, by a plain model of it and of what it says."""

from __future__ import annotations

from dataclasses import dataclass, field

from pagemesh.cache.block_hash import CacheDigest, xor_hashes
from pagemesh.kvstore.changes import Beat, Cleared, Digested, Removed, Resumed, Stored, WorkerEvent
from pagemesh.kvstore.feed import Feed


def digest_of(blocks: set[bytes]) -> CacheDigest:
    return CacheDigest(len(blocks), xor_hashes(blocks))


@dataclass
class Counted:
    """What the metrics should say."""

    num_digests: int = 0
    num_divergences: int = 0
    num_missing: int = 0
    num_surplus: int = 0


@dataclass
class Worker:
    """A worker, the events that are on their way from it, and what the kvstore should believe."""

    epoch: int
    feed: Feed
    cache: set[bytes] = field(default_factory=set)
    num_sent: int = 0
    on_the_way: list[tuple[int, WorkerEvent]] = field(default_factory=list)
    delivered: list[tuple[int, WorkerEvent]] = field(default_factory=list)
    was_asked: bool = False

    believed: set[bytes] | None = field(default_factory=set)
    """None behind a gap."""
    last_sequence: int = 0
    has_moved: bool = False
    """Whether it has not said anything since the kvstore was started anew."""
    was_tampered_with: bool = False
    """Whether the index was changed since, as no event did."""
    is_differing: bool = False
    gathered: set[bytes] | None = None
    """What came of a snapshot behind a difference."""

    def send(self, event: WorkerEvent) -> None:
        self.num_sent += 1
        self.on_the_way.append((self.num_sent, event))

    @property
    def is_known(self) -> bool:
        """Whether the index is told what its worker says."""
        return self.believed is not None and not self.has_moved

    @property
    def kept(self) -> CacheDigest:
        """Of what the index has of it."""
        return digest_of(self.believed or set())

    def send_snapshot(self) -> None:
        self.send(Cleared())
        self.send(Stored(sorted(self.cache)))
        self.send_digest()
        self.was_asked = False

    def send_digest(self) -> None:
        self.send(Digested(digest_of(self.cache)))

    def believe(self, sequence: int, event: WorkerEvent) -> None:
        """What an event that arrives now should change, digests excepted."""
        if sequence <= self.last_sequence:
            return
        is_behind = self.has_moved or sequence > self.last_sequence + 1
        self.last_sequence, self.has_moved = sequence, False
        if isinstance(event, Resumed):
            kept = self.believed or set()
            self.doubt()
            # Of nothing there is no need to have it.
            as_told = [each for each in (kept, set[bytes]()) if digest_of(each) == event.digest]
            self.believed = as_told[0] if as_told else None
            return
        if is_behind:
            self.doubt()
        content = self.believed if self.gathered is None else self.gathered
        match event:
            case Cleared() if self.is_differing:
                self.gathered = set()
            case Cleared():
                self.believed, self.was_tampered_with = set(), False
            case Stored(block_hashes) if content is not None:
                content |= set(block_hashes)
            case Removed(block_hashes) if content is not None:
                content -= set(block_hashes)
            case Beat() if self.gathered is not None:
                self.conclude()
            case _:
                pass

    def doubt(self) -> None:
        self.believed = None
        self.was_tampered_with = self.is_differing = False
        self.gathered = None

    def compare(self, told: CacheDigest, was_asked: bool, counted: Counted) -> None:
        """What a digest should have led to."""
        assert self.believed is not None
        if self.gathered is not None:
            counted.num_missing += len(self.gathered - self.believed)
            counted.num_surplus += len(self.believed - self.gathered)
            self.conclude()
        elif self.is_differing:
            assert not was_asked
            return
        agrees = told == self.kept
        counted.num_digests += 1
        counted.num_divergences += not agrees
        # A worker whose digest differs again and again is not asked each time.
        assert not (agrees and was_asked)
        self.is_differing = was_asked
        # Whatever was lost, repeated or came late: that alone never is a difference.
        assert agrees or self.was_tampered_with

    def conclude(self) -> None:
        self.believed, self.gathered = self.gathered, None
        self.was_tampered_with = self.is_differing = False
