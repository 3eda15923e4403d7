"""One-time migration of users and rules from RocketMQ's first access control (`plain_acl.yml`)."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiofiles
import aiofiles.os
import yaml

from tieredstore.broker.auth.policies import Policy, PolicyEntry
from tieredstore.broker.auth.users import USER_PREFIX, AclManager, UserChange, UserManager
from tieredstore.disk.errors import wrap_os_errors
from tieredstore.errors import Invalid

_ACTIONS = {
    "PUB": ["Pub"],
    "SUB": ["Sub"],
    "PUB|SUB": ["Pub", "Sub"],
    "SUB|PUB": ["Pub", "Sub"],
    "DENY": ["All"],
}
_log = logging.getLogger(__name__)


async def migrate_plain_acl(users: UserManager, acls: AclManager) -> None:
    """Create users with rules for the accounts of RocketMQ's first access control. Existing users
    are skipped. Reads `conf/plain_acl.yml` and `conf/acl/*.yml` under ROCKETMQ_HOME. If that
    variable is not set, reads `plain_acl.yml` and `acl/*.yml` in the folder of the users' file. As
    in Java, source addresses are not migrated. Raises Invalid or Unavailable."""
    home = os.environ.get("ROCKETMQ_HOME")
    folder = Path(home) / "conf" if home else users.path.parent
    paths = [folder / "plain_acl.yml"]
    if await aiofiles.os.path.isdir(folder / "acl"):
        names = sorted(await aiofiles.os.listdir(folder / "acl"))
        paths += [folder / "acl" / name for name in names if name.endswith((".yml", ".yaml"))]
    for path in paths:
        if await aiofiles.os.path.exists(path):
            for account in await _read_accounts(path):
                _take_over(account, path, users, acls)
        elif path is paths[0]:
            _log.warning("migrateAuthFromV1Enabled=true: %s is not there", path)


async def _read_accounts(path: Path) -> list[dict[str, object]]:
    with wrap_os_errors("read", path):
        async with aiofiles.open(path, "rb") as file:
            data = await file.read()
    try:
        content = yaml.safe_load(data)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" at line {mark.line + 1}" if mark is not None else ""
        raise Invalid(
            f"{path}: expected YAML, found something else{line}", path=str(path)
        ) from None
    accounts = (content or {}).get("accounts") if isinstance(content, dict | None) else None
    if accounts is None:
        return []
    if not isinstance(accounts, list) or not all(isinstance(one, dict) for one in accounts):
        raise Invalid(f"{path}: accounts: expected a list of accounts", path=str(path))
    return accounts


def _take_over(
    account: dict[str, object], path: Path, users: UserManager, acls: AclManager
) -> None:
    name = str(account.get("accessKey") or "")
    if users.find_user(name) is not None:
        return
    try:
        is_admin = account.get("admin") is True
        policies = list(_list_policies(account))
        users.create_user(
            UserChange(
                username=name,
                password=str(account.get("secretKey") or ""),
                user_type="Super" if is_admin else "Normal",
            )
        )
        if policies:
            acls.update_acl(USER_PREFIX + name, policies)
    except Invalid as error:
        raise Invalid(f"{path}: account {name!r}: {error}", path=str(path)) from None


def _list_policies(account: dict[str, Any]) -> Iterator[Policy]:
    entries = []
    for key, kind in (("topicPerms", "Topic"), ("groupPerms", "Group")):
        for text in account.get(key) or ():
            name, separator, permission = str(text).partition("=")
            if separator:
                entries.append(_make_entry(f"{kind}:{name.strip()}", permission))
    if entries:
        yield Policy(policy_type="Custom", entries=entries)
    defaults = [
        _make_entry(f"{kind}:*", str(account[key]))
        for key, kind in (("defaultTopicPerm", "Topic"), ("defaultGroupPerm", "Group"))
        if account.get(key)
    ]
    if defaults:
        yield Policy(policy_type="Default", entries=defaults)


def _make_entry(resource: str, permission: str) -> PolicyEntry:
    text = permission.strip()
    actions = _ACTIONS.get(text)
    if actions is None:
        raise Invalid(f"{resource}: expected one of {', '.join(_ACTIONS)}, found {text[:40]!r}")
    return PolicyEntry(
        resource=resource, actions=actions, decision="Deny" if text == "DENY" else "Allow"
    )
