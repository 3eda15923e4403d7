"""`AclManager`: what users may do, in `config/authAcls.json`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec

from tieredstore.broker.auth.policies import Acl, Policy, Rule, Want, decide, parse_policies
from tieredstore.broker.state.config_manager import ConfigManager, DataVersion
from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.errors import Invalid

USER_PREFIX: Final = "User:"


class _Table(msgspec.Struct, kw_only=True, rename="camel"):
    acls: dict[str, Acl]
    data_version: DataVersion | None = None


class AclManager(ConfigManager):
    """Policies by subject, `User:name`."""

    file_mode = 0o600

    def __init__(self, config_folder: Path, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(config_folder / "authAcls.json", clock)
        self._acls: dict[str, Acl] = {}
        self._rules: dict[str, dict[str, list[Rule]]] = {}

    def find_acl(self, subject: str) -> Acl | None:
        """Return the policies of a subject, None without any."""
        return self._acls.get(subject)

    def list_acls(self) -> Mapping[str, Acl]:
        """Return the table, by subject; it is not to be changed."""
        return MappingProxyType(self._acls)

    def allows(self, username: str, want: Want, source_ip: str) -> bool:
        """Tell whether a user may do something."""
        return decide(self._rules.get(USER_PREFIX + username, {}), want, source_ip)

    def update_acl(self, subject: str, policies: list[Policy]) -> None:
        """Add policies to those of a subject; an entry takes the place of the one of the same
        policy type and resource. Raises Invalid."""
        if not subject.startswith(USER_PREFIX):
            raise Invalid(f"subject: expected {USER_PREFIX}name, found {subject[:80]!r}")
        if not policies:
            raise Invalid("The policies is empty.")
        parse_policies(policies)
        old = self._acls.get(subject)
        merged = {
            policy.policy_type or "Custom": policy for policy in (old.policies if old else ())
        }
        for policy in policies:
            kind = policy.policy_type or "Custom"
            entries = (
                {entry.resource: entry for entry in merged[kind].entries} if kind in merged else {}
            )
            entries |= {entry.resource: entry for entry in policy.entries}
            merged[kind] = Policy(policy_type=kind, entries=list(entries.values()))
        self._set(subject, list(merged.values()))

    def delete_acl(
        self, subject: str, policy_type: str | None = None, resource: str | None = None
    ) -> bool:
        """Delete what is said about a resource in the policies of one type (Custom unless it says
        so), or all policies; tells whether there were any."""
        old = self._acls.get(subject)
        if old is None:
            return False
        left = []
        for policy in old.policies if resource else ():
            is_meant = policy.policy_type == (policy_type or "Custom")
            entries = [
                entry for entry in policy.entries if not (is_meant and entry.resource == resource)
            ]
            if entries:
                left.append(Policy(policy_type=policy.policy_type, entries=entries))
        self._set(subject, left)
        return True

    def encode(self) -> bytes:
        table = _Table(acls=self._acls, data_version=self.data_version)
        return msgspec.json.format(msgspec.json.encode(table), indent=1)

    def decode(self, data: bytes) -> None:
        table = msgspec.json.decode(data, type=_Table)
        try:
            rules = {subject: parse_policies(acl.policies) for subject, acl in table.acls.items()}
        except Invalid as error:
            raise ValueError(str(error)) from None
        self._acls, self._rules = dict(table.acls), rules
        self.data_version = table.data_version or DataVersion()

    def _set(self, subject: str, policies: list[Policy]) -> None:
        if policies:
            self._rules[subject] = parse_policies(policies)
            self._acls[subject] = Acl(subject=subject, policies=policies)
        else:
            self._rules.pop(subject, None)
            self._acls.pop(subject, None)
        self.mark_changed()
