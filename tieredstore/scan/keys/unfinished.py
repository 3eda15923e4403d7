"""Detection of an index file whose upload is still running. Such a file is not damaged. A search
treats its messages as not indexed yet."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from tieredstore.contracts.segment import SegmentListing, SegmentProvider
from tieredstore.errors import Corrupt
from tieredstore.message.index.tiered import HEADER_SIZE
from tieredstore.scan.catalogue import SegmentExtent, TierCatalogue
from tieredstore.scan.findings import OnFinding, note
from tieredstore.scan.keys.index_files import open_index_file
from tieredstore.scan.listing import sort_by_base
from tieredstore.tier.reading import run

INDEX_UNFINISHED: Final = "index-unfinished"
"""Kind of finding about an index file whose upload is running."""
_LOOKS = 20
_PAUSE_S = 0.05


def settle_index(
    provider: SegmentProvider, catalogue: TierCatalogue, on_finding: OnFinding
) -> TierCatalogue:
    """Return the catalogue with only complete index files. The last file of a broker is dropped,
    with a note, while its upload seems to run. Then it is incomplete, and its size changes within a
    second or is not in the metadata. A file that was replaced since its listing is listed again. A
    damaged file stays. Raises Unavailable."""
    has_metadata = catalogue.metadata is not None
    indexes = {
        broker: tuple(settle_files(provider, extents, on_finding, has_metadata=has_metadata))
        for broker, extents in catalogue.indexes.items()
    }
    return replace(catalogue, indexes=indexes)


def settle_files(
    provider: SegmentProvider,
    extents: Sequence[SegmentExtent],
    on_finding: OnFinding,
    *,
    has_metadata: bool = False,
) -> Sequence[SegmentExtent]:
    """Return the complete index files of one broker like `settle_index`, or `extents` itself if
    nothing is being uploaded."""
    last = extents[-1]
    if is_whole(provider, last):
        return extents
    for look in range(_LOOKS):
        if look:
            time.sleep(_PAUSE_S)
        listed = [one for one in provider.list(last.id.path) if one.id.type is last.id.type]
        same = next((one for one in listed if one.id == last.id), None)
        if _state(same) != _state(last.listing):
            extents = sort_by_base([SegmentExtent(one.id, one.size_bytes, one) for one in listed])
            if not extents or is_whole(provider, extents[-1]):
                return extents
            break
        if last.recorded_bytes:
            return extents
        if has_metadata:
            break
    else:
        return extents
    text = "its upload is not finished, so its keys are not indexed yet"
    on_finding(note(INDEX_UNFINISHED, text, extents[-1].id))
    return extents[:-1]


def is_whole(provider: SegmentProvider, extent: SegmentExtent) -> bool:
    """Return whether the size of an index file matches its header and first slot."""
    if extent.size_bytes <= HEADER_SIZE:
        return False
    file, _ = open_index_file(provider, extent)
    try:
        run(file.header())
    except Corrupt:
        return False
    finally:
        file.close()
    return True


def _state(listing: SegmentListing | None) -> tuple[int, int | None] | None:
    return None if listing is None else (listing.size_bytes, listing.stamp)
