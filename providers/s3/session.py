"""boto3 clients from the configuration: credentials, addressing, timeouts, retries."""

from __future__ import annotations

import functools
import ipaddress
import logging
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

import boto3
import botocore.loaders
import botocore.session
import urllib3
from botocore.config import Config
from botocore.credentials import (
    AssumeRoleCredentialFetcher,
    CredentialProvider,
    CredentialResolver,
    DeferredRefreshableCredentials,
)

from tieredstore.errors import Invalid, TieredStoreError
from tieredstore.providers.s3.errors import make_library_error

if TYPE_CHECKING:
    from types_boto3_s3.client import S3Client as BotoClient

    from tieredstore.providers.s3.settings import S3Settings

BULK_CONNECTIONS = 8
"""Maximum number of connections, and therefore of concurrent requests, for merges, seals and
deletions."""
CONNECT_TIMEOUT_MS = 2_000
_SESSION_NAME = "tieredstore"
_log = logging.getLogger(__name__)


def make_client(settings: S3Settings, *, bulk: bool) -> BotoClient:
    """Create a boto3 client with newly looked up credentials. Raises Invalid.

    `bulk`: for merges, seals and deletes. Such a client has fewer connections, longer timeouts, and
    a rate that adapts to the endpoint's load. The client itself does not retry requests (see
    `Lane`).
    """
    _keep_secrets_out_of_logs()
    check_endpoint(settings.endpoint)
    if not settings.verify_tls:
        _log.warning("s3://%s: the server's certificate is not checked", settings.bucket)
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    try:
        session = open_session(settings)
        return session.client(
            "s3",
            endpoint_url=settings.endpoint or None,
            verify=(settings.ca_bundle or None) if settings.verify_tls else False,
            config=_client_config(settings, bulk=bulk),
        )
    except TieredStoreError:
        raise
    except Exception as error:
        raise make_library_error(error, f"s3://{settings.bucket}") from None


def check_endpoint(endpoint: str) -> None:
    """Raise Invalid for an endpoint with a user or password. The error shows neither."""
    if endpoint and "@" in urlsplit(endpoint).netloc:
        raise Invalid(
            "objectStoreEndpoint: a user or password in it is refused: use objectStoreAccessKey "
            "and objectStoreSecretKey"
        )


def addressing_style(settings: S3Settings) -> Literal["auto", "path", "virtual"]:
    """Return botocore's addressing style. `auto` leaves the choice to botocore."""
    if settings.path_style in {"path", "true"}:
        return "path"
    if settings.path_style in {"virtual", "false"}:
        return "virtual"
    host = urlsplit(settings.endpoint).hostname or ""
    return "path" if host == "localhost" or _is_address(host) else "auto"


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _client_config(settings: S3Settings, *, bulk: bool) -> Config:
    return Config(
        connect_timeout=CONNECT_TIMEOUT_MS / 1000,
        read_timeout=(settings.bulk_read_timeout_ms if bulk else settings.read_timeout_ms) / 1000,
        # The lane repeats requests. This mode only throttles a client.
        retries={"mode": "adaptive" if bulk else "standard", "total_max_attempts": 1},
        # reads and commits together
        max_pool_connections=BULK_CONNECTIONS if bulk else 2 * settings.max_connections,
        tcp_keepalive=True,
        proxies={"http": settings.proxy, "https": settings.proxy} if settings.proxy else None,
        # The client computes its own checksums. Bodies over TLS are not hashed a second time.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": addressing_style(settings), "payload_signing_enabled": False},
        user_agent_extra=_SESSION_NAME,
    )


def open_session(settings: S3Settings) -> boto3.session.Session:
    """Open a session with the configured credentials and region. Raises Invalid, and errors of
    botocore."""
    session = botocore.session.Session(profile=settings.profile or None)
    if settings.region:
        session.set_config_variable("region", settings.region)
    if bool(settings.access_key) != bool(settings.secret_key):
        raise Invalid(
            "objectStoreAccessKey and objectStoreSecretKey: one is given without the other"
        )
    if settings.access_key:
        session.set_credentials(
            settings.access_key, settings.secret_key, settings.session_token or None
        )
    if settings.role_arn:
        session = _with_role(session, settings)
    opened = boto3.session.Session(botocore_session=session)
    # after boto3, which adds a search path to the loader of each session
    session.register_component(
        "data_loader", _find_loader(session.get_config_variable("data_path"))
    )
    return opened


@functools.cache
def _find_loader(data_path: str | None) -> botocore.loaders.Loader:
    """Return the process's loader of service descriptions. It caches them, because a session would
    otherwise parse more than a megabyte of JSON."""
    return botocore.loaders.create_loader(data_path)


class _AssumedRole(CredentialProvider):
    """Credentials of a role, renewed before they expire."""

    METHOD = "assume-role"
    CANONICAL_NAME = "AssumeRole"

    def __init__(self, fetcher: AssumeRoleCredentialFetcher) -> None:
        super().__init__()
        self._fetcher = fetcher

    def load(self) -> object:
        return DeferredRefreshableCredentials(
            method=self.METHOD, refresh_using=self._fetcher.fetch_credentials
        )


def _with_role(base: botocore.session.Session, settings: S3Settings) -> botocore.session.Session:
    extra = {"RoleSessionName": _SESSION_NAME}
    if settings.external_id:
        extra["ExternalId"] = settings.external_id
    credentials = base.get_credentials()
    if credentials is None:
        raise Invalid("tieredStoreS3RoleArn: there are no credentials to assume the role with")
    fetcher = AssumeRoleCredentialFetcher(
        client_creator=base.create_client,
        source_credentials=credentials,
        role_arn=settings.role_arn,
        extra_args=extra,
    )
    session = botocore.session.Session(profile=settings.profile or None)
    if settings.region:
        session.set_config_variable("region", settings.region)
    session.register_component("credential_provider", CredentialResolver([_AssumedRole(fetcher)]))
    return session


def _keep_secrets_out_of_logs() -> None:
    """Raise botocore's log level. At DEBUG it logs signed headers with session tokens."""
    logger = logging.getLogger("botocore")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
