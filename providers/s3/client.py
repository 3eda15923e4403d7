"""S3Client: an ObjectClient on S3 and compatible stores, by boto3 (`docs/s3.md`)."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import IO, Any

from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.contracts.objects import ClientLimits, CopiedPart, ObjectInfo, Part
from tieredstore.contracts.probing import ProbeResult
from tieredstore.contracts.segment import Buffer
from tieredstore.contracts.usage import Prices, WrittenBytes
from tieredstore.disk.user_folders import require_temporary_folder
from tieredstore.errors import Invalid, Unavailable
from tieredstore.providers.chunks.manifests.names import WHOLE_NAME
from tieredstore.providers.s3.dialects.dialect import check_checksums, choose_dialect
from tieredstore.providers.s3.errors import require_whole_answers
from tieredstore.providers.s3.fast_reads.obstore_reader import NO_ANSWER, FastPath, NoAnswer
from tieredstore.providers.s3.lane import Gate, Lane, PreconditionFailed, S3Failure, ServerClock
from tieredstore.providers.s3.listing import (
    epoch_ms,
    list_folders,
    list_names,
    list_objects,
    list_uploads,
)
from tieredstore.providers.s3.meter import Meter
from tieredstore.providers.s3.multipart import Multipart, read_parts, size_of_part
from tieredstore.providers.s3.place import S3Place
from tieredstore.providers.s3.probes import probe_s3
from tieredstore.providers.s3.reading import RangeReader, is_absent
from tieredstore.providers.s3.session import BULK_CONNECTIONS, make_client
from tieredstore.providers.s3.settings import S3Settings

_DELETED_AT_ONCE = 1000
_PASSING = frozenset({"InternalError", "SlowDown", "ServiceUnavailable", "OperationAborted"})


class S3Client:
    """Objects below a prefix of a bucket. The constructor sends no request. Foreground requests
    (commits, reads) and background requests (`bulk`: merges, seals, deletes) have separate
    connection pools and limits. In the foreground, commits do not wait for reads."""

    def __init__(self, settings: S3Settings, *, clock: Clock = SYSTEM_CLOCK) -> None:
        if not settings.bucket:
            raise Invalid("objectStoreBucket: not set: an S3 tier needs the name of its bucket")
        dialect = choose_dialect(settings.dialect, settings.endpoint)
        check_checksums(dialect, settings.checksums)
        server_clock = ServerClock()
        meter = Meter(
            Prices(
                write=settings.write_price,
                list=settings.write_price,
                read=settings.read_price,
                transfer=settings.transfer_price,
            )
        )
        place = S3Place(settings.bucket, settings.prefix.strip("/"))
        foreground = Lane(
            partial(make_client, settings, bulk=False),
            Gate(settings.max_connections),
            meter,
            server_clock,
            clock,
            dialect,
            Gate(settings.max_connections),
            settings.max_attempts,
        )
        bulk = Lane(
            partial(make_client, settings, bulk=True),
            Gate(BULK_CONNECTIONS),
            meter,
            server_clock,
            clock,
            dialect,
            max_attempts=settings.max_attempts,
        )
        self._assemble(settings, place, foreground, bulk)

    def _assemble(self, settings: S3Settings, place: S3Place, own: Lane, bulk: Lane) -> None:
        self._settings = settings
        self._place = place
        self._lane = own
        self._bulk_lane = bulk
        self._dialect = own.dialect
        self.limits = ClientLimits(
            exclusive=own.dialect.promises_exclusion,
            condition=own.dialect.header,
            concurrent_requests=settings.max_connections,
        )
        # until the endpoint reports that it cannot
        self._reader = RangeReader(
            own,
            place,
            settings.max_attempts,
            settings.bulk_read_timeout_ms if own is bulk else settings.read_timeout_ms,
        )
        self._fast = (
            FastPath(settings, own, place) if settings.fast_reads and own is not bulk else None
        )
        self._multipart = Multipart(bulk, place, self.limits, settings.checksums != "off")

    def __repr__(self) -> str:
        return f"S3Client({self.url})"

    @property
    def bulk(self) -> S3Client:
        """Client of the same objects with separate connections, for background requests. Closing
        this client closes it too."""
        client = object.__new__(S3Client)
        client._assemble(self._settings, self._place, self._bulk_lane, self._bulk_lane)
        return client

    @property
    def url(self) -> str:
        return self._place.url

    @property
    def meter(self) -> Meter:
        """Meter that counts the requests of both pools."""
        return self._lane.meter

    def now_ms(self) -> int:
        """Return the server's time, within a second. Sends a request if none was sent before."""
        known = self._lane.server_clock.now_ms()
        if known is None:
            self._first_page()
            known = self._lane.server_clock.now_ms()
        if known is None:
            raise Unavailable(f"{self.url}: the endpoint does not tell its time (no Date header)")
        return known

    def put_if_absent(
        self, key: str, buffers: Sequence[Buffer], metadata: Mapping[str, str]
    ) -> bool:
        body = _join_buffers(buffers)
        params = self._write_params(key, metadata)
        if self._settings.checksums != "off":
            params |= self._dialect.checksum_params(body)
        answer = self._create(key, body, self._lane, params)
        if answer is None:
            return False
        if self._lane is self._bulk_lane:
            self.meter.note_written(key, WrittenBytes(merged=len(body)))
        else:
            self.meter.note_written(key, WrittenBytes(kept=len(body)))
        checksum = params.get("ChecksumCRC32")
        if self._settings.checksums == "required" and answer.get("ChecksumCRC32") != checksum:
            raise Invalid(
                f"{self._place.describe_operation('PutObject', key)}: the endpoint does not "
                f"confirm checksums "
                f"(expected {checksum}, found {answer.get('ChecksumCRC32')}), and "
                "tieredStoreS3Checksums is required",
                path=key,
            )
        return True

    def compose(self, key: str, parts: Sequence[Part], metadata: Mapping[str, str]) -> bool:
        params = self._write_params(key, metadata)
        made = self._compose(key, parts, params)
        if made:
            sizes = [(isinstance(part, CopiedPart), size_of_part(part)) for part in parts]
            copies = self._dialect.multipart
            copied = sum(size for is_copied, size in sizes if is_copied and copies)
            sent = sum(size for is_copied, size in sizes if not (is_copied and copies))
            self.meter.note_written(key, WrittenBytes(merged=sent, copied=copied))
        return made

    def _compose(self, key: str, parts: Sequence[Part], params: dict[str, object]) -> bool:
        if self._dialect.multipart:
            return self._multipart.compose(key, parts, params)
        with tempfile.TemporaryFile(dir=require_temporary_folder()) as whole:
            whole.writelines(read_parts(self.bulk.get_range, self._place, key, parts))
            whole.seek(0)
            return self._create(key, whole, self._bulk_lane, params) is not None

    def get_range(self, key: str, position: int, length: int) -> bytes | None:
        if length == 0:
            return b"" if self.head(key) is not None else None
        found = NO_ANSWER if self._fast is None else self._fast.get_range(key, position, length)
        if isinstance(found, NoAnswer):
            return self._reader.read(key, position, length)
        return found

    def head(self, key: str) -> ObjectInfo | None:
        try:
            answer = self._call("head_object", "HeadObject", key)
        except S3Failure as failure:
            if is_absent(failure):
                return None
            raise failure.error from None
        with require_whole_answers(self._place.describe_operation("HeadObject", key)):
            return ObjectInfo(
                key,
                answer["ContentLength"],
                epoch_ms(answer["LastModified"]),
                answer.get("Metadata", {}),
                answer.get("ETag", "").strip('"'),
            )

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        return list_objects(self._lane, self._place, prefix, start_after)

    def folders(self) -> Sequence[str]:
        """Return the names of the folders directly below the tier's prefix. Raises Unavailable,
        Invalid."""
        return list_folders(self._lane, self._place)

    def names(self, folder: str) -> Sequence[str]:
        """Return the names of the objects and folders directly in a folder. Raises Unavailable,
        Invalid."""
        return list_names(self._lane, self._place, folder)

    def copy(self, key: str, to: str) -> bool:
        """Copy an object of up to 5 GiB, and replace any existing object. Returns False if the
        source does not exist. Raises Unavailable, Invalid."""
        source = {"Bucket": self._place.bucket, "Key": self._place.add_prefix(key)}
        try:
            self._call("copy_object", "CopyObject", to, lane=self._bulk_lane, CopySource=source)
        except S3Failure as failure:
            if is_absent(failure):
                return False
            raise failure.error from None
        return True

    def delete(self, keys: Sequence[str]) -> None:
        if self._settings.checksums == "off":
            # a request for many keys must carry a checksum
            for key in keys:
                self._delete_one(key)
            return
        for first in range(0, len(keys), _DELETED_AT_ONCE):
            self._delete_some(keys[first : first + _DELETED_AT_ONCE])

    def abort_uploads(self, prefix: str, older_than_ms: int) -> int:
        uploads = list_uploads(self._bulk_lane, self._place, prefix)
        old = [upload for upload in uploads if upload.begun_ms <= older_than_ms]
        return sum(self._multipart.abort(upload.key, upload.upload_id) for upload in old)

    def check_condition(self) -> None:
        """Raise Invalid if the bucket's versioning disables conditional creates. No-op if the
        endpoint does not report versioning."""
        if not self._dialect.void_if_versioned:
            return
        what = self._place.describe_operation("GetBucketVersioning", "")
        try:
            answer = self._lane.call(
                "get_bucket_versioning", what, key="", Bucket=self._place.bucket
            )
        except S3Failure as failure:
            if failure.answer is None or failure.status >= 500:
                raise failure.error from None
            return
        if void := self._dialect.explain_void(answer.get("Status", "")):
            raise Invalid(f"{self.url}: {void}")

    def probes(self, folder: str) -> Iterator[ProbeResult]:
        """Run the S3 probes of `tieredstore doctor` below `folder` of the tier."""
        return probe_s3(self._lane, self._place, folder, is_fenced=self._settings.fencing != "none")

    def close(self) -> None:
        self._lane.close()
        self._bulk_lane.close()

    def _first_page(self) -> None:
        try:
            self._lane.call(
                "list_objects_v2",
                self._place.describe_operation("ListObjectsV2", ""),
                key="",
                Bucket=self._place.bucket,
                Prefix=self._place.add_prefix(""),
                MaxKeys=1,
            )
        except S3Failure as failure:
            raise failure.error from None

    def _write_params(self, key: str, metadata: Mapping[str, str]) -> dict[str, object]:
        """Return the request parameters for metadata, encryption and storage class."""
        settings = self._settings
        params: dict[str, object] = {"Metadata": dict(metadata)}
        if settings.sse != "none":
            params["ServerSideEncryption"] = settings.sse
        if settings.sse == "aws:kms":
            if settings.sse_kms_key_id:
                params["SSEKMSKeyId"] = settings.sse_kms_key_id
            if settings.sse_bucket_key:
                params["BucketKeyEnabled"] = True
        if settings.storage_class and key.rpartition("/")[2] == WHOLE_NAME:
            params["StorageClass"] = settings.storage_class
        return params

    def _create(self, key: str, body: bytes | IO[bytes], lane: Lane, params: dict[str, Any]) -> Any:
        try:
            return self._call(
                "put_object",
                "PutObject",
                key,
                lane=lane,
                Body=body,
                IfNoneMatch="*",
                **params,
            )
        except PreconditionFailed:
            return None
        except S3Failure as failure:
            raise failure.make_write_error() from None

    def _delete_one(self, key: str) -> None:
        try:
            self._call("delete_object", "DeleteObject", key, lane=self._bulk_lane)
        except S3Failure as failure:
            if not is_absent(failure):
                raise failure.error from None

    def _delete_some(self, keys: Sequence[str]) -> None:
        what = self._place.describe_operation("DeleteObjects", keys[0])
        left = list(keys)
        for attempt in itertools.count(1):
            try:
                answer = self._bulk_lane.call(
                    "delete_objects",
                    what,
                    key=keys[0],
                    Bucket=self._place.bucket,
                    Delete={
                        "Objects": [{"Key": self._place.add_prefix(key)} for key in left],
                        "Quiet": True,
                    },
                )
            except S3Failure as failure:
                raise failure.error from None
            errors = [e for e in answer.get("Errors", ()) if e.get("Code") != "NoSuchKey"]
            if not errors:
                return
            first, code = errors[0].get("Key", ""), errors[0].get("Code", "")
            text = f"{what}: {len(errors)} of {len(left)} keys are still there, the first: {first}"
            if any(error.get("Code") not in _PASSING for error in errors):
                kind = Invalid if code == "AccessDenied" else Unavailable
                raise kind(f"{text} ({code})", path=first)
            if attempt >= self._settings.max_attempts or not self._bulk_lane.may_retry():
                raise Unavailable(f"{text} ({code})", path=first)
            left = [self._place.remove_prefix(error["Key"]) for error in errors]
            self._bulk_lane.pause(attempt)

    def _call(
        self,
        method: str,
        operation: str,
        key: str,
        *,
        lane: Lane | None = None,
        **params: Any,
    ) -> Any:
        return (lane or self._lane).call(
            method,
            self._place.describe_operation(operation, key),
            key=key,
            Bucket=self._place.bucket,
            Key=self._place.add_prefix(key),
            **params,
        )


def _join_buffers(buffers: Sequence[Buffer]) -> bytes:
    if len(buffers) == 1 and isinstance(buffers[0], bytes):
        return buffers[0]
    return b"".join(buffers)
