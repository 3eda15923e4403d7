"""Objects made of parts. Parts are copied on the server or uploaded. The object then appears
atomically."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from tieredstore.contracts.objects import ClientLimits, CopiedPart, Part
from tieredstore.contracts.segment import Buffer
from tieredstore.errors import Invalid, TieredStoreError, Unavailable
from tieredstore.providers.chunks.retries import carry_budget
from tieredstore.providers.s3.dialects.dialect import md5_of
from tieredstore.providers.s3.errors import require_whole_answers
from tieredstore.providers.s3.lane import Lane, PreconditionFailed, S3Failure
from tieredstore.providers.s3.place import S3Place
from tieredstore.providers.s3.reading import is_absent

_log = logging.getLogger(__name__)
_PARTS_AT_ONCE = 4
_PIECE_BYTES = 8 << 20
ReadRange: TypeAlias = Callable[[str, int, int], bytes | None]
"""Type of `ObjectClient.get_range`."""


@dataclass(frozen=True, slots=True)
class Multipart:
    """Multipart uploads. `checksums`: send a Content-MD5 with each part, which the server
    checks."""

    lane: Lane
    place: S3Place
    limits: ClientLimits
    checksums: bool

    def compose(self, key: str, parts: Sequence[Part], create_params: dict[str, object]) -> bool:
        """Compose an object like `ObjectClient.compose`. `create_params`: metadata, encryption,
        storage class."""
        self._check(key, parts)
        upload_id = self._create(key, create_params)
        if upload_id is None:
            return False
        try:
            with ThreadPoolExecutor(min(_PARTS_AT_ONCE, len(parts)), "tiered-parts") as pool:
                numbers = range(1, len(parts) + 1)
                send = carry_budget(partial(self._part, key, upload_id))
                uploaded = list(pool.map(send, numbers, parts))
            made = self._complete(key, upload_id, uploaded)
        except BaseException:
            self._abort_quietly(key, upload_id)
            raise
        if not made:
            self._abort_quietly(key, upload_id)
        return made

    def abort(self, key: str, upload_id: str) -> bool:
        """Abort an upload. Returns whether the upload existed. Raises Unavailable, Invalid."""
        try:
            self._call("abort_multipart_upload", "AbortMultipartUpload", key, UploadId=upload_id)
        except S3Failure as failure:
            if failure.status == 404 and failure.code != "NoSuchBucket":
                return False
            raise failure.error from None
        return True

    def _check(self, key: str, parts: Sequence[Part]) -> None:
        if not 1 <= len(parts) <= self.limits.max_parts:
            raise Invalid(
                f"{self.place.describe_operation('compose', key)}: {len(parts)} parts", path=key
            )
        for number, part in enumerate(parts, 1):
            size = size_of_part(part)
            least = self.limits.min_part_bytes if number < len(parts) else 1
            if not least <= size <= self.limits.max_part_bytes:
                raise Invalid(
                    f"{self.place.describe_operation('compose', key)}: part {number} has {size} "
                    f"bytes",
                    path=key,
                )

    def _create(self, key: str, params: dict[str, object]) -> str | None:
        """Begin an upload and return its id, or None if the key exists. Only some endpoints check
        this here."""
        try:
            answer = self._call("create_multipart_upload", "CreateMultipartUpload", key, **params)
        except PreconditionFailed:
            return None
        except S3Failure as failure:
            raise failure.error from None
        with require_whole_answers(self.place.describe_operation("CreateMultipartUpload", key)):
            upload_id: str = answer["UploadId"]
            return upload_id

    def _part(self, key: str, upload_id: str, number: int, part: Part) -> dict[str, object]:
        params: dict[str, object] = {"UploadId": upload_id, "PartNumber": number}
        try:
            if isinstance(part, CopiedPart):
                answer = self._call(
                    "upload_part_copy",
                    "UploadPartCopy",
                    key,
                    CopySource={
                        "Bucket": self.place.bucket,
                        "Key": self.place.add_prefix(part.key),
                    },
                    CopySourceRange=f"bytes={part.position}-{part.position + part.length - 1}",
                    **params,
                ).get("CopyPartResult", {})
            else:
                body = b"".join(part)
                if self.checksums:
                    params["ContentMD5"] = md5_of(body)
                answer = self._call("upload_part", "UploadPart", key, Body=body, **params)
        except S3Failure as failure:
            if isinstance(part, CopiedPart) and is_absent(failure):
                raise Unavailable(
                    f"{self.place.describe_operation('UploadPartCopy', key)}: its source "
                    f"{part.key} is gone",
                    path=part.key,
                ) from None
            raise failure.error from None
        with require_whole_answers(self.place.describe_operation(f"part {number} of", key)):
            return {"PartNumber": number, "ETag": answer["ETag"]}

    def _complete(self, key: str, upload_id: str, uploaded: list[dict[str, object]]) -> bool:
        try:
            self._call(
                "complete_multipart_upload",
                "CompleteMultipartUpload",
                key,
                UploadId=upload_id,
                MultipartUpload={"Parts": uploaded},
                IfNoneMatch="*",
            )
        except PreconditionFailed:
            return False
        except S3Failure as failure:
            if failure.code == "NoSuchUpload" and self._is_there(key):
                # an earlier attempt whose reply was lost, or another writer: the caller compares
                return False
            raise failure.make_write_error() from None
        return True

    def _is_there(self, key: str) -> bool:
        try:
            self._call("head_object", "HeadObject", key)
        except S3Failure as failure:
            if is_absent(failure):
                return False
            raise failure.error from None
        return True

    def _abort_quietly(self, key: str, upload_id: str) -> None:
        """Try to abort an upload. Maintenance aborts it later if this fails."""
        try:
            self.abort(key, upload_id)
        except TieredStoreError as error:
            _log.warning("an unfinished upload stays for now: %s", error)

    def _call(self, method: str, operation: str, key: str, **params: Any) -> Any:
        return self.lane.call(
            method,
            self.place.describe_operation(operation, key),
            key=key,
            Bucket=self.place.bucket,
            Key=self.place.add_prefix(key),
            **params,
        )


def read_parts(
    read: ReadRange, place: S3Place, key: str, parts: Sequence[Part]
) -> Iterator[Buffer]:
    """Yield the content of an object made of parts, for a server that cannot copy parts. Raises
    Unavailable if a source is missing or has become shorter."""
    for part in parts:
        if not isinstance(part, CopiedPart):
            yield from part
            continue
        end = part.position + part.length
        for position in range(part.position, end, _PIECE_BYTES):
            wanted = min(_PIECE_BYTES, end - position)
            found = read(part.key, position, wanted)
            if found is None or len(found) != wanted:
                raise Unavailable(
                    f"{place.describe_operation('compose', key)}: its source {part.key}: expected "
                    f"{wanted} bytes at {position}, found "
                    + ("no object" if found is None else str(len(found))),
                    path=part.key,
                )
            yield found


def size_of_part(part: Part) -> int:
    """Return the size of a part (bytes)."""
    if isinstance(part, CopiedPart):
        return part.length
    return sum(memoryview(buffer).nbytes for buffer in part)
