"""Probes of S3's own features: checksums, pages, parts, and settings of the bucket."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from tieredstore.contracts.probing import ProbeResult
from tieredstore.providers.probing import Finding, guard_probes, info, note, ok, unknown, unsafe
from tieredstore.providers.s3.lane import Lane, S3Failure
from tieredstore.providers.s3.place import S3Place

_PAGE_KEYS = 3
_PAGE_NAMES = ("%RETRY%g", "A", "a-1", "a_1", "a|1", "b", "é", "你")
"""Names in byte order, with examples of each kind of character in topic names. Two of the names are
not ASCII."""
_OUT_OF_REACH = frozenset({"GLACIER", "DEEP_ARCHIVE"})
_NONE = {
    "NoSuchLifecycleConfiguration",
    "ObjectLockConfigurationNotFoundError",
    "ObjectLockConfigurationNotFound",
    "InvalidBucketState",
}


def probe_s3(lane: Lane, place: S3Place, folder: str, *, is_fenced: bool) -> Iterator[ProbeResult]:
    """Run all probes below `folder` of the tier (with a trailing slash). The caller deletes its
    objects. `is_fenced`: whether writers must exclude each other."""
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

    def dialect(self) -> Finding:
        """Describe how the endpoint creates an object conditionally."""
        spoken = self._lane.dialect
        found = f"{spoken.name}: {spoken.header}"
        if spoken.promises_exclusion:
            return info(found)
        not_said = "the vendor does not say that of two creates at the same time one fails: "
        if self._is_fenced:
            text = f"{not_said}no writer starts here, unless tieredStoreChunkFencing is none"
            return unsafe(found, text)
        text = (
            f"{not_said}be sure that there is one writer; the conditional race shows what it did "
            "now"
        )
        return note(found, text)

    def checksum(self) -> Finding:
        """Check that a body with a wrong checksum is refused."""
        wrong: dict[str, Any] = self._lane.dialect.checksum_params(b"its bytes")
        try:
            self._object("put_object", "s3-crc", Body=b"other bytes", **wrong)
        except S3Failure as failure:
            if failure.answer is None or failure.status >= 500:
                raise failure.error from None
            return ok(f"a wrong one is refused ({failure.code})")
        text = "bytes that are damaged on their way are stored; they are noticed when they are read"
        return note("a wrong one is accepted", text)

    def range_answer(self) -> Finding:
        """Check range requests: 206 with the position inside an object, 416 beyond its end."""
        key = "s3-range"
        self._put_object(key, b"0123456789")
        answer = self._call_object("get_object", key, Range="bytes=2-5")
        status = answer["ResponseMetadata"]["HTTPStatusCode"]
        place, body = answer.get("ContentRange"), answer["Body"].read()
        if (status, place, body) != (206, "bytes 2-5/10", b"2345"):
            return unsafe(f"bytes 2 to 5 of 10: status {status}, {place}, {body!r}")
        try:
            answer = self._object("get_object", key, Range="bytes=10-19")
        except S3Failure as failure:
            if failure.status == 416:
                return ok("206 with its place, 416 behind the end")
            raise failure.error from None
        status = answer["ResponseMetadata"]["HTTPStatusCode"]
        return unsafe(f"behind the end: status {status}, expected 416")

    def paging(self) -> Finding:
        """Check that a listing in small pages contains every name once, in order."""
        names = [f"page/{name}" for name in _PAGE_NAMES]
        keys = [self._place.add_prefix(self._folder + name) for name in names]
        for name_of_key in names:
            self._put_object(name_of_key, b"x")
        found: list[str] = []
        params: dict[str, object] = {}
        for _ in range(len(keys) + 1):
            page = self._bucket(
                "list_objects_v2",
                Prefix=self._place.add_prefix(f"{self._folder}page/"),
                MaxKeys=_PAGE_KEYS,
                **params,
            )
            contents = page.get("Contents", [])
            if len(contents) > _PAGE_KEYS:
                return note(f"{len(contents)} keys in a page of {_PAGE_KEYS}")
            found += [item["Key"] for item in contents]
            if not page.get("IsTruncated"):
                break
            params = {"ContinuationToken": page["NextContinuationToken"]}
        lost = [key for key in keys if key not in found]
        if lost and all(not key.isascii() for key in lost):
            text = "topics have none such; give cluster and broker none either"
            return note(f"names that are not ASCII are left out: {lost}", text)
        if found != keys:
            text = "recovery lists: it would not see all, or see some twice"
            return unsafe(f"{len(keys)} keys in pages of {_PAGE_KEYS}: {found}", text)
        return ok("everything once, in order")

    def small_parts(self) -> Finding:
        """Check whether the server accepts a part below 5 MiB before the last one."""
        key = self._place.add_prefix(f"{self._folder}s3-parts")
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
                return ok(f"refused, as S3 does ({failure.code})")
            return ok("accepted; never sent")
        finally:
            with suppress(S3Failure):
                self._request("abort_multipart_upload", key, Key=key, UploadId=upload)

    def versioning(self) -> Finding:
        def judge(answer: Mapping[str, Any]) -> Finding:
            status = answer.get("Status", "")
            void = self._lane.dialect.explain_void(status)
            if void:
                return unsafe(status.lower(), void)
            if status != "Enabled":
                return ok(status.lower() or "off")
            text = (
                "what is merged or expired stays as an old version and is paid for; a lifecycle "
                "rule with NoncurrentVersionExpiration removes it"
            )
            return note("on", text)

        return self._setting("get_bucket_versioning", judge)

    def lifecycle(self) -> Finding:
        def judge(answer: Mapping[str, Any]) -> Finding:
            return judge_rules(answer.get("Rules", ()), self._place.add_prefix(""))

        return self._setting("get_bucket_lifecycle_configuration", judge)

    def object_lock(self) -> Finding:
        def judge(answer: Mapping[str, Any]) -> Finding:
            lock = answer.get("ObjectLockConfiguration", {})
            rule = lock.get("Rule", {}).get("DefaultRetention")
            if not rule:
                return ok("no default retention")
            length = f"{rule.get('Days') or rule.get('Years')} "
            length += "days" if rule.get("Days") else "years"
            text = "what is merged or expired cannot be removed before, and is paid for"
            return note(f"default retention {rule.get('Mode')}, {length}", text)

        return self._setting("get_object_lock_configuration", judge)

    def _setting(self, method: str, judge: Callable[[Mapping[str, object]], Finding]) -> Finding:
        """Return a finding about a setting of the bucket. A setting that cannot be read does not
        make the tier unsafe."""
        try:
            answer = self._request(method, "")
        except S3Failure as failure:
            if failure.code in _NONE:
                return ok("none")
            text = f"the endpoint does not tell ({failure.code or failure.status or 'no answer'})"
            return unknown(text)
        return judge(answer)

    def _put_object(self, key: str, body: bytes) -> None:
        self._call_object("put_object", key, Body=body)

    def _object(self, method: str, key: str, **params: Any) -> Any:
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


def judge_rules(rules: Sequence[Mapping[str, Any]], prefix: str) -> Finding:
    """Return a finding about lifecycle rules that affect objects below `prefix`. Objects of a tier
    have no tags."""
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
        text = "the store alone may delete from a tier: leave its prefix out of the rule"
        return unsafe("; ".join(bites), text)
    if notes:
        return note("; ".join(notes), "reading there costs more")
    found = "aborts multipart uploads that stay open" if aborts else "nothing for the tier"
    return ok(found)


def _covers(rule: Mapping[str, Any], prefix: str) -> bool:
    """Return whether a rule may apply to any object below `prefix`."""
    filters = rule.get("Filter", {})
    combined = filters.get("And", {})
    if "Tag" in filters or combined.get("Tags"):
        return False
    covered = rule.get("Prefix") or filters.get("Prefix") or combined.get("Prefix") or ""
    return bool(prefix.startswith(covered) or covered.startswith(prefix))
