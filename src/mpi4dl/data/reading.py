"""`Reading`: what a rank has read, and what of it was used."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Reading:
    """Of one rank, since its loader was made."""

    bytes_read: int
    """From files, as they are stored."""

    bytes_decoded: int
    """Pixels that were unpacked, in the files' data types."""

    bytes_used: int
    """Of these, what the samples that were handed out have."""

    waited: float
    """Seconds in which training waited for data."""

    skipped: tuple[str, ...] = ()
    """Damaged samples, each named once, that others took the place of; on all ranks."""

    @property
    def amplification(self) -> float:
        """Bytes decoded for each that was used."""
        return self.bytes_decoded / self.bytes_used if self.bytes_used else 0.0
