"""Probes of what only S3 has: checksums, pages, parts, and the bucket's own settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from tieredstore.contracts.probing import ProbeResult, Verdict
from tieredstore.providers.probing import guard_probes
from tieredstore.providers.s3.lane import Lane, S3Failure
from tieredstore.providers.s3.place import S3Place

_PAGE_KEYS = 3
_PAGE_NAMES = ("%RETRY%g", "A", "a-1", "a_1", "a|1", "b", "é", "你")
"""All that topic names are made of, and two names that are not ASCII; in the order of bytes."""
_OUT_OF_REACH = frozenset({"GLACIER", "DEEP_ARCHIVE"})
_NONE = {
    "NoSuchLifecycleConfiguration",
    "ObjectLockConfigurationNotFoundError",
    "ObjectLockConfigurationNotFound",
    "InvalidBucketState",
}


def probe_s3(lane: Lane, place: S3Place, folder: str, *, is_fenced: bool) -> Iterator[ProbeResult]:
    """Run all probes below `folder` of the tier (with a slash at its end), which the caller
    removes. is_fenced: whether writers are to keep each other out."""
    probes = _S3Probes(lane, place, folder, is_fenced=is_fenced)
    yield from guard_probes(
        [
            ("dialect", probes.dialect),
            ("checksum", probes.checksum),
            ("range answer", probes.range_answer),
            ("paging", probes.paging),
            ("small parts", probes.small_parts),
            ("versioning", probes.versioning),
            ("lifecycle", probes.lifecycle),
            ("object lock", probes.object_lock),
        ]
    )


class _S3Probes:
    def __init__(self, lane: Lane, place: S3Place, folder: str, *, is_fenced: bool) -> None:
        self._is_fenced = is_fenced
        self._lane = lane
        self._place = place
        self._folder = folder

    def dialect(self) -> ProbeResult:
        """Tell how the endpoint is asked to make an object only if it is absent."""
        spoken = self._lane.dialect
        found = f"{spoken.name}: {spoken.header}"
        if spoken.promises_exclusion:
            return ProbeResult("dialect", Verdict.INFO, found)
        not_said = "the vendor does not say that of two creates at the same time one fails: "
        if self._is_fenced:
            return ProbeResult(
                "dialect",
                Verdict.UNSAFE,
                found,
                f"{not_said}no writer starts here, unless tieredStoreChunkFencing is none",
            )
        return ProbeResult(
            "dialect",
            Verdict.NOTE,
            found,
            f"{not_said}be sure that there is one writer; the conditional race shows what it did "
            "now",
        )

    def checksum(self) -> ProbeResult:
        """Check that a body with another checksum than its own is refused."""
        name = "checksum"
        wrong: dict[str, Any] = self._lane.dialect.checksum_params(b"its bytes")
        try:
            self._object("put_object", "s3-crc", Body=b"other bytes", **wrong)
        except S3Failure as failure:
            if failure.answer is None or failure.status >= 500:
                raise failure.error from None
            return ProbeResult(name, Verdict.OK, f"a wrong one is refused ({failure.code})")
        return ProbeResult(
            name,
            Verdict.NOTE,
            "a wrong one is accepted",
            "bytes that are damaged on their way are stored; they are noticed when they are read",
        )

    def range_answer(self) -> ProbeResult:
        """Check a range: 206 with its place within an object, 416 behind the object."""
        name, key = "range answer", "s3-range"
        self._put_object(key, b"0123456789")
        answer = self._call_object("get_object", key, Range="bytes=2-5")
        status = answer["ResponseMetadata"]["HTTPStatusCode"]
        place, body = answer.get("ContentRange"), answer["Body"].read()
        if (status, place, body) != (206, "bytes 2-5/10", b"2345"):
            return ProbeResult(
                name, Verdict.UNSAFE, f"bytes 2 to 5 of 10: status {status}, {place}, {body!r}"
            )
        try:
            answer = self._object("get_object", key, Range="bytes=10-19")
        except S3Failure as failure:
            if failure.status == 416:
                return ProbeResult(name, Verdict.OK, "206 with its place, 416 behind the end")
            raise failure.error from None
        status = answer["ResponseMetadata"]["HTTPStatusCode"]
        return ProbeResult(name, Verdict.UNSAFE, f"behind the end: status {status}, expected 416")

    def paging(self) -> ProbeResult:
        """Check that a listing in small pages has everything once, in order."""
        name = "paging"
        names = [f"page/{name}" for name in _PAGE_NAMES]
        keys = [self._place.add_prefix(self._folder + name) for name in names]
        for name_of_key in names:
            self._put_object(name_of_key, b"x")
        found: list[str] = []
        params: dict[str, Any] = {}
        for _ in range(len(keys) + 1):
            page = self._bucket(
                "list_objects_v2",
                Prefix=self._place.add_prefix(f"{self._folder}page/"),
                MaxKeys=_PAGE_KEYS,
                **params,
            )
            contents = page.get("Contents", [])
            if len(contents) > _PAGE_KEYS:
                return ProbeResult(
                    name, Verdict.NOTE, f"{len(contents)} keys in a page of {_PAGE_KEYS}"
                )
            found += [item["Key"] for item in contents]
            if not page.get("IsTruncated"):
                break
            params = {"ContinuationToken": page["NextContinuationToken"]}
        lost = [key for key in keys if key not in found]
        if lost and all(not key.isascii() for key in lost):
            return ProbeResult(
                name,
                Verdict.NOTE,
                f"names that are not ASCII are left out: {lost}",
                "topics have none such; give cluster and broker none either",
            )
        if found != keys:
            return ProbeResult(
                name,
                Verdict.UNSAFE,
                f"{len(keys)} keys in pages of {_PAGE_KEYS}: {found}",
                "recovery lists: it would not see all, or see some twice",
            )
        return ProbeResult(name, Verdict.OK, "everything once, in order")

    def small_parts(self) -> ProbeResult:
        """Check a part below 5 MiB that is not the last one."""
        name, key = "small parts", self._place.add_prefix(f"{self._folder}s3-parts")
        upload = self._bucket("create_multipart_upload", Key=key)["UploadId"]
        try:
            parts = []
            for number in (1, 2):
                answer = self._bucket(
                    "upload_part", Key=key, UploadId=upload, PartNumber=number, Body=b"small"
                )
                parts.append({"PartNumber": number, "ETag": answer["ETag"]})
            try:
                self._request(
                    "complete_multipart_upload",
                    key,
                    Key=key,
                    UploadId=upload,
                    MultipartUpload={"Parts": parts},
                )
            except S3Failure as failure:
                if failure.answer is None or failure.status >= 500:
                    raise failure.error from None
                return ProbeResult(name, Verdict.OK, f"refused, as S3 does ({failure.code})")
            return ProbeResult(name, Verdict.OK, "accepted; never sent")
        finally:
            with suppress(S3Failure):
                self._request("abort_multipart_upload", key, Key=key, UploadId=upload)

    def versioning(self) -> ProbeResult:
        def judge(answer: Mapping[str, Any]) -> ProbeResult:
            status = answer.get("Status", "")
            void = self._lane.dialect.explain_void(status)
            if void:
                return ProbeResult("versioning", Verdict.UNSAFE, status.lower(), void)
            if status != "Enabled":
                return ProbeResult("versioning", Verdict.OK, status.lower() or "off")
            return ProbeResult(
                "versioning",
                Verdict.NOTE,
                "on",
                "what is merged or expired stays as an old version and is paid for; a lifecycle "
                "rule with NoncurrentVersionExpiration removes it",
            )

        return self._setting("versioning", "get_bucket_versioning", judge)

    def lifecycle(self) -> ProbeResult:
        def judge(answer: Mapping[str, Any]) -> ProbeResult:
            return judge_rules(answer.get("Rules", ()), self._place.add_prefix(""))

        return self._setting("lifecycle", "get_bucket_lifecycle_configuration", judge)

    def object_lock(self) -> ProbeResult:
        def judge(answer: Mapping[str, Any]) -> ProbeResult:
            lock = answer.get("ObjectLockConfiguration", {})
            rule = lock.get("Rule", {}).get("DefaultRetention")
            if not rule:
                return ProbeResult("object lock", Verdict.OK, "no default retention")
            length = f"{rule.get('Days') or rule.get('Years')} "
            length += "days" if rule.get("Days") else "years"
            return ProbeResult(
                "object lock",
                Verdict.NOTE,
                f"default retention {rule.get('Mode')}, {length}",
                "what is merged or expired cannot be removed before, and is paid for",
            )

        return self._setting("object lock", "get_object_lock_configuration", judge)

    def _setting(
        self, name: str, method: str, judge: Callable[[Mapping[str, Any]], ProbeResult]
    ) -> ProbeResult:
        """A setting of the bucket; that it cannot be read says nothing about the tier."""
        try:
            answer = self._request(method, "")
        except S3Failure as failure:
            if failure.code in _NONE:
                return ProbeResult(name, Verdict.OK, "none")
            return ProbeResult(
                name,
                Verdict.UNKNOWN,
                f"the endpoint does not tell ({failure.code or failure.status or 'no answer'})",
            )
        return judge(answer)

    def _put_object(self, key: str, body: bytes) -> None:
        self._call_object("put_object", key, Body=body)

    def _object(self, method: str, key: str, **params: Any) -> Any:
        """A request for an object of the folder. Raises S3Failure."""
        full = self._place.add_prefix(self._folder + key)
        return self._request(method, self._folder + key, Key=full, **params)

    def _call_object(self, method: str, key: str, **params: Any) -> Any:
        try:
            return self._object(method, key, **params)
        except S3Failure as failure:
            raise failure.error from None

    def _bucket(self, method: str, **params: Any) -> Any:
        try:
            return self._request(method, self._folder, **params)
        except S3Failure as failure:
            raise failure.error from None

    def _request(self, method: str, key: str, **params: Any) -> Any:
        operation = "".join(part.capitalize() for part in method.split("_"))
        return self._lane.call(
            method,
            self._place.describe_operation(operation, key),
            key=key,
            Bucket=self._place.bucket,
            **params,
        )


def judge_rules(rules: Sequence[Mapping[str, Any]], prefix: str) -> ProbeResult:
    """Judge what lifecycle rules do to objects below `prefix`; those of a tier have no tags."""
    name = "lifecycle"
    bites: list[str] = []
    notes: list[str] = []
    aborts = False
    for rule in rules:
        if rule.get("Status") != "Enabled" or not _covers(rule, prefix):
            continue
        label = f"rule {rule.get('ID', '')!r}"
        aborts |= "AbortIncompleteMultipartUpload" in rule
        expiration = rule.get("Expiration", {})
        if "Days" in expiration or "Date" in expiration:
            bites.append(f"{label} deletes objects")
        for transition in rule.get("Transitions", ()):
            where = transition.get("StorageClass", "")
            if where in _OUT_OF_REACH:
                bites.append(f"{label} moves objects to {where}, where they cannot be read at once")
            else:
                notes.append(f"{label} moves objects to {where}")
    if bites:
        return ProbeResult(
            name,
            Verdict.UNSAFE,
            "; ".join(bites),
            "the store alone may delete from a tier: leave its prefix out of the rule",
        )
    if notes:
        return ProbeResult(name, Verdict.NOTE, "; ".join(notes), "reading there costs more")
    found = "aborts multipart uploads that nobody completes" if aborts else "nothing for the tier"
    return ProbeResult(name, Verdict.OK, found)


def _covers(rule: Mapping[str, Any], prefix: str) -> bool:
    """Whether a rule may apply to some object below `prefix`."""
    filters = rule.get("Filter", {})
    combined = filters.get("And", {})
    if "Tag" in filters or combined.get("Tags"):
        return False
    covered = rule.get("Prefix") or filters.get("Prefix") or combined.get("Prefix") or ""
    return bool(prefix.startswith(covered) or covered.startswith(prefix))
