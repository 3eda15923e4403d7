"""obstore reads small ranges from real servers. The servers accept its signatures. The bytes equal
those that boto3 reads."""

from __future__ import annotations

from contextlib import closing

import pytest

from tests.kit.object_store.servers import CREDENTIALS, REGION, ObjectStore
from tieredstore.errors import Invalid
from tieredstore.properties import PluginProperties, read_settings
from tieredstore.providers.s3.client import S3Client
from tieredstore.providers.s3.settings import S3Settings

DATA = bytes(range(256)) * 1024
KEY = "t%TOPIC@x=y&z/é 你/0/COMMIT_LOG/c.00000000000000000000"


def client(store: ObjectStore, secret: str = CREDENTIALS[1]) -> S3Client:
    properties = {
        "objectStoreEndpoint": store.endpoint,
        "objectStoreBucket": store.bucket,
        "objectStoreAccessKey": CREDENTIALS[0],
        "objectStoreSecretKey": secret,
        "tieredStoreS3Region": REGION,
        "tieredStoreS3Prefix": "a tier",
    }
    return S3Client(read_settings(S3Settings, PluginProperties(properties)))


def test_obstore_reads_what_boto3_wrote(object_store: ObjectStore) -> None:
    with closing(client(object_store)) as made:
        assert made.put_if_absent(KEY, [DATA], {})
        assert made._fast is not None
        for position, length in ((0, 1), (1000, 65_536), (len(DATA) - 7, 100)):
            fast = made._fast.get_range(KEY, position, length)
            assert fast == DATA[position : position + length]
        assert made._fast.get_range("none", 0, 1) is None
        assert made.get_range(KEY, len(DATA), 5) == b""


def test_a_wrong_secret_is_refused_and_not_shown(versitygw: ObjectStore) -> None:
    with closing(client(versitygw)) as made:
        assert made.put_if_absent(KEY, [DATA], {})
    secret = "not-the-secret"
    with closing(client(versitygw, secret)) as made, pytest.raises(Invalid) as caught:
        made.get_range(KEY, 0, 10)
    assert secret not in str(caught.value)
