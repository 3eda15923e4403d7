"""Mergeable summaries of very many values: frequent values, number of distinct values,
distribution. Each has a bounded size and error and can be stored as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tieredstore.scan.arrow.buffers import content

HEAVY_HITTERS = 256
DISTINCT_HASHES = 2048
_HASH_BITS = 63
_LONGEST = 1 << 15
_STEPS = 32
"""Number of size buckets in each power of two."""


@dataclass(slots=True)
class HeavyHitters:
    """Misra-Gries summary of the frequent values among `total` values. A value that occurs c times
    is counted at least c - error and at most c times, with error <= total / (limit + 1). A value
    that is not in the summary occurs at most `error` times. This holds for any order of `add` and
    `merge` (Agarwal et al., Mergeable Summaries, 2012)."""

    counts: dict[str, int] = field(default_factory=dict)
    total: int = 0
    error: int = 0
    limit: int = HEAVY_HITTERS

    def add(self, values: pa.Array) -> None:
        """Count the values of a text array. The array must not contain nulls."""
        found = pc.value_counts(values)
        texts, counts = found.field("values"), found.field("counts").to_numpy()
        least = 0
        if len(counts) > self.limit:
            least = int(np.partition(counts, -self.limit - 1)[-self.limit - 1])
            texts, counts = texts.filter(pa.array(counts > least)), counts[counts > least] - least
        pairs = dict(zip(texts.to_pylist(), counts.tolist(), strict=True))
        self.merge(HeavyHitters(pairs, len(values), least, self.limit))

    def merge(self, other: HeavyHitters) -> None:
        counts = self.counts
        for text, count in other.counts.items():
            counts[text] = counts.get(text, 0) + count
        self.total += other.total
        self.error += other.error
        if len(counts) > self.limit:
            least = sorted(counts.values())[-self.limit - 1]
            self.error += least
            self.counts = {text: n - least for text, n in counts.items() if n > least}

    def top(self, count: int) -> list[tuple[str, int]]:
        """Return the most frequent values with lower bounds of their counts."""
        return sorted(self.counts.items(), key=lambda pair: (-pair[1], pair[0]))[:count]


@dataclass(slots=True)
class Distinct:
    """Estimate of the number of distinct values, from the `limit` smallest hashes. Exact below
    `limit` values. Otherwise the standard error is 1 / sqrt(limit - 2) (2.2 %)."""

    hashes: list[int] = field(default_factory=list)
    limit: int = DISTINCT_HASHES

    def add(self, values: pa.Array) -> None:
        """Add the values of a text array. The array must not contain nulls."""
        self._take(text_hashes(values))

    def merge(self, other: Distinct) -> None:
        self._take(np.array(other.hashes, np.int64))

    def _take(self, hashes: npt.NDArray[np.int64]) -> None:
        if len(self.hashes) == self.limit:
            hashes = hashes[hashes < self.hashes[-1]]
        if len(hashes):
            known = np.array(self.hashes, np.int64)
            self.hashes = np.unique(np.concatenate((known, hashes)))[: self.limit].tolist()

    def estimate(self) -> int:
        if len(self.hashes) < self.limit:
            return len(self.hashes)
        return (self.limit - 1) * (1 << _HASH_BITS) // self.hashes[-1]


@dataclass(slots=True)
class Sizes:
    """Distribution of sizes: exact count, sum and extremes, and quantiles within 1/64 of their
    value."""

    count: int = 0
    total: int = 0
    least: int = 0
    most: int = 0
    buckets: dict[int, int] = field(default_factory=dict)

    def add(self, sizes: npt.NDArray[np.int64]) -> None:
        """Add sizes to the distribution. No size may be negative."""
        if len(sizes):
            places, counts = np.unique(_bucket_of(sizes), return_counts=True)
            buckets = dict(zip(places.tolist(), counts.tolist(), strict=True))
            least, most = int(sizes.min()), int(sizes.max())
            self.merge(Sizes(len(sizes), int(sizes.sum()), least, most, buckets))

    def merge(self, other: Sizes) -> None:
        if other.count:
            self.least = min(self.least, other.least) if self.count else other.least
            self.most = max(self.most, other.most)
            self.count += other.count
            self.total += other.total
            for bucket, count in other.buckets.items():
                self.buckets[bucket] = self.buckets.get(bucket, 0) + count

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None

    def quantile(self, share: float) -> int | None:
        """Return the smallest size for which at least `share` of all sizes are equal or smaller, or
        None without sizes."""
        wanted = max(share * self.count, 1)
        passed = 0
        for bucket in sorted(self.buckets):
            passed += self.buckets[bucket]
            if passed >= wanted:
                return min(max(_find_middle(bucket), self.least), self.most)
        return None


def _bucket_of(sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the bucket of each size. A size up to 63 is its own bucket. Above 63, each power of
    two has 32 buckets."""
    bits = np.frexp(sizes.astype(np.float64))[1].astype(np.int64)
    shifts = np.maximum(bits - 6, 0)
    buckets: npt.NDArray[np.int64] = _STEPS * shifts + (sizes >> shifts)
    return buckets


def _find_middle(bucket: int) -> int:
    shift = max(bucket // _STEPS - 1, 0)
    return ((bucket - _STEPS * shift) << shift) + ((1 << shift) >> 1)


_FACTORS = np.random.default_rng(20_260_101).integers(0, 1 << 64, _LONGEST, np.uint64) | np.uint64(
    1
)


def text_hashes(texts: pa.Array) -> npt.NDArray[np.int64]:
    """Return a 63-bit hash of each value of a text array without nulls, which is the same in every
    process. It is a multilinear hash (a sum of bytes times factors, modulo 2^64), mixed by the last
    steps of SplitMix64."""
    ends, data = content(texts)
    lengths = np.diff(ends)
    sums = np.zeros(int(ends[-1] - ends[0]) + 1, np.uint64)
    places = np.arange(len(sums) - 1) - np.repeat(ends[:-1] - ends[0], lengths)
    letters = data[ends[0] : ends[-1]].astype(np.uint64) + np.uint64(1)
    np.cumsum(letters * _FACTORS[places % _LONGEST], out=sums[1:])
    borders = sums[ends - ends[0]]
    mixed = borders[1:] - borders[:-1]
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    hashes: npt.NDArray[np.int64] = (mixed >> np.uint64(1)).astype(np.int64)
    return hashes
