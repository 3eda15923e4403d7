"""Paged listings of a bucket. An invalid page is an error, never the end of the listing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tieredstore.contracts.objects import ObjectInfo
from tieredstore.errors import Unavailable
from tieredstore.providers.s3.errors import require_whole_answers
from tieredstore.providers.s3.lane import Lane, S3Failure
from tieredstore.providers.s3.place import S3Place


def epoch_ms(time: datetime) -> int:
    return round(time.timestamp() * 1000)


@dataclass(frozen=True, slots=True)
class OpenUpload:
    """Multipart upload that was neither completed nor aborted."""

    key: str
    upload_id: str
    begun_ms: int


def list_objects(
    lane: Lane, place: S3Place, prefix: str, start_after: str = ""
) -> Iterator[ObjectInfo]:
    """Yield objects in the order of their UTF-8 bytes. Raises Unavailable, Invalid, also for
    another order."""
    what = place.describe_operation("ListObjectsV2", prefix)
    params: dict[str, object] = {}
    if start_after:
        params["StartAfter"] = place.add_prefix(start_after)
    last = place.add_prefix(start_after).encode() if start_after else b""
    for page in _pages(lane, place, prefix, params):
        for found in page.get("Contents", ()):
            full = found.get("Key", "")
            if not full.startswith(_full_prefix(place, prefix)):
                raise _wrong(place, prefix, f"an object outside of it, {full!r}")
            if full.encode() <= last:
                raise _wrong(place, prefix, f"{full!r} after {last.decode(errors='replace')!r}")
            last = full.encode()
            with require_whole_answers(what):
                info = ObjectInfo(
                    place.remove_prefix(full),
                    found["Size"],
                    epoch_ms(found["LastModified"]),
                    etag=found.get("ETag", "").strip('"'),
                )
            yield info


def list_folders(lane: Lane, place: S3Place) -> list[str]:
    """Return the names between the tier's prefix and the next slash."""
    return [
        place.remove_prefix(found["Prefix"]).rstrip("/")
        for page in _pages(lane, place, "", {"Delimiter": "/"})
        for found in page.get("CommonPrefixes", ())
    ]


def list_names(lane: Lane, place: S3Place, folder: str) -> list[str]:
    """Return the sorted names of the objects and folders directly below a folder. An empty `folder`
    is the tier's prefix."""
    prefix = f"{folder}/" if folder else ""
    start = len(_full_prefix(place, prefix))
    names: set[str] = set()
    for page in _pages(lane, place, prefix, {"Delimiter": "/"}):
        names.update(found["Key"][start:] for found in page.get("Contents", ()))
        names.update(found["Prefix"][start:-1] for found in page.get("CommonPrefixes", ()))
    return sorted(names - {""})


def list_uploads(lane: Lane, place: S3Place, prefix: str) -> Iterator[OpenUpload]:
    """Yield the open multipart uploads. Raises Unavailable, Invalid."""
    params: dict[str, object] = {}
    what = place.describe_operation("ListMultipartUploads", prefix)
    while True:
        page = _call(
            lane,
            "list_multipart_uploads",
            what,
            prefix,
            Bucket=place.bucket,
            Prefix=_full_prefix(place, prefix),
            **params,
        )
        for found in page.get("Uploads", ()):
            with require_whole_answers(what):
                upload = OpenUpload(
                    place.remove_prefix(found["Key"]),
                    found["UploadId"],
                    epoch_ms(found["Initiated"]),
                )
            yield upload
        if not page.get("IsTruncated"):
            return
        markers = page.get("NextKeyMarker"), page.get("NextUploadIdMarker")
        if not markers[0] or markers == (params.get("KeyMarker"), params.get("UploadIdMarker")):
            raise Unavailable(f"{what}: a page says that there are more and not where")
        params = {"KeyMarker": markers[0], "UploadIdMarker": markers[1] or ""}


def _pages(
    lane: Lane, place: S3Place, prefix: str, params: dict[str, object]
) -> Iterator[dict[str, Any]]:
    what = place.describe_operation("ListObjectsV2", prefix)
    token = ""
    while True:
        if token:
            params = {**params, "ContinuationToken": token}
        page = _call(
            lane,
            "list_objects_v2",
            what,
            prefix,
            Bucket=place.bucket,
            Prefix=_full_prefix(place, prefix),
            **params,
        )
        if "IsTruncated" not in page:
            raise Unavailable(f"{what}: the answer is no listing")
        listed = len(page.get("Contents", ())) + len(page.get("CommonPrefixes", ()))
        counted = page.get("KeyCount", listed)
        if counted != listed:
            raise Unavailable(f"{what}: a page says that it has {counted} keys and has {listed}")
        yield page
        if not page.get("IsTruncated"):
            return
        following = page.get("NextContinuationToken", "")
        if not following or following == token:
            raise Unavailable(f"{what}: a page says that there are more and not where")
        token = following


def _call(lane: Lane, method: str, what: str, prefix: str, **params: Any) -> dict[str, Any]:
    try:
        page: dict[str, object] = lane.call(method, what, key=prefix, **params)
    except S3Failure as failure:
        raise failure.error from None
    return page


def _full_prefix(place: S3Place, prefix: str) -> str:
    return f"{place.prefix}/{prefix}" if place.prefix else prefix


def _wrong(place: S3Place, prefix: str, found: str) -> Unavailable:
    return Unavailable(
        f"{place.describe_operation('ListObjectsV2', prefix)}: expected keys in order of their "
        f"bytes, each once, "
        f"found {found}"
    )
